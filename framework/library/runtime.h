/* The CUDA runtime that a caller would have reached without us. */
#ifndef CODA_RUNTIME_H
#define CODA_RUNTIME_H
#include <stddef.h>

/* The few names of CUDA's binary interface that are needed; they are the same in CUDA 11, 12 and 13. */
typedef int Error; /* cudaError_t */
typedef struct {
  unsigned x, y, z;
} Dim3;
enum { SUCCESS = 0, OUT_OF_MEMORY = 2, NO_RUNTIME = 3, NOT_READY = 600, NOT_SUPPORTED = 801 };
enum { PORTABLE = 1, MAPPED = 2 }; /* cudaHostAllocPortable, cudaHostAllocMapped */

typedef Error (*LaunchKernel)(const void *, Dim3, Dim3, void **, size_t, void *);

struct runtime {
  Error (*cudaGetDevice)(int *);
  Error (*cudaDeviceGetPCIBusId)(char *, int, int);
  Error (*cudaSetDevice)(int);
  Error (*cudaDeviceSynchronize)(void);
  Error (*cudaDeviceReset)(void);
  Error (*cudaMalloc)(void **, size_t);
  Error (*cudaFree)(void *);
  Error (*cudaHostAlloc)(void **, size_t, unsigned);
  Error (*cudaFreeHost)(void *);
  Error (*cudaMemGetInfo)(size_t *, size_t *);
  Error (*cudaGetLastError)(void);
  Error (*cudaPeekAtLastError)(void);
  Error (*cudaStreamQuery)(void *);
  Error (*cudaStreamIsCapturing)(void *, int *);
  Error (*cudaThreadExchangeStreamCaptureMode)(int *);
  LaunchKernel cudaLaunchKernel, cudaLaunchKernel_ptsz;
  LaunchKernel __cudaLaunchKernel, __cudaLaunchKernel_ptsz;
  LaunchKernel cudaLaunchCooperativeKernel, cudaLaunchCooperativeKernel_ptsz;
  Error (*cudaLaunchKernelExC)(const void *, const void *, void **);
  Error (*cudaLaunchKernelExC_ptsz)(const void *, const void *, void **);
  Error (*cudaGraphLaunch)(void *, void *);
  Error (*cudaGraphLaunch_ptsz)(void *, void *);
};

/* The runtime of the code at address `caller`; NULL if none is loaded. A process may have several: kernels are
   registered with one of them. The first call from a library takes some microseconds, each further one some
   nanoseconds. */
const struct runtime *runtime_of(const void *caller);

/* The runtime that was found first; NULL before that. */
const struct runtime *first_runtime(void);

/* The current device of this thread, or -1. */
int device_now(const struct runtime *);

/* Lets this thread ask and free although another one captures a graph, which it would else spoil (NVIDIA, "Relaxed").
   Give what it returns to `end_unspoiling`. */
int begin_unspoiling(const struct runtime *);
void end_unspoiling(const struct runtime *, int mode);

#define HERE __builtin_return_address(0)
#define EXPORTED __attribute__((visibility("default")))
#endif
