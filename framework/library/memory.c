/* Device memory up to a limit that may change at any moment; beyond it pinned host memory.

   The first refusal makes a framework's caching allocator give its free segments back and ask again for the same size;
   only the second one goes to the host. So host memory is the backup, never the first choice (AntMan, OSDI 2020). */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>

#include "asking.h"
#include "codagpu.h"
#include "runtime.h"

enum { BUCKETS = 4096 };
#define KEEP_NS 60000000000ull /* pinning a GiB takes about 0.3 s, and limits change at most once a minute */

struct segment {
  void *at;
  size_t size;
  int device, on_host;
  uint64_t freed_ns;
  struct segment *next;
};

static struct memory {
  uint64_t limit, reserve, device_bytes, host_bytes, kept_bytes, refusals, moved;
  struct segment *kept; /* free host segments, the newest first */
} memories[CODA_DEVICES];
static struct segment *live[BUCKETS];
static uint64_t most_reserve = CODA_UNLIMITED;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* never held while CUDA is called */
static __thread size_t refused; /* by this thread's last request */
static __thread int refused_on;

static uint64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

static struct segment **bucket(const void *at) { return &live[((uintptr_t)at >> 9) * 0x9E3779B97F4A7C15ull >> 52]; }

static void add_live(struct segment *segment) {
  struct segment **first = bucket(segment->at);
  segment->next = *first;
  *first = segment;
}

static struct segment *take_live(const void *at) {
  for (struct segment **link = bucket(at); *link; link = &(*link)->next)
    if ((*link)->at == at) {
      struct segment *segment = *link;
      *link = segment->next;
      return segment;
    }
  return NULL;
}

/* Frees a list of host segments. Each on its device: another one would get a context from it. */
static void free_on_host(const struct runtime *r, struct segment *list) {
  if (!list) return;
  int before = device_now(r), mode = begin_unspoiling(r);
  while (list) {
    struct segment *next = list->next;
    if (list->device != device_now(r)) r->cudaSetDevice(list->device);
    r->cudaFreeHost(list->at);
    free(list);
    list = next;
  }
  if (before >= 0 && before != device_now(r)) r->cudaSetDevice(before);
  end_unspoiling(r, mode);
}

/* Takes kept segments out: those freed before `before_ns`, and the oldest until at most `most` bytes are left. */
static struct segment *take_kept(struct memory *m, uint64_t before_ns, uint64_t most) {
  uint64_t bytes = 0;
  struct segment **link = &m->kept;
  while (*link && (*link)->freed_ns >= before_ns && bytes + (*link)->size <= most) {
    bytes += (*link)->size;
    link = &(*link)->next;
  }
  struct segment *rest = *link;
  *link = NULL;
  m->kept_bytes = bytes;
  return rest;
}

static struct segment *take_fitting(struct memory *m, size_t size, uint64_t most) {
  for (struct segment **link = &m->kept; *link; link = &(*link)->next)
    if ((*link)->size >= size && (*link)->size - size <= size / 8 && (*link)->size <= most) {
      struct segment *segment = *link;
      *link = segment->next;
      m->kept_bytes -= segment->size;
      return segment;
    }
  return NULL;
}

/* A host segment for the second request; NULL if the reserve or the machine has none left. */
static struct segment *segment_on_host(const struct runtime *r, struct memory *m, int device, size_t size) {
  pthread_mutex_lock(&lock);
  uint64_t left = m->reserve > m->host_bytes ? m->reserve - m->host_bytes : 0;
  struct segment *segment = take_fitting(m, size, left), *surplus = NULL;
  if (segment) {
    m->host_bytes += segment->size;
  } else if (size <= left) {
    surplus = take_kept(m, 0, left - size);
    m->host_bytes += size;
  }
  pthread_mutex_unlock(&lock);
  if (!segment && size > left) return NULL;
  free_on_host(r, surplus);
  if (segment) return segment;
  segment = malloc(sizeof *segment);
  if (segment && r->cudaHostAlloc(&segment->at, size, MAPPED | PORTABLE) == SUCCESS) {
    segment->size = size, segment->device = device, segment->on_host = 1;
    return segment;
  }
  free(segment);
  r->cudaGetLastError();
  pthread_mutex_lock(&lock);
  m->host_bytes -= size;
  pthread_mutex_unlock(&lock);
  return NULL;
}

static Error allocate_on_device(const struct runtime *r, struct memory *m, int device, void **at, size_t size) {
  struct segment *segment = malloc(sizeof *segment);
  if (!segment) return OUT_OF_MEMORY;
  pthread_mutex_lock(&lock);
  int fits = size <= m->limit && m->device_bytes <= m->limit - size;
  if (fits) m->device_bytes += size; /* before the call, so that two threads do not pass the limit together */
  pthread_mutex_unlock(&lock);
  Error error = fits ? r->cudaMalloc(at, size) : OUT_OF_MEMORY;
  pthread_mutex_lock(&lock);
  if (error == SUCCESS) {
    *segment = (struct segment){.at = *at, .size = size, .device = device};
    add_live(segment);
  } else if (fits) {
    m->device_bytes -= size;
  }
  pthread_mutex_unlock(&lock);
  if (error != SUCCESS) free(segment);
  return error;
}

/* Tries again as long as guests of this GPU leave. Only for a job that nobody limits, and that fits the card alone.
   `asked`: somebody was asked. */
static Error allocate_later(const struct runtime *r, struct memory *m, int device, void **at, size_t size, int *asked) {
  size_t free_bytes, total = 0;
  char pci[32] = "";
  struct asking asking;
  if (!r->cudaMemGetInfo || r->cudaMemGetInfo(&free_bytes, &total) != SUCCESS) return OUT_OF_MEMORY;
  pthread_mutex_lock(&lock);
  int fits = m->limit == CODA_UNLIMITED && m->device_bytes <= total && size <= total - m->device_bytes;
  pthread_mutex_unlock(&lock);
  if (r->cudaDeviceGetPCIBusId && r->cudaDeviceGetPCIBusId(pci, sizeof pci, device) != SUCCESS) pci[0] = 0;
  if (!fits || !begin_asking(&asking, pci, size)) return OUT_OF_MEMORY;
  *asked = 1;
  Error error;
  int goes_on;
  do {
    goes_on = keep_asking(&asking);
    error = allocate_on_device(r, m, device, at, size);
  } while (error == OUT_OF_MEMORY && goes_on);
  end_asking(&asking, error == SUCCESS);
  return error;
}

EXPORTED Error cudaMalloc(void **at, size_t size) {
  const struct runtime *r = runtime_of(HERE);
  if (!r || !r->cudaMalloc) return NO_RUNTIME;
  int device = device_now(r);
  if (!at || size == 0 || device < 0 || device >= CODA_DEVICES) return r->cudaMalloc(at, size);
  struct memory *m = &memories[device];
  Error error = allocate_on_device(r, m, device, at, size);
  if (error != OUT_OF_MEMORY) {
    refused = 0;
    return error;
  }
  int again = refused == size && refused_on == device && r->cudaHostAlloc && r->cudaFreeHost && r->cudaGetLastError;
  struct segment *segment = again ? segment_on_host(r, m, device, size) : NULL;
  int asked = 0;
  if (again && !segment && (error = allocate_later(r, m, device, at, size, &asked)) != OUT_OF_MEMORY) {
    refused = 0;
    if (error == SUCCESS) r->cudaGetLastError();
    return error;
  }
  pthread_mutex_lock(&lock);
  if (segment) {
    add_live(segment);
    m->moved++;
  } else {
    m->refusals++;
  }
  pthread_mutex_unlock(&lock);
  refused = segment || asked ? 0 : size; /* once asked in vain, the caller first gives its own cache back again */
  refused_on = device;
  if (!segment) return OUT_OF_MEMORY;
  r->cudaGetLastError(); /* the runtime remembers its own refusal, and the caller's next check would raise it */
  *at = segment->at;
  return SUCCESS;
}

/* cudaFree waits for the device, and callers rely on it: a kernel may still use the segment. */
static Error keep(const struct runtime *r, struct segment *segment) {
  int before = device_now(r);
  if (before != segment->device) r->cudaSetDevice(segment->device);
  Error error = r->cudaDeviceSynchronize();
  if (before >= 0 && before != segment->device) r->cudaSetDevice(before);
  struct memory *m = &memories[segment->device];
  pthread_mutex_lock(&lock);
  segment->freed_ns = now_ns();
  segment->next = m->kept;
  m->kept = segment;
  m->host_bytes -= segment->size;
  m->kept_bytes += segment->size;
  pthread_mutex_unlock(&lock);
  return error;
}

EXPORTED Error cudaFree(void *at) {
  const struct runtime *r = runtime_of(HERE);
  if (!r || !r->cudaFree) return NO_RUNTIME;
  pthread_mutex_lock(&lock);
  struct segment *segment = at ? take_live(at) : NULL;
  pthread_mutex_unlock(&lock);
  if (!segment) return r->cudaFree(at);
  if (segment->on_host) return keep(r, segment);
  Error error = r->cudaFree(at);
  pthread_mutex_lock(&lock);
  if (error == SUCCESS)
    memories[segment->device].device_bytes -= segment->size;
  else
    add_live(segment);
  pthread_mutex_unlock(&lock);
  if (error == SUCCESS) free(segment);
  return error;
}

EXPORTED Error cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes) {
  const struct runtime *r = runtime_of(HERE);
  if (!r || !r->cudaMemGetInfo) return NO_RUNTIME;
  Error error = r->cudaMemGetInfo(free_bytes, total_bytes);
  int device = device_now(r);
  if (error != SUCCESS || !free_bytes || device < 0 || device >= CODA_DEVICES) return error;
  pthread_mutex_lock(&lock);
  struct memory *m = &memories[device];
  uint64_t left = m->limit > m->device_bytes ? m->limit - m->device_bytes : 0;
  pthread_mutex_unlock(&lock);
  if (left < *free_bytes) *free_bytes = (size_t)left; /* scripts choose their batch by it */
  return SUCCESS;
}

EXPORTED Error cudaDeviceReset(void) {
  const struct runtime *r = runtime_of(HERE);
  if (!r || !r->cudaDeviceReset) return NO_RUNTIME;
  int device = device_now(r);
  Error error = r->cudaDeviceReset();
  if (error != SUCCESS || device < 0 || device >= CODA_DEVICES) return error;
  pthread_mutex_lock(&lock);
  for (int i = 0; i < BUCKETS; i++)
    for (struct segment **link = &live[i]; *link;) {
      struct segment *segment = *link;
      if (segment->device != device) {
        link = &segment->next;
        continue;
      }
      *link = segment->next;
      free(segment);
    }
  take_kept(&memories[device], UINT64_MAX, 0); /* freed with the device; its few bytes of ours are not */
  memories[device].device_bytes = memories[device].host_bytes = 0;
  pthread_mutex_unlock(&lock);
  return SUCCESS;
}

EXPORTED void coda_limit(int device, uint64_t device_bytes, uint64_t host_bytes) {
  pthread_mutex_lock(&lock);
  for (int i = 0; i < CODA_DEVICES; i++)
    if (device == CODA_ALL_DEVICES || device == i) {
      memories[i].limit = device_bytes;
      memories[i].reserve = host_bytes < most_reserve ? host_bytes : most_reserve;
    }
  pthread_mutex_unlock(&lock);
}

EXPORTED void coda_tidy(void) {
  const struct runtime *r = first_runtime();
  uint64_t now = now_ns();
  for (int i = 0; r && i < CODA_DEVICES; i++) {
    pthread_mutex_lock(&lock);
    struct memory *m = &memories[i];
    uint64_t most = m->reserve > m->host_bytes ? m->reserve - m->host_bytes : 0;
    struct segment *old = take_kept(m, now > KEEP_NS ? now - KEEP_NS : 0, most);
    pthread_mutex_unlock(&lock);
    free_on_host(r, old);
  }
}

void memory_stats(int device, uint64_t *values) {
  pthread_mutex_lock(&lock);
  struct memory *m = &memories[device];
  values[CODA_DEVICE_BYTES] = m->device_bytes;
  values[CODA_HOST_BYTES] = m->host_bytes;
  values[CODA_KEPT_BYTES] = m->kept_bytes;
  values[CODA_LIMIT_BYTES] = m->limit;
  values[CODA_RESERVE_BYTES] = m->reserve;
  values[CODA_REFUSALS] = m->refusals;
  values[CODA_MOVED] = m->moved;
  pthread_mutex_unlock(&lock);
}

static void start(void) {
  const char *text = getenv("CODA_HOST_RESERVE");
  char *end;
  unsigned long long bytes = text ? strtoull(text, &end, 10) : 0;
  int given = text && end != text && *end == 0;
  most_reserve = given ? bytes : CODA_UNLIMITED;
  for (int i = 0; i < CODA_DEVICES; i++)
    memories[i] = (struct memory){.limit = CODA_UNLIMITED, .reserve = given ? bytes : 0};
}

/* A forked child has no CUDA of its parent's, and so none of its memory. */
static void in_child(void) {
  pthread_mutex_init(&lock, NULL);
  for (int i = 0; i < BUCKETS; i++) live[i] = NULL;
  start();
}

__attribute__((constructor)) static void begin(void) {
  start();
  pthread_atfork(NULL, NULL, in_child);
}
