/* What the Python half calls (ctypes). Any thread may call any of them at any time; none of them waits for the GPU,
   except coda_tidy. Sizes are in bytes, times in nanoseconds; a share is in thousandths of the speed alone. */
#ifndef CODAGPU_H
#define CODAGPU_H
#include <stdint.h>

#define CODA_VERSION 1
#define CODA_UNLIMITED UINT64_MAX
#define CODA_ALL_DEVICES (-1)
#define CODA_FULL_SHARE 1000
#define CODA_DEVICES 64 /* devices of one process that are counted; further ones are neither limited nor paced */

enum coda_stat {
  CODA_DEVICE_BYTES,
  CODA_HOST_BYTES,    /* of live segments */
  CODA_KEPT_BYTES,    /* of freed host segments that wait to be used again */
  CODA_LIMIT_BYTES,   /* CODA_UNLIMITED: none */
  CODA_RESERVE_BYTES, /* host memory that may be used */
  CODA_REFUSALS,      /* requests that found no device memory */
  CODA_MOVED,         /* of these, how many got host memory */
  CODA_BUSY_NS,       /* of paced chunks */
  CODA_IDLE_NS,       /* of pauses */
  CODA_STALLS,        /* chunks that did not end in time; no pause followed */
  CODA_SHARE_NOW,     /* what is in force */
  CODA_LAUNCHES,      /* of the process, on all devices */
  CODA_STATS
};

int coda_version(void);

/* The device memory that the process may have from its next segment on, and the pinned host memory behind it.
   Nothing is freed. CODA_HOST_RESERVE in the environment is the most host memory there ever is, for each device. */
void coda_limit(int device, uint64_t device_bytes, uint64_t host_bytes);

/* The speed: `launches` kernels (0: as many as last about `chunk_ns`), then a pause; share 0 suspends, 1000 paces not.
   `hold_ns` after this call `share_after` takes its place, so that a dead coordinator leaves nobody suspended; 0: never. */
void coda_pace(int device, int share, int launches, uint64_t chunk_ns, uint64_t hold_ns, int share_after);

/* Fills at most `count` values in the order of coda_stat; returns how many. A device out of range: 0. */
int coda_stats(int device, uint64_t *values, int count);

/* Gives back host segments that nobody has used for a minute, or that a lower reserve has no place for. May wait for
   the GPU. */
void coda_tidy(void);
#endif
