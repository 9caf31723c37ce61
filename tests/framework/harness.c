/* A CUDA program over make-believe CUDA and libcodagpu. `harness WHAT` checks one thing and says "ok", or what failed. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "codagpu.h"

typedef struct { unsigned x, y, z; } Dim3;
int cudaMalloc(void **, size_t), cudaFree(void *), cudaMemGetInfo(size_t *, size_t *), cudaSetDevice(int);
int cudaGetLastError(void), cudaPeekAtLastError(void), cudaDeviceSynchronize(void), cudaStreamSynchronize(void *);
int cudaLaunchKernel(const void *, Dim3, Dim3, void **, size_t, void *), cudaMemset(void *, int, size_t);
int cudaLaunchKernelExC(const void *, const void *, void **);
int cudaEventCreate(void **), cudaEventRecord(void *, void *), cudaStreamWaitEvent(void *, void *, unsigned);
int cudaStreamCreate(void **), cudaStreamBeginCapture(void *, int), cudaStreamEndCapture(void *, void **);

#define MIB ((size_t)1 << 20)
#define CHECK(claim) \
  do { if (!(claim)) { fprintf(stderr, "line %d: %s does not hold\n", __LINE__, #claim); exit(1); } } while (0)

static uint64_t stat(int device, enum coda_stat which) {
  uint64_t values[CODA_STATS];
  CHECK(coda_stats(device, values, CODA_STATS) == CODA_STATS);
  return values[which];
}
static double seconds(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}
static void kernel(void) { Dim3 one = {1, 1, 1}; CHECK(cudaLaunchKernel(NULL, one, one, NULL, 0, NULL) == 0); }

/* As a caching allocator asks: a second time for the same size. */
static int asked_twice(void **at, size_t size) { return cudaMalloc(at, size) ? cudaMalloc(at, size) : 0; }

static void limits(void) {
  void *a, *b, *c;
  size_t free_bytes, total;
  coda_limit(0, 100 * MIB, 50 * MIB);
  CHECK(cudaMalloc(&a, 60 * MIB) == 0);
  CHECK(cudaMemGetInfo(&free_bytes, &total) == 0 && free_bytes == 40 * MIB && total == 1024 * MIB);
  CHECK(cudaMalloc(&b, 45 * MIB) == 2 && stat(0, CODA_REFUSALS) == 1);
  CHECK(cudaMalloc(&b, 44 * MIB) == 2); /* another size: the first refusal of it */
  CHECK(cudaMalloc(&b, 44 * MIB) == 0 && cudaPeekAtLastError() == 0);
  memset(b, 7, 44 * MIB);
  CHECK(stat(0, CODA_DEVICE_BYTES) == 60 * MIB && stat(0, CODA_HOST_BYTES) == 44 * MIB);
  CHECK(asked_twice(&c, 45 * MIB) == 2); /* the reserve is spent */
  CHECK(cudaMalloc(&c, 40 * MIB) == 0);  /* exactly the limit */
  coda_limit(0, 10 * MIB, 50 * MIB);     /* below what is there: nothing is taken away */
  CHECK(stat(0, CODA_DEVICE_BYTES) == 100 * MIB);
  CHECK(cudaMemGetInfo(&free_bytes, &total) == 0 && free_bytes == 0);
  CHECK(cudaFree(a) == 0 && cudaFree(c) == 0 && stat(0, CODA_DEVICE_BYTES) == 0);
  CHECK(cudaFree(b) == 0 && stat(0, CODA_HOST_BYTES) == 0 && stat(0, CODA_KEPT_BYTES) == 44 * MIB);
  CHECK(asked_twice(&a, 42 * MIB) == 0 && a == b && stat(0, CODA_KEPT_BYTES) == 0); /* kept, and used again */
  CHECK(cudaFree(a) == 0);
  CHECK(asked_twice(&a, 30 * MIB) == 0 && stat(0, CODA_KEPT_BYTES) == 0); /* kept ones make way in the reserve */
  CHECK(cudaFree(a) == 0 && cudaFree(NULL) == 0);
  coda_limit(CODA_ALL_DEVICES, CODA_UNLIMITED, 0);
  CHECK(cudaMalloc(&a, 1000 * MIB) == 0 && asked_twice(&b, 100 * MIB) == 2); /* the card is full, no reserve */
  cudaGetLastError();
  coda_limit(0, CODA_UNLIMITED, 100 * MIB);
  CHECK(asked_twice(&b, 100 * MIB) == 0 && stat(0, CODA_HOST_BYTES) == 100 * MIB); /* a neighbour took it: backup */
  CHECK(cudaFree(a) == 0 && cudaFree(b) == 0);
}

static void devices(void) {
  void *a, *b;
  coda_limit(0, 10 * MIB, 0);
  coda_limit(1, 20 * MIB, 100 * MIB);
  CHECK(asked_twice(&a, 15 * MIB) == 2);
  CHECK(cudaSetDevice(1) == 0 && cudaMalloc(&a, 15 * MIB) == 0 && asked_twice(&b, 15 * MIB) == 0);
  CHECK(stat(0, CODA_DEVICE_BYTES) == 0 && stat(1, CODA_DEVICE_BYTES) == 15 * MIB && stat(1, CODA_HOST_BYTES) == 15 * MIB);
  CHECK(cudaSetDevice(0) == 0 && cudaFree(a) == 0 && cudaFree(b) == 0); /* from another current device */
  CHECK(stat(1, CODA_DEVICE_BYTES) == 0 && stat(1, CODA_KEPT_BYTES) == 15 * MIB);
  coda_pace(1, 100, 1, 0, 0, 1000);
  CHECK(stat(1, CODA_SHARE_NOW) == 100 && stat(0, CODA_SHARE_NOW) == 1000);
  CHECK(coda_stats(-1, NULL, 1) == 0 && coda_stats(CODA_DEVICES, NULL, 1) == 0);
}

/* After each of many random requests the account is right, and what was written is still there. */
static void random_requests(void) {
  struct { unsigned char *at; size_t size; unsigned char mark; } held[40] = {0};
  unsigned seed = 7;
  size_t sum = 0, limit = 64 * MIB, reserve = 32 * MIB;
  coda_limit(0, limit, reserve);
  for (int i = 0; i < 5000; i++) {
    int k = rand_r(&seed) % 40;
    size_t before = stat(0, CODA_DEVICE_BYTES);
    if (rand_r(&seed) % 50 == 0)
      coda_limit(0, limit = rand_r(&seed) % 96 * MIB, reserve = rand_r(&seed) % 48 * MIB);
    if (held[k].at) {
      CHECK(held[k].at[0] == held[k].mark && held[k].at[held[k].size - 1] == held[k].mark);
      CHECK(cudaFree(held[k].at) == 0);
      sum -= held[k].size, held[k].at = NULL;
    } else {
      size_t size = rand_r(&seed) % (6 * MIB) + 1;
      uint64_t host = stat(0, CODA_HOST_BYTES);
      if (rand_r(&seed) % 20 == 0) coda_tidy();
      if (asked_twice((void **)&held[k].at, size) == 0) {
        held[k].size = size, held[k].mark = (unsigned char)i, sum += size;
        held[k].at[0] = held[k].at[size - 1] = held[k].mark;
        CHECK(stat(0, CODA_DEVICE_BYTES) == before || stat(0, CODA_DEVICE_BYTES) <= limit);
        CHECK(stat(0, CODA_HOST_BYTES) == host || stat(0, CODA_HOST_BYTES) <= reserve);
      } else {
        held[k].at = NULL;
        cudaGetLastError();
      }
    }
    uint64_t counted = stat(0, CODA_DEVICE_BYTES) + stat(0, CODA_HOST_BYTES);
    CHECK(counted >= sum && counted <= sum + sum / 8 + 8); /* a kept segment may be an eighth larger */
  }
  for (int k = 0; k < 40; k++)
    if (held[k].at) CHECK(cudaFree(held[k].at) == 0);
  CHECK(stat(0, CODA_DEVICE_BYTES) == 0 && stat(0, CODA_HOST_BYTES) == 0);
}

static _Atomic int stop;
static void *requests(void *number) {
  unsigned seed = (unsigned)(uintptr_t)number;
  for (int i = 0; i < 2000; i++) {
    void *at;
    cudaSetDevice((int)(seed % 2));
    if (asked_twice(&at, rand_r(&seed) % (4 * MIB) + 1) == 0) {
      *(volatile char *)at = 1;
      kernel();
      CHECK(cudaFree(at) == 0);
    }
    cudaGetLastError();
  }
  return NULL;
}
static void *orders(void *unused) {
  unsigned seed = 3;
  while (!atomic_load(&stop)) {
    int device = (int)(rand_r(&seed) % 3) - 1;
    coda_limit(device, rand_r(&seed) % 16 * MIB, rand_r(&seed) % 16 * MIB);
    coda_pace(device, (int)(rand_r(&seed) % 1001), (int)(rand_r(&seed) % 9), 100000, 100000, 900);
    coda_tidy();
    stat(0, CODA_BUSY_NS);
    nanosleep(&(struct timespec){0, 100000}, NULL);
  }
  coda_pace(CODA_ALL_DEVICES, 1000, 0, 0, 0, 1000);
  return unused;
}
static void threads(void) {
  pthread_t workers[6], boss;
  pthread_create(&boss, NULL, orders, NULL);
  for (uintptr_t i = 0; i < 6; i++) pthread_create(&workers[i], NULL, requests, (void *)(i + 1));
  for (int i = 0; i < 6; i++) pthread_join(workers[i], NULL);
  atomic_store(&stop, 1);
  pthread_join(boss, NULL);
  for (int device = 0; device < 2; device++)
    CHECK(stat(device, CODA_DEVICE_BYTES) == 0 && stat(device, CODA_HOST_BYTES) == 0);
}

/* Prints the kernels per second of 1 ms kernels at the share of the command line. */
static void speed(int share) {
  coda_pace(0, share, 0, 5000000, 0, 1000);
  for (int i = 0; i < 100; i++) kernel(); /* the first chunks are not paced as they should */
  int count = 0;
  double began = seconds();
  for (; seconds() - began < 1.5; count++) kernel();
  cudaDeviceSynchronize();
  printf("%.1f\n", count / (seconds() - began));
}

/* A kernel that never ends, as one that waits for a later one: the program goes on, and soon without waiting. */
static void endless_kernel(void) {
  coda_pace(0, 500, 0, 5000000, 0, 1000);
  for (int i = 0; i < 600; i++) kernel();
  CHECK(stat(0, CODA_STALLS) == 10); /* five, 256 launches, five, and the first of 512 launches */
}

/* The same after kernels that ended: the launches that nobody waited for make the next wait no longer. */
static void late_endless_kernel(void) {
  void *never;
  coda_pace(0, 500, 0, 5000000, 0, 1000);
  for (int i = 0; i < 8; i++) kernel();
  CHECK(stat(0, CODA_STALLS) == 0 && cudaEventCreate(&never) == 0);
  *(uint64_t *)never = UINT64_MAX / 2; /* when the make-believe runtime has it done */
  CHECK(cudaStreamWaitEvent(NULL, never, 0) == 0);
  for (int i = 0; i < 200; i++) kernel();
  CHECK(stat(0, CODA_STALLS) > 0);
  uint64_t before = stat(0, CODA_STALLS);
  double began = seconds();
  while (stat(0, CODA_STALLS) == before) kernel();
  CHECK(seconds() - began < 60); /* each kernel takes 0.05 s: 8 times 256 of them would be 102 s */
}

/* While one thread records a graph, others are paced and host memory goes back, and the graph is whole. */
static void *paced_and_tidied(void *unused) {
  for (int i = 0; i < 3; i++) kernel();
  coda_tidy();
  return unused;
}
static void capture(void) {
  void *moved, *stream, *graph;
  pthread_t worker;
  coda_limit(0, 10 * MIB, 100 * MIB);
  CHECK(asked_twice(&moved, 20 * MIB) == 0 && cudaFree(moved) == 0 && stat(0, CODA_KEPT_BYTES) == 20 * MIB);
  coda_limit(0, 10 * MIB, 0);
  coda_pace(0, 500, 1, 0, 0, 1000);
  CHECK(cudaStreamCreate(&stream) == 0 && cudaStreamBeginCapture(stream, 0) == 0);
  pthread_create(&worker, NULL, paced_and_tidied, NULL);
  pthread_join(worker, NULL);
  CHECK(cudaStreamEndCapture(stream, &graph) == 0 && cudaPeekAtLastError() == 0);
  CHECK(stat(0, CODA_KEPT_BYTES) == 0 && stat(0, CODA_BUSY_NS) > 0);
}

static _Atomic int launched;
static void *one_kernel(void *unused) {
  kernel();
  atomic_store(&launched, 1);
  return unused;
}
static void suspended(void) {
  pthread_t worker;
  coda_pace(0, 0, 0, 0, 0, 1000);
  pthread_create(&worker, NULL, one_kernel, NULL);
  nanosleep(&(struct timespec){0, 200000000}, NULL);
  CHECK(!atomic_load(&launched));
  coda_pace(0, 1000, 0, 0, 0, 1000);
  pthread_join(worker, NULL);
  atomic_store(&launched, 0);
  coda_pace(0, 0, 0, 0, 300000000, 1000); /* nobody renews it */
  double began = seconds();
  pthread_create(&worker, NULL, one_kernel, NULL);
  pthread_join(worker, NULL);
  CHECK(seconds() - began > 0.25 && seconds() - began < 5);
}

/* Full speed that nobody renews ends, though no launch was paced until then. */
static void held(void) {
  coda_pace(0, 1000, 1, 0, 300000000, 50);
  CHECK(stat(0, CODA_SHARE_NOW) == 1000);
  for (int i = 0; i < 20; i++) kernel();
  CHECK(stat(0, CODA_IDLE_NS) == 0);
  nanosleep(&(struct timespec){0, 350000000}, NULL);
  CHECK(stat(0, CODA_SHARE_NOW) == 50);
  for (int i = 0; i < 20; i++) kernel();
  CHECK(stat(0, CODA_IDLE_NS) > 0);
  coda_pace(0, 1000, 1, 0, 0, 50); /* for ever: alone, or guaranteed */
  uint64_t before = stat(0, CODA_IDLE_NS);
  for (int i = 0; i < 20; i++) kernel();
  CHECK(stat(0, CODA_IDLE_NS) == before);
}

static void forked(void) {
  void *a;
  coda_limit(0, 10 * MIB, 10 * MIB);
  coda_pace(0, 0, 0, 0, 0, 1000);
  CHECK(cudaMalloc(&a, 5 * MIB) == 0);
  pid_t child = fork();
  if (child == 0) {
    CHECK(stat(0, CODA_DEVICE_BYTES) == 0 && stat(0, CODA_LIMIT_BYTES) == CODA_UNLIMITED && stat(0, CODA_SHARE_NOW) == 1000);
    CHECK(cudaMalloc(&a, 20 * MIB) == 0);
    kernel();
    exit(0);
  }
  int status;
  CHECK(waitpid(child, &status, 0) == child && status == 0);
  CHECK(stat(0, CODA_DEVICE_BYTES) == 5 * MIB);
}

static void host_exhausted(void) {
  void *a;
  coda_limit(0, 0, 100 * MIB); /* CODA_RIG_HOST_BYTES is less: the pod's memory limit */
  CHECK(asked_twice(&a, 20 * MIB) == 2 && stat(0, CODA_HOST_BYTES) == 0);
  CHECK(asked_twice(&a, 5 * MIB) == 0 && stat(0, CODA_HOST_BYTES) == 5 * MIB);
}

static void *fork_soon(void *unused) {
  nanosleep(&(struct timespec){0, 100000000}, NULL);
  if (fork() == 0) sleep(4), _exit(0);
  return unused;
}

/* Twice as a caching allocator asks. What a guest has is taken past the library, which counts this process only. */
static void asks(void) {
  void *at, *runtime = dlopen("libcudart.so", RTLD_NOW | RTLD_NOLOAD);
  CHECK(runtime);
  int (*of_a_guest)(void **, size_t) = (int (*)(void **, size_t))(uintptr_t)dlsym(runtime, "cudaMalloc");
  CHECK(of_a_guest && of_a_guest(&at, 500 * MIB) == 0);
  pthread_t forks;
  pthread_create(&forks, NULL, fork_soon, NULL);
  CHECK(asked_twice(&at, 700 * MIB) == 2);
  CHECK(asked_twice(&at, 700 * MIB) == 2);
  pthread_join(forks, NULL);
}

int main(int count, char **words) {
  const char *what = count > 1 ? words[1] : "";
  if (!strcmp(what, "limits")) limits();
  else if (!strcmp(what, "devices")) devices();
  else if (!strcmp(what, "random")) random_requests();
  else if (!strcmp(what, "threads")) threads();
  else if (!strcmp(what, "suspended")) suspended();
  else if (!strcmp(what, "held")) held();
  else if (!strcmp(what, "forked")) forked();
  else if (!strcmp(what, "host_exhausted")) host_exhausted();
  else if (!strcmp(what, "asks")) asks();
  else if (!strcmp(what, "capture")) capture();
  else if (!strcmp(what, "endless_kernel")) endless_kernel();
  else if (!strcmp(what, "late_endless_kernel")) late_endless_kernel();
  else if (!strcmp(what, "speed")) return speed(atoi(words[2])), 0;
  else return fprintf(stderr, "unknown: %s\n", what), 2;
  puts("ok");
  return 0;
}
