/* A make-believe CUDA runtime. Memory is accounted per GPU over all processes; kernels do nothing but take time, one
   after the other on one timeline per GPU, which all processes share. Copies and memory contents are real.

   CODA_RIG_GPU        the file that holds the GPUs; every process with the same file has the same GPUs
   CODA_RIG_GPUS       how many there are (1)
   CODA_RIG_GPU_BYTES  memory of each (1 GiB); CODA_RIG_HOST_BYTES: pinned memory of this process (no bound)
   CODA_RIG_KERNEL_US  time of one kernel (0)
   The first process that opens the file decides memory and number. */
#define _GNU_SOURCE
#include "runtime.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { SLOTS = 64, QUEUE = 1024, BUCKETS = 4096 };
enum { READY = 0x60DA };

struct gpu {
  u64 busy_until;
  struct { int pid; u64 used, busy; } slots[SLOTS];
};
static struct machine {
  int ready, gpus;
  u64 capacity;
  pthread_mutex_t lock; /* robust: a process may be killed at any moment */
  struct gpu gpu[MOST_GPUS];
} *machine;
static int my_pid, visible[MOST_GPUS], visible_count, slot[MOST_GPUS];
static u64 kernel_ns, host_bytes, most_host_bytes = ~0ull;
static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER, mine = PTHREAD_MUTEX_INITIALIZER;
static __thread int last_error, device;

struct stream { u64 done; int device; };
static struct stream defaults[MOST_GPUS];
static u64 device_done[MOST_GPUS], queued[QUEUE];
static unsigned next_queued;

u64 rig_now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (u64)t.tv_sec * 1000000000ull + (u64)t.tv_nsec;
}
static void sleep_until(u64 at) {
  struct timespec t = {(time_t)(at / 1000000000ull), (long)(at % 1000000000ull)};
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR) {}
}
static u64 number(const char *name, u64 otherwise) {
  const char *text = getenv(name);
  return text && *text ? strtoull(text, NULL, 10) : otherwise;
}
static void lock_machine(void) {
  if (pthread_mutex_lock(&machine->lock) == EOWNERDEAD) pthread_mutex_consistent(&machine->lock);
}
static void unlock_machine(void) { pthread_mutex_unlock(&machine->lock); }

static void make_machine(void) {
  pthread_mutexattr_t kind;
  pthread_mutexattr_init(&kind);
  pthread_mutexattr_setpshared(&kind, PTHREAD_PROCESS_SHARED);
  pthread_mutexattr_setrobust(&kind, PTHREAD_MUTEX_ROBUST);
  pthread_mutex_init(&machine->lock, &kind);
  machine->gpus = (int)number("CODA_RIG_GPUS", 1);
  if (machine->gpus < 1 || machine->gpus > MOST_GPUS) machine->gpus = 1;
  machine->capacity = number("CODA_RIG_GPU_BYTES", 1ull << 30);
  machine->ready = READY;
}
static void leave(void) {
  if (!machine || my_pid != getpid()) return;
  lock_machine();
  for (int i = 0; i < machine->gpus; i++)
    if (slot[i] >= 0) machine->gpu[i].slots[slot[i]].pid = 0, machine->gpu[i].slots[slot[i]].used = 0;
  unlock_machine();
}
static void take_slots(void) {
  lock_machine();
  for (int i = 0; i < machine->gpus; i++) {
    slot[i] = -1;
    for (int k = 0; k < SLOTS; k++) {
      int pid = machine->gpu[i].slots[k].pid;
      if (pid && kill(pid, 0) && errno == ESRCH) machine->gpu[i].slots[k].pid = 0, machine->gpu[i].slots[k].used = 0;
      if (slot[i] < 0 && !machine->gpu[i].slots[k].pid) {
        slot[i] = k;
        machine->gpu[i].slots[k].pid = getpid();
        machine->gpu[i].slots[k].used = machine->gpu[i].slots[k].busy = 0;
      }
    }
    if (slot[i] < 0) fprintf(stderr, "rig: more than %d processes on a GPU\n", SLOTS), _exit(70);
  }
  unlock_machine();
}
static void see_devices(void) {
  const char *text = getenv("CUDA_VISIBLE_DEVICES");
  visible_count = 0;
  if (!text) {
    for (int i = 0; i < machine->gpus; i++) visible[visible_count++] = i;
    return;
  }
  for (char *end; *text; text = *end == ',' ? end + 1 : end) {
    long index = strtol(text, &end, 10);
    if (end == text || index < 0 || index >= machine->gpus || visible_count == MOST_GPUS) break;
    visible[visible_count++] = (int)index;
  }
}
static void start(void) {
  if (__atomic_load_n(&my_pid, __ATOMIC_ACQUIRE) == getpid()) return;
  pthread_mutex_lock(&opening);
  if (my_pid != getpid()) {
    const char *path = getenv("CODA_RIG_GPU");
    int file = path ? open(path, O_RDWR | O_CREAT, 0666) : -1;
    if (file < 0 || flock(file, LOCK_EX) || ftruncate(file, sizeof *machine)) {
      fprintf(stderr, "rig: CODA_RIG_GPU must name a file that can be written\n");
      _exit(70);
    }
    machine = mmap(NULL, sizeof *machine, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (machine->ready != READY) make_machine();
    flock(file, LOCK_UN);
    close(file);
    kernel_ns = (u64)(1000 * number("CODA_RIG_KERNEL_US", 0));
    most_host_bytes = number("CODA_RIG_HOST_BYTES", ~0ull);
    take_slots();
    see_devices();
    atexit(leave);
    __atomic_store_n(&my_pid, getpid(), __ATOMIC_RELEASE);
  }
  pthread_mutex_unlock(&opening);
}
static int gpu_now(void) {
  start();
  return device < visible_count ? visible[device] : 0;
}
u64 rig_capacity(void) {
  start();
  return machine->capacity;
}
int rig_gpu_of(int index) {
  start();
  return index >= 0 && index < visible_count ? visible[index] : -1;
}
static int failed(int error) { return error ? (last_error = error) : 0; }

/* Capture of a graph, in CUDA's default mode: meanwhile every thread that has not said "relaxed" may neither allocate,
   free, wait nor ask (as NCCL's watchdog found out with cudaEventQuery), and whoever does it spoils the capture. */
enum { CAPTURE_UNSUPPORTED = 900, CAPTURE_INVALIDATED = 901, RELAXED = 2 };
static void *captured;
static int is_spoiled;
static __thread int capture_mode;
static int is_unsafe(void) {
  pthread_mutex_lock(&mine);
  int unsafe = captured && capture_mode != RELAXED;
  if (unsafe) is_spoiled = 1;
  pthread_mutex_unlock(&mine);
  return unsafe ? failed(CAPTURE_UNSUPPORTED) : 0;
}
int cudaThreadExchangeStreamCaptureMode(int *mode) { int before = capture_mode; capture_mode = *mode, *mode = before; return 0; }
int cudaStreamBeginCapture(void *s, int mode) { (void)mode; pthread_mutex_lock(&mine); captured = s, is_spoiled = 0; pthread_mutex_unlock(&mine); return 0; }
int cudaStreamEndCapture(void *s, void **graph) { (void)s; pthread_mutex_lock(&mine); captured = NULL; int error = is_spoiled ? CAPTURE_INVALIDATED : 0; pthread_mutex_unlock(&mine); *graph = s; return failed(error); }
int cudaStreamIsCapturing(void *s, int *status) { pthread_mutex_lock(&mine); *status = s && s == captured; pthread_mutex_unlock(&mine); return 0; }

/* Memory */
struct block { void *at; size_t size; int kind, gpu, device; struct block *next; };
static struct block *blocks[BUCKETS];
static struct block **bucket(const void *at) { return &blocks[((uintptr_t)at >> 12) % BUCKETS]; }

static void *new_block(size_t size, int kind) {
  void *at = mmap(NULL, size ? size : 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  struct block *block = malloc(sizeof *block);
  if (at == MAP_FAILED || !block) return NULL;
  *block = (struct block){.at = at, .size = size, .kind = kind, .gpu = gpu_now(), .device = device};
  pthread_mutex_lock(&mine);
  block->next = *bucket(at), *bucket(at) = block;
  pthread_mutex_unlock(&mine);
  return at;
}
static u64 used_on(int gpu) {
  u64 sum = 0;
  for (int k = 0; k < SLOTS; k++) sum += machine->gpu[gpu].slots[k].used;
  return sum;
}
static int drop_block(void *at, int on_device) {
  pthread_mutex_lock(&mine);
  struct block **link = bucket(at);
  while (*link && (*link)->at != at) link = &(*link)->next;
  struct block *block = *link;
  if (!block || (block->kind == ON_DEVICE) != on_device) {
    pthread_mutex_unlock(&mine);
    return failed(INVALID_VALUE);
  }
  *link = block->next;
  if (!on_device) host_bytes -= block->size;
  pthread_mutex_unlock(&mine);
  if (on_device) {
    lock_machine();
    machine->gpu[block->gpu].slots[slot[block->gpu]].used -= block->size;
    unlock_machine();
  }
  munmap(block->at, block->size ? block->size : 1);
  free(block);
  return 0;
}
int rig_kind_of(const void *at, int *on, void **start_of) {
  int kind = NOWHERE;
  pthread_mutex_lock(&mine);
  for (int i = 0; i < BUCKETS && !kind; i++)
    for (struct block *block = blocks[i]; block; block = block->next)
      if ((const char *)at >= (char *)block->at && (const char *)at < (char *)block->at + block->size)
        kind = block->kind, *on = block->device, *start_of = block->at;
  pthread_mutex_unlock(&mine);
  return kind;
}
int cudaDeviceSynchronize(void);
int cudaMalloc(void **at, size_t size) {
  int gpu = gpu_now();
  if (is_unsafe()) return last_error;
  lock_machine();
  int fits = used_on(gpu) + size <= machine->capacity;
  if (fits) machine->gpu[gpu].slots[slot[gpu]].used += size;
  unlock_machine();
  if (!fits) return failed(OUT_OF_MEMORY);
  *at = new_block(size, ON_DEVICE);
  return *at ? 0 : failed(OUT_OF_MEMORY);
}
int cudaFree(void *at) {
  start();
  if (!at) return 0;
  if (is_unsafe()) return last_error;
  cudaDeviceSynchronize();
  return drop_block(at, 1);
}
int cudaHostAlloc(void **at, size_t size, unsigned flags) {
  (void)flags;
  start();
  if (is_unsafe()) return last_error;
  pthread_mutex_lock(&mine);
  int fits = size <= most_host_bytes && host_bytes <= most_host_bytes - size;
  if (fits) host_bytes += size;
  pthread_mutex_unlock(&mine);
  if (!fits) return failed(OUT_OF_MEMORY);
  *at = new_block(size, ON_HOST);
  return *at ? 0 : failed(OUT_OF_MEMORY);
}
int cudaMallocHost(void **at, size_t size) { return cudaHostAlloc(at, size, 0); }
int cudaFreeHost(void *at) { return !at ? 0 : is_unsafe() ? last_error : drop_block(at, 0); }
int cudaMallocAsync(void **at, size_t size, void *stream) { (void)stream; return cudaMalloc(at, size); }
int cudaFreeAsync(void *at, void *stream) { (void)stream; return cudaFree(at); }
int cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes) {
  int gpu = gpu_now();
  lock_machine();
  *total_bytes = machine->capacity, *free_bytes = machine->capacity - used_on(gpu);
  unlock_machine();
  return 0;
}

/* Devices and errors */
int cudaGetDeviceCount(int *count) { start(); *count = visible_count; return visible_count ? 0 : failed(NO_DEVICE); }
int cudaGetDevice(int *now) { *now = device; return 0; }
int cudaSetDevice(int to) { start(); if (to < 0 || to >= visible_count) return failed(INVALID_DEVICE); device = to; return 0; }
int cudaGetLastError(void) { int error = last_error; last_error = 0; return error; }
int cudaPeekAtLastError(void) { return last_error; }
const char *cudaGetErrorString(int error) { return error == OUT_OF_MEMORY ? "out of memory" : error == NOT_READY ? "not ready" : error ? "make-believe error" : "no error"; }
const char *cudaGetErrorName(int error) { return error == OUT_OF_MEMORY ? "cudaErrorMemoryAllocation" : error == NOT_READY ? "cudaErrorNotReady" : error ? "cudaErrorUnknown" : "cudaSuccess"; }

/* Time. A stream's work is done at `done`; at most QUEUE launches wait. */
static struct stream *stream_of(void *handle) { return (uintptr_t)handle <= 2 ? &defaults[device] : handle; }
static int launch(void *handle) {
  int gpu = gpu_now();
  struct stream *stream = stream_of(handle);
  if (!kernel_ns) return 0;
  pthread_mutex_lock(&mine);
  u64 oldest = queued[next_queued % QUEUE], now = rig_now();
  if (oldest > now) {
    pthread_mutex_unlock(&mine);
    sleep_until(oldest);
    pthread_mutex_lock(&mine);
    now = rig_now();
  }
  lock_machine();
  u64 end = machine->gpu[gpu].busy_until;
  if (end < now) end = now;
  if (end < stream->done) end = stream->done;
  machine->gpu[gpu].busy_until = end += kernel_ns;
  machine->gpu[gpu].slots[slot[gpu]].busy += kernel_ns;
  unlock_machine();
  stream->done = queued[next_queued++ % QUEUE] = end;
  if (device_done[device] < end) device_done[device] = end;
  pthread_mutex_unlock(&mine);
  return 0;
}
static u64 done_at(const u64 *when) {
  pthread_mutex_lock(&mine);
  u64 done = *when;
  pthread_mutex_unlock(&mine);
  return done;
}
int cudaLaunchKernel(const void *f, struct three a, struct three b, void **v, size_t n, void *s) { (void)f, (void)a, (void)b, (void)v, (void)n; return launch(s); }
int __cudaLaunchKernel(const void *f, struct three a, struct three b, void **v, size_t n, void *s) { (void)f, (void)a, (void)b, (void)v, (void)n; return launch(s); }
int cudaLaunchCooperativeKernel(const void *f, struct three a, struct three b, void **v, size_t n, void *s) { (void)f, (void)a, (void)b, (void)v, (void)n; return launch(s); }
int cudaLaunchKernelExC(const void *c, const void *f, void **v) { (void)f, (void)v; return launch(*(void *const *)((const char *)c + 32)); }
int cudaGraphLaunch(void *g, void *s) { (void)g; return launch(s); }
static int wait_for(u64 done) { if (done > rig_now()) sleep_until(done); return 0; }
int cudaStreamSynchronize(void *s) { start(); return wait_for(done_at(&stream_of(s)->done)); }
int cudaDeviceSynchronize(void) { start(); return is_unsafe() ? last_error : wait_for(done_at(&device_done[device])); }
int cudaStreamQuery(void *s) { start(); return is_unsafe() ? last_error : done_at(&stream_of(s)->done) > rig_now() ? failed(NOT_READY) : 0; }
int cudaStreamCreateWithPriority(void **s, unsigned f, int p) { (void)f, (void)p; struct stream *made = calloc(1, sizeof *made); made->device = device; *s = made; return 0; }
int cudaStreamCreateWithFlags(void **s, unsigned f) { return cudaStreamCreateWithPriority(s, f, 0); }
int cudaStreamCreate(void **s) { return cudaStreamCreateWithPriority(s, 0, 0); }
int cudaStreamDestroy(void *s) { (void)s; return 0; }
int cudaStreamGetPriority(void *s, int *p) { (void)s; *p = 0; return 0; }
int cudaDeviceGetStreamPriorityRange(int *least, int *greatest) { *least = 0, *greatest = -5; return 0; }
int cudaStreamGetCaptureInfo(void *s, int *status) { (void)s; *status = 0; return 0; }
int cudaStreamGetCaptureInfo_v2(void *s, int *status) { (void)s; *status = 0; return 0; }
int cudaStreamGetCaptureInfo_v3(void *s, int *status) { (void)s; *status = 0; return 0; }
int cudaEventCreateWithFlags(void **e, unsigned f) { (void)f; *e = calloc(1, sizeof(u64)); return 0; }
int cudaEventCreate(void **e) { return cudaEventCreateWithFlags(e, 0); }
int cudaEventDestroy(void *e) { free(e); return 0; }
int cudaEventRecordWithFlags(void *e, void *s, unsigned f) { (void)f; u64 now = rig_now(), done = done_at(&stream_of(s)->done); pthread_mutex_lock(&mine); *(u64 *)e = done > now ? done : now; pthread_mutex_unlock(&mine); return 0; }
int cudaEventRecord(void *e, void *s) { return cudaEventRecordWithFlags(e, s, 0); }
int cudaEventQuery(void *e) { return is_unsafe() ? last_error : done_at(e) > rig_now() ? failed(NOT_READY) : 0; }
int cudaEventSynchronize(void *e) { return wait_for(done_at(e)); }
int cudaEventElapsedTime(float *ms, void *a, void *b) { *ms = (float)(((double)done_at(b) - (double)done_at(a)) / 1e6); return 0; }
int cudaEventElapsedTime_v2(float *ms, void *a, void *b) { return cudaEventElapsedTime(ms, a, b); }
int cudaStreamWaitEvent(void *s, void *e, unsigned f) { (void)f; pthread_mutex_lock(&mine); struct stream *stream = stream_of(s); if (stream->done < *(u64 *)e) stream->done = *(u64 *)e; pthread_mutex_unlock(&mine); return 0; }

/* Copies are real, and take the time of a kernel. */
int cudaMemcpyAsync(void *to, const void *from, size_t size, int kind, void *s) { launch(s); if (kind == TO_HOST) cudaStreamSynchronize(s); memmove(to, from, size); return 0; }
int cudaMemcpy(void *to, const void *from, size_t size, int kind) { return cudaMemcpyAsync(to, from, size, kind, NULL); }
int cudaMemcpyPeerAsync(void *to, int a, const void *from, int b, size_t size, void *s) { (void)a, (void)b; return cudaMemcpyAsync(to, from, size, 3, s); }
int cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t pitch, size_t width, size_t height, int kind, void *s) {
  launch(s);
  if (kind == TO_HOST) cudaStreamSynchronize(s);
  for (size_t i = 0; i < height; i++) memmove((char *)to + i * to_pitch, (const char *)from + i * pitch, width);
  return 0;
}
int cudaMemsetAsync(void *at, int value, size_t size, void *s) { launch(s); memset(at, value, size); return 0; }
int cudaMemset(void *at, int value, size_t size) { return cudaMemsetAsync(at, value, size, NULL); }
