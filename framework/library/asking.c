/* A job that has its GPU whole does not fail because guests have not left yet: it waits while the agent has them leave.

   The library asks by itself, over a connection of its own. The Python half cannot: torch holds its allocator's lock
   around cudaMalloc, and whoever reads torch's statistics meanwhile stands still with Python's own lock. */
#define _GNU_SOURCE
#include "asking.h"

#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define SECOND 1000000000ull
#define LONGEST (120 * SECOND) /* our choice: a pod that is stopped ends within 30 s by default, seconds after the order */
#define SILENT (5 * SECOND)    /* an agent answers each second */
/* Nobody is asked for so long after a wait in vain, so that a script which tries smaller batches is not held up each
   time, nor guests stopped for it again and again; and after one for an answer that did not come. */
#define PAUSE (600 * SECOND)
#define CROWDED (5 * SECOND) /* any pod may fill the agent's queue of connections, and never for long: tried so long */
#define CROWDED_MS 20
#define PAUSE_OF_SILENT (60 * SECOND)

static struct sockaddr_un agent = {.sun_family = AF_UNIX};
static int is_guest;
static _Atomic uint64_t paused_until_ns;

static uint64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * SECOND + (uint64_t)t.tv_nsec;
}

/* 0, or -1 with errno: EAGAIN if the agent's queue of connections stays full. */
static int connect_to_agent(int made, uint64_t until_ns) {
  int failed;
  while ((failed = connect(made, (struct sockaddr *)&agent, sizeof agent)) && errno == EAGAIN && now_ns() < until_ns)
    poll(NULL, 0, CROWDED_MS);
  return failed;
}

int begin_asking(struct asking *asking, const char *pci, size_t bytes) {
  uint64_t began = now_ns();
  if (is_guest || !*agent.sun_path || began < atomic_load(&paused_until_ns)) return 0;
  int before = errno;
  char text[128];
  int length = snprintf(text, sizeof text, "{\"v\":1,\"type\":\"refused\",\"pci\":\"%.31s\",\"bytes\":%zu}", pci, bytes);
  int made = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  int connected = made >= 0 && connect_to_agent(made, began + CROWDED) == 0;
  if (made >= 0 && !connected && errno == EAGAIN) atomic_store(&paused_until_ns, now_ns() + PAUSE_OF_SILENT);
  int asked = connected && send(made, text, (size_t)length, MSG_NOSIGNAL) == length;
  if (!asked && made >= 0) close(made);
  errno = before;
  *asking = (struct asking){.connection = made, .began_ns = began, .answered_ns = now_ns()};
  return asked;
}

static int hear(struct asking *asking, uint64_t now) {
  char text[4096];
  for (;;) {
    ssize_t length = recv(asking->connection, text, sizeof text - 1, MSG_DONTWAIT);
    if (length < 0) return errno == EAGAIN || errno == EINTR;
    if (length == 0) return 0;
    text[length] = 0;
    if (!strstr(text, "\"type\":\"answer\"")) continue; /* an order: the Python half gets it, too */
    asking->answered_ns = now;
    if (!strstr(text, "\"wait\":true")) return 0;
    if (!asking->waited)
      dprintf(2, "coda: not enough GPU memory is free: waiting until jobs that are guests on this GPU have left\n");
    asking->waited = 1;
  }
}

int keep_asking(struct asking *asking) {
  int before = errno;
  struct pollfd ready = {.fd = asking->connection, .events = POLLIN};
  uint64_t until = now_ns() + SECOND / 4, now;
  int goes_on = 1;
  while (goes_on && (now = now_ns()) < until) {
    poll(&ready, 1, (int)((until - now) / 1000000) + 1);
    now = now_ns();
    goes_on = hear(asking, now) && now - asking->answered_ns < SILENT && now - asking->began_ns < LONGEST;
  }
  errno = before;
  return goes_on;
}

void end_asking(struct asking *asking, int got_it) {
  double seconds = (double)(now_ns() - asking->began_ns) / (double)SECOND;
  int before = errno;
  shutdown(asking->connection, SHUT_RDWR); /* a process that was forked meanwhile has it open, too */
  close(asking->connection);
  if (!asking->waited) {
    if (!got_it && seconds >= (double)(SILENT / SECOND)) atomic_store(&paused_until_ns, now_ns() + PAUSE_OF_SILENT);
  } else if (got_it)
    dprintf(2, "coda: the GPU memory was there after %.1f s\n", seconds);
  else {
    atomic_store(&paused_until_ns, now_ns() + PAUSE);
    dprintf(2, "coda: the request for GPU memory is refused: guests left too little of it within %.0f s\n", seconds);
  }
  errno = before;
}

__attribute__((constructor)) static void begin(void) {
  const char *path = getenv("CODA_SOCKET");
  is_guest = getenv("CODA_SHARE") != NULL;
  if (path && strlen(path) < sizeof agent.sun_path) strcpy(agent.sun_path, path);
}
