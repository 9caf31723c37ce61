/* Runs a chunk of kernels, waits until it is done, and leaves the GPU alone in proportion.

   The wait is essential: launches are asynchronous, and a pause without it is filled by work that is already queued.
   The pause is measured by what the chunk takes alone: waiting behind a neighbour must not count as own work. Kernels
   differ a hundredfold, so that is known of blocks of whole mini-batches only: see `own_ns`. The pause varies by a
   quarter, so that two jobs do not lock in phase. */
#define _GNU_SOURCE
#include "pace.h"

#include <pthread.h>
#include <time.h>

#include "codagpu.h"

enum { BLOCKS = 4, MOST_LAUNCHES = 256, NEW_CHUNKS = 4, MOST_DOUBLINGS = 4 };
#define SLICE_NS 5000000ull          /* a longer pause looks in between whether the share has changed */
#define POLL_NS 50000ull             /* between two looks whether a chunk is done */
#define LEAST_WAIT_NS 100000000ull   /* for a chunk, and 8 times what it takes alone */
#define MOST_WAIT_NS 1600000000ull   /* each wait in vain doubles the next: the kernels may be that long */
#define FIRST_BLOCK_NS 50000000ull   /* of own work; each block is twice the one before, */
#define LAST_BLOCK_NS 1000000000ull  /* up to this: a few mini-batches of most programs */
#define MOST_APART 4.0               /* what a chunk is charged at most, against what it took */
#define FIRST_PAUSE_NS 100000000ull  /* the first chunks hold the loading of kernels, which is no work */

static struct pace {
  pthread_mutex_t lock; /* one budget for all threads that launch on this device */
  _Atomic int share, share_after, launches;
  _Atomic uint64_t chunk_ns, until_ns;
  _Atomic uint64_t busy_ns, idle_ns, stalls;
  _Atomic int begins; /* at full share nothing is counted, so what was counted before is old */
  unsigned count, chunk, chunks, seed;
  unsigned unpaced, in_vain; /* launches that nobody waits for, after so many times that no patience was enough */
  uint64_t since_ns, patience_ns;
  uint64_t block_took_ns, block_launches, block_ns; /* the block that is measured, and where it ends */
  double each_ns[BLOCKS];                           /* per launch, of the last blocks */
  unsigned blocks;                                  /* how many there have been */
} paces[CODA_DEVICES];
_Atomic uint64_t launches;
_Atomic int paced_devices;

static uint64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

static void rest(uint64_t ns) {
  struct timespec t = {(time_t)(ns / 1000000000ull), (long)(ns % 1000000000ull)};
  nanosleep(&t, NULL);
}

static int share_of(const struct pace *p) {
  uint64_t until = atomic_load(&p->until_ns);
  return until && now_ns() >= until ? atomic_load(&p->share_after) : atomic_load(&p->share);
}

/* Also while at full speed, if that ends by itself: then only launches that look at the clock notice. */
static int is_ever_paced(const struct pace *p) {
  return atomic_load(&p->share) < CODA_FULL_SHARE ||
         (atomic_load(&p->until_ns) && atomic_load(&p->share_after) < CODA_FULL_SHARE);
}

/* True once all work on the stream is done; false if that takes too long: a kernel may wait for one that is launched
   later, even by this thread, and then we must not. The runtime remembers NOT_READY, which nobody else may see. */
static int is_done(const struct runtime *r, void *stream, uint64_t patience_ns) {
  uint64_t end = now_ns() + patience_ns;
  for (;;) {
    int mode = begin_unspoiling(r);
    Error error = r->cudaStreamQuery(stream);
    end_unspoiling(r, mode);
    if (error != NOT_READY) return error == SUCCESS;
    r->cudaGetLastError();
    if (now_ns() >= end) return 0;
    rest(POLL_NS);
  }
}

/* What a launch takes alone, on average: the least of the last blocks, since a neighbour only makes them slower, and the
   host's own work only longer. Until one has ended: that of the one that is measured. 0: not known yet. */
static double usual_ns(const struct pace *p) {
  if (p->blocks == 0) return p->block_launches ? (double)p->block_took_ns / (double)p->block_launches : 0;
  double least = p->each_ns[0];
  for (unsigned i = 1; i < BLOCKS && i < p->blocks; i++)
    if (p->each_ns[i] < least) least = p->each_ns[i];
  return least;
}

static void measure(struct pace *p, uint64_t took_ns) {
  p->block_took_ns += took_ns, p->block_launches += p->count;
  if (p->block_took_ns < p->block_ns) return;
  p->each_ns[p->blocks++ % BLOCKS] = (double)p->block_took_ns / (double)p->block_launches;
  if (p->blocks == 2 * BLOCKS) p->blocks = BLOCKS; /* it does not overflow */
  p->block_took_ns = p->block_launches = 0;
  p->block_ns = 2 * p->block_ns < LAST_BLOCK_NS ? 2 * p->block_ns : LAST_BLOCK_NS;
}

/* Returns what the chunk would have taken alone: so many usual launches. One that took much longer is charged no more:
   the host may have had other work for minutes, with an idle GPU. One that was much shorter is another program, or the
   first blocks held the loading of kernels. A chunk is empty if the job is suspended at its first kernel. */
static double own_ns(struct pace *p, uint64_t took_ns) {
  if (p->count == 0) return 0;
  double took = (double)took_ns, usual = p->blocks ? usual_ns(p) * p->count : took;
  double most = p->blocks ? MOST_APART * took : FIRST_BLOCK_NS;
  if (p->chunks >= NEW_CHUNKS) measure(p, took_ns);
  return usual < most ? usual : most;
}

static void leave_alone(struct pace *p, double own) {
  double jitter = 0.75 + 0.5 * ((p->seed = p->seed * 1103515245u + 12345u) >> 16) / 65536.0;
  for (uint64_t began = now_ns();;) {
    int share = share_of(p);
    uint64_t elapsed = now_ns() - began;
    double pause = share > 0 ? jitter * own * (CODA_FULL_SHARE - share) / share : 1e18;
    if (share > 0 && p->chunks < NEW_CHUNKS && pause > FIRST_PAUSE_NS) pause = FIRST_PAUSE_NS;
    if (!((double)elapsed < pause)) return;
    double left = pause - (double)elapsed;
    rest(left < SLICE_NS ? (uint64_t)left : SLICE_NS);
  }
}

static void choose_chunk(struct pace *p) {
  int fixed = atomic_load(&p->launches);
  double usual = usual_ns(p), fitting = usual > 0 ? (double)atomic_load(&p->chunk_ns) / usual : 1;
  double wanted = fixed > 0 ? fixed : fitting < 2.0 * p->chunk ? fitting : 2.0 * p->chunk;
  p->chunk = wanted < 1 ? 1 : wanted > MOST_LAUNCHES ? MOST_LAUNCHES : (unsigned)wanted;
}

/* Each wait in vain costs the job what it lasts. So where even the longest is in vain, kernels go unpaced for a while,
   and for longer each time: they seem to wait for later ones. A suspended job has no hurry. */
static void lose_patience(struct pace *p, int share) {
  atomic_fetch_add(&p->stalls, 1);
  if (p->patience_ns < MOST_WAIT_NS) {
    p->patience_ns *= 2;
  } else if (share > 0) {
    p->patience_ns = LEAST_WAIT_NS;
    p->unpaced = MOST_LAUNCHES << (p->in_vain < MOST_DOUBLINGS ? p->in_vain++ : MOST_DOUBLINGS);
  }
}

static void end_chunk(struct pace *p, const struct runtime *r, void *stream, int share) {
  uint64_t usual = (uint64_t)(8 * usual_ns(p) * p->count);
  if (is_done(r, stream, usual > p->patience_ns ? usual : p->patience_ns)) {
    uint64_t done = now_ns();
    leave_alone(p, own_ns(p, done - p->since_ns));
    atomic_fetch_add(&p->busy_ns, done - p->since_ns);
    atomic_fetch_add(&p->idle_ns, now_ns() - done);
    p->chunks++, p->patience_ns = LEAST_WAIT_NS, p->in_vain = 0;
  } else {
    lose_patience(p, share);
  }
  choose_chunk(p);
  p->count = 0;
  p->since_ns = now_ns();
}

void pace(const struct runtime *r, void *stream) {
  int device = device_now(r), capturing = 0;
  if (device < 0 || device >= CODA_DEVICES) return;
  struct pace *p = &paces[device];
  int share = share_of(p);
  if (share >= CODA_FULL_SHARE) { /* its hold may end by itself */
    atomic_store_explicit(&p->begins, 1, memory_order_relaxed);
    return;
  }
  if (!r->cudaStreamQuery || !r->cudaGetLastError || !r->cudaPeekAtLastError) return;
  if (r->cudaPeekAtLastError() != SUCCESS) return; /* something failed already: the program is to find it */
  if (!r->cudaStreamIsCapturing) return;
  if (r->cudaStreamIsCapturing(stream, &capturing) != SUCCESS) { /* the legacy stream, beside a capture */
    r->cudaGetLastError();
    return;
  }
  if (capturing) return; /* a graph that is recorded must not be waited for */
  pthread_mutex_lock(&p->lock);
  if (p->chunk == 0) choose_chunk(p);
  if (atomic_exchange(&p->begins, 0) || p->since_ns == 0) p->count = 0, p->since_ns = now_ns();
  if (share > 0 && p->unpaced > 0) p->unpaced--, p->count = 0, p->since_ns = now_ns(); /* of no chunk: never paid for */
  else if (share == 0 || p->count >= p->chunk) end_chunk(p, r, stream, share);
  p->count++;
  pthread_mutex_unlock(&p->lock);
}

EXPORTED void coda_pace(int device, int share, int launch_count, uint64_t chunk_ns, uint64_t hold_ns, int share_after) {
  share = share < 0 ? 0 : share > CODA_FULL_SHARE ? CODA_FULL_SHARE : share;
  share_after = share_after < 1 ? 1 : share_after > CODA_FULL_SHARE ? CODA_FULL_SHARE : share_after;
  int paced = 0;
  for (int i = 0; i < CODA_DEVICES; i++) {
    if (device == CODA_ALL_DEVICES || device == i) {
      struct pace *p = &paces[i];
      if (share_of(p) >= CODA_FULL_SHARE) atomic_store(&p->begins, 1);
      atomic_store(&p->until_ns, 0);
      atomic_store(&p->share, share);
      atomic_store(&p->share_after, share_after);
      atomic_store(&p->launches, launch_count < 0 ? 0 : launch_count);
      atomic_store(&p->chunk_ns, chunk_ns ? chunk_ns : SLICE_NS);
      atomic_store(&p->until_ns, hold_ns ? now_ns() + hold_ns : 0);
    }
    paced += is_ever_paced(&paces[i]);
  }
  atomic_store(&paced_devices, paced);
}

void pace_stats(int device, uint64_t *values) {
  const struct pace *p = &paces[device];
  values[CODA_BUSY_NS] = atomic_load(&p->busy_ns);
  values[CODA_IDLE_NS] = atomic_load(&p->idle_ns);
  values[CODA_STALLS] = atomic_load(&p->stalls);
  values[CODA_SHARE_NOW] = (uint64_t)share_of(p);
  values[CODA_LAUNCHES] = atomic_load(&launches);
}

static void start(void) {
  for (int i = 0; i < CODA_DEVICES; i++) {
    struct pace *p = &paces[i];
    pthread_mutex_init(&p->lock, NULL);
    p->count = p->chunk = p->chunks = 0, p->seed = (unsigned)i + 1, p->since_ns = 0;
    p->blocks = 0, p->block_took_ns = p->block_launches = 0, p->block_ns = FIRST_BLOCK_NS;
    p->unpaced = p->in_vain = 0, p->patience_ns = LEAST_WAIT_NS;
    atomic_store(&p->share, CODA_FULL_SHARE);
    atomic_store(&p->until_ns, 0);
  }
  atomic_store(&paced_devices, 0);
}

__attribute__((constructor)) static void begin(void) {
  start();
  pthread_atfork(NULL, NULL, start);
}
