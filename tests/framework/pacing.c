/* The pacing of libcodagpu in virtual time: its own source, over a clock, a GPU and a program of our making.

   `pacing PROGRAM BUSY EVENT...` says how fast the program runs in each segment, in mini-batches per second. BUSY is the
   part of the time in which a neighbour runs and halves the GPU's speed, in thousandths. An event is SHARE:SECONDS (a
   segment at that share; `-` before it: nothing is said of it), SHARE:SECONDS:MORE (after these seconds nobody renews
   the order, and MORE at 5 % are a segment, too), `slower` (all kernels take three times as long from now on) or
   `stall` (the host does nothing for 60 s, with an idle GPU). */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static double now_s;

static int virtual_clock(int clock, struct timespec *t) {
  (void)clock;
  t->tv_sec = (time_t)now_s, t->tv_nsec = (long)((now_s - (double)t->tv_sec) * 1e9);
  return 0;
}

static int virtual_sleep(const struct timespec *t, struct timespec *left) {
  (void)left;
  now_s += (double)t->tv_sec + (double)t->tv_nsec / 1e9 + 50e-6; /* the kernel's timer slack */
  return 0;
}

#define clock_gettime virtual_clock
#define nanosleep virtual_sleep
#include "pace.c"

enum { MOST_KERNELS = 20000, QUEUE = 1000 };
enum waits { NEVER, EACH_KERNEL, EACH_BATCH }; /* when the program waits for the GPU */

static const struct program {
  const char *name;
  int kernels;            /* in a mini-batch */
  double us, sigma;       /* of a kernel: the mean, and the spread in the logarithm */
  int phases;             /* equal parts of a mini-batch, by turns three times as dear and a third as dear */
  double launch_us;       /* of the host, for each kernel */
  double host_ms;         /* of the host, between two mini-batches */
  enum waits waits;
} programs[] = {
  {"even", 300, 200, 0.1, 1, 4, 0, NEVER},
  {"transformer", 2600, 60, 1.4, 1, 5, 0, NEVER},
  {"resnet", 550, 180, 1.2, 1, 6, 0, EACH_BATCH},
  {"lstm", 3000, 9, 0.5, 1, 7, 0, NEVER},
  {"phases", 9000, 25, 1.0, 6, 5, 0, NEVER},
  {"spread", 260, 900, 1.9, 1, 8, 0, EACH_BATCH},
  {"large", 16000, 70, 1.1, 4, 5, 0, EACH_BATCH},
  {"long", 6, 400000, 0.3, 1, 10, 0, EACH_KERNEL},
  {"queued", 18, 180000, 0.3, 1, 10, 0, NEVER},
  {"loader", 500, 120, 1.2, 1, 6, 60, EACH_BATCH},
  {"starved", 500, 120, 1.2, 1, 6, 600, EACH_BATCH},
};

static const struct program *program;
static double cost_us[MOST_KERNELS], times_dear = 1, busy;
static double ends_s[QUEUE]; /* of the last kernels that were launched */
static unsigned long launched;

static double uniform(void) {
  static uint64_t state = 88172645463325252ull;
  state ^= state << 13, state ^= state >> 7, state ^= state << 17;
  return ((double)(state >> 11) + 0.5) / 9007199254740992.0;
}
static double normal(void) { return sqrt(-2 * log(uniform())) * cos(6.283185307179586 * uniform()); }

static double last_end_s(void) { return launched ? ends_s[(launched - 1) % QUEUE] : 0; }

/* When `work_s` are done that begin now. The neighbour runs at the start of each 40 ms. */
static double end_of(double at_s, double work_s) {
  const double period = 0.04;
  while (work_s > 0) {
    double into = fmod(at_s, period), beside = into < busy * period, until = beside ? busy * period : period;
    double step = until - into, done = beside ? step / 2 : step;
    if (step < 1e-9) step = done = 1e-9;
    if (done >= work_s) return at_s + (beside ? 2 * work_s : work_s);
    at_s += step, work_s -= done;
  }
  return at_s;
}

static int stream_query(void *stream) { (void)stream; return now_s >= last_end_s() ? SUCCESS : NOT_READY; }
static int no_error(void) { return SUCCESS; }
static int not_capturing(void *stream, int *capturing) { (void)stream; *capturing = 0; return SUCCESS; }
int device_now(const struct runtime *r) { (void)r; return 0; }
int begin_unspoiling(const struct runtime *r) { (void)r; return 0; }
void end_unspoiling(const struct runtime *r, int mode) { (void)r, (void)mode; }

static const struct runtime runtime = {
  .cudaStreamQuery = stream_query, .cudaGetLastError = no_error, .cudaPeekAtLastError = no_error,
  .cudaStreamIsCapturing = not_capturing,
};

static void wait_for(double end_s) { now_s = now_s > end_s ? now_s : end_s; }

static void launch(int kernel) {
  if (atomic_load(&paced_devices)) pace(&runtime, NULL);
  now_s += program->launch_us / 1e6;
  if (launched >= QUEUE) wait_for(ends_s[launched % QUEUE]);
  double from_s = last_end_s() > now_s ? last_end_s() : now_s;
  ends_s[launched++ % QUEUE] = end_of(from_s, times_dear * cost_us[kernel] * (0.9 + 0.2 * uniform()) / 1e6);
  if (program->waits == EACH_KERNEL || (program->waits == EACH_BATCH && kernel == program->kernels - 1))
    wait_for(last_end_s());
}

static void choose_costs(void) {
  double sum = 0;
  for (int i = 0; i < program->kernels; i++) {
    int phase = program->phases > 1 ? i * program->phases / program->kernels : -1;
    cost_us[i] = exp(program->sigma * normal()) * (phase < 0 ? 1 : phase % 2 ? 3 : 1 / 3.0);
    sum += cost_us[i];
  }
  for (int i = 0; i < program->kernels; i++) cost_us[i] *= program->us * program->kernels / sum;
}

/* Returns mini-batches per second. */
static double run_for(double seconds) {
  static int next; /* a segment may end within a mini-batch */
  double from_s = now_s, kernels = 0;
  while (now_s - from_s < seconds) {
    launch(next);
    kernels++, next = (next + 1) % program->kernels;
    if (next == 0) now_s += program->host_ms / 1e3;
  }
  wait_for(last_end_s());
  return kernels / program->kernels / (now_s - from_s);
}

int main(int count, char **words) {
  for (unsigned i = 0; count > 2 && i < sizeof programs / sizeof *programs; i++)
    if (!strcmp(words[1], programs[i].name)) program = &programs[i];
  if (!program) return fprintf(stderr, "pacing PROGRAM BUSY EVENT...\n"), 2;
  now_s = 1, busy = atof(words[2]) / 1000;
  choose_costs();
  for (int i = 3; i < count; i++) {
    double seconds = 0, more = 0;
    int hidden = words[i][0] == '-', share = 0;
    if (!strcmp(words[i], "slower")) times_dear = 3;
    else if (!strcmp(words[i], "stall")) now_s += 60;
    else if (sscanf(words[i] + hidden, "%d:%lf:%lf", &share, &seconds, &more) < 2)
      return fprintf(stderr, "%s?\n", words[i]), 2;
    if (seconds == 0) continue;
    coda_pace(0, share, 0, 5000000, more > 0 ? (uint64_t)(1e9 * seconds) : 0, more > 0 ? 50 : 1000);
    double speed = run_for(seconds);
    if (!hidden) printf("%.6f\n", speed);
    if (more > 0) printf("%.6f\n", run_for(more));
  }
  return 0;
}
