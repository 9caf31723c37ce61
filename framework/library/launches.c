/* Every way to launch kernels that the CUDA runtime has. The _ptsz twins are those of code that was compiled for one
   default stream per thread. */
#include <string.h>

#include "codagpu.h"
#include "pace.h"

enum { STREAM_IN_CONFIG = 32 }; /* cudaLaunchConfig_t: two Dim3, a size, then the stream */

static inline void before_launch(const struct runtime *r, void *stream) {
  atomic_fetch_add_explicit(&launches, 1, memory_order_relaxed);
  if (__builtin_expect(atomic_load_explicit(&paced_devices, memory_order_relaxed) != 0, 0)) pace(r, stream);
}

#define LAUNCH(name)                                                                                      \
  EXPORTED Error name(const void *kernel, Dim3 grid, Dim3 block, void **values, size_t shared, void *stream) { \
    const struct runtime *r = runtime_of(HERE);                                                           \
    if (!r || !r->name) return NO_RUNTIME;                                                                \
    before_launch(r, stream);                                                                             \
    return r->name(kernel, grid, block, values, shared, stream);                                          \
  }
LAUNCH(cudaLaunchKernel)
LAUNCH(cudaLaunchKernel_ptsz)
LAUNCH(__cudaLaunchKernel)
LAUNCH(__cudaLaunchKernel_ptsz)
LAUNCH(cudaLaunchCooperativeKernel)
LAUNCH(cudaLaunchCooperativeKernel_ptsz)

#define LAUNCH_WITH_CONFIG(name)                                                    \
  EXPORTED Error name(const void *config, const void *kernel, void **values) {      \
    const struct runtime *r = runtime_of(HERE);                                     \
    void *stream = NULL;                                                            \
    if (!r || !r->name) return NO_RUNTIME;                                          \
    if (config) memcpy(&stream, (const char *)config + STREAM_IN_CONFIG, sizeof stream); \
    before_launch(r, stream);                                                       \
    return r->name(config, kernel, values);                                         \
  }
LAUNCH_WITH_CONFIG(cudaLaunchKernelExC)
LAUNCH_WITH_CONFIG(cudaLaunchKernelExC_ptsz)

#define LAUNCH_GRAPH(name)                             \
  EXPORTED Error name(void *graph, void *stream) {     \
    const struct runtime *r = runtime_of(HERE);        \
    if (!r || !r->name) return NO_RUNTIME;             \
    before_launch(r, stream);                          \
    return r->name(graph, stream);                     \
  }
LAUNCH_GRAPH(cudaGraphLaunch)
LAUNCH_GRAPH(cudaGraphLaunch_ptsz)

void memory_stats(int device, uint64_t *values);

EXPORTED int coda_version(void) { return CODA_VERSION; }

EXPORTED int coda_stats(int device, uint64_t *values, int count) {
  uint64_t all[CODA_STATS];
  if (device < 0 || device >= CODA_DEVICES || !values || count < 1) return 0;
  memory_stats(device, all);
  pace_stats(device, all);
  count = count < CODA_STATS ? count : CODA_STATS;
  memcpy(values, all, (size_t)count * sizeof *values);
  return count;
}
