/* What torch asks about a GPU, in the structures of its CUDA version: only this file needs NVIDIA's headers. */
#include <stdio.h>
#include <string.h>
#include <limits.h>
#include <driver_types.h>
#include <vector_types.h>

#include "runtime.h"

int RIG_PROPERTIES(struct cudaDeviceProp *p, int device) {
  int gpu = rig_gpu_of(device);
  if (gpu < 0) return INVALID_DEVICE;
  memset(p, 0, sizeof *p);
  strcpy(p->name, "Make-believe GPU");
  p->uuid.bytes[0] = (char)0xC0, p->uuid.bytes[1] = (char)0xDA, p->uuid.bytes[15] = (char)gpu;
  p->totalGlobalMem = rig_capacity();
  p->major = 9, p->multiProcessorCount = 8, p->warpSize = 32;
  p->maxThreadsPerBlock = p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024, p->maxThreadsDim[2] = 64;
  p->maxGridSize[0] = INT_MAX, p->maxGridSize[1] = p->maxGridSize[2] = 65535;
  p->maxThreadsPerMultiProcessor = 2048, p->maxBlocksPerMultiProcessor = 32;
  p->sharedMemPerBlock = 49152, p->sharedMemPerBlockOptin = 232448, p->sharedMemPerMultiprocessor = 233472;
  p->regsPerBlock = p->regsPerMultiprocessor = 65536, p->l2CacheSize = 1 << 20, p->textureAlignment = 512;
  p->unifiedAddressing = p->managedMemory = p->concurrentManagedAccess = 1;
  return 0;
}
int cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device) {
  (void)device;
  switch (attribute) {
    case cudaDevAttrComputeCapabilityMajor: *value = 9; break;
    case cudaDevAttrMultiProcessorCount: *value = 8; break;
    case cudaDevAttrMaxThreadsPerBlock: *value = 1024; break;
    case cudaDevAttrWarpSize: *value = 32; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = 49152; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = 232448; break;
    case cudaDevAttrConcurrentManagedAccess: *value = 1; break;
    default: *value = 0;
  }
  return 0;
}
int cudaPointerGetAttributes(struct cudaPointerAttributes *a, const void *at) {
  int device = 0;
  void *start = NULL;
  int kind = rig_kind_of(at, &device, &start);
  memset(a, 0, sizeof *a);
  a->type = kind == ON_HOST ? cudaMemoryTypeHost : kind == ON_DEVICE ? cudaMemoryTypeDevice : cudaMemoryTypeUnregistered;
  a->device = device;
  a->devicePointer = kind ? (void *)at : NULL;
  a->hostPointer = kind == ON_HOST ? (void *)at : NULL;
  return 0;
}
int cudaFuncGetAttributes(struct cudaFuncAttributes *a, const void *f) {
  (void)f;
  memset(a, 0, sizeof *a);
  a->maxThreadsPerBlock = 1024, a->numRegs = 32, a->binaryVersion = a->ptxVersion = 90;
  return 0;
}
int cudaRuntimeGetVersion(int *version) { *version = RIG_VERSION; return 0; }
int cudaDriverGetVersion(int *version) { *version = RIG_VERSION; return 0; }
int cudaDeviceGetPCIBusId(char *text, int size, int device) { snprintf(text, (size_t)size, "0000:%02x:00.0", 0x3b + rig_gpu_of(device)); return 0; }
int cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *n, const void *f, int b, size_t s) { (void)f, (void)b, (void)s; *n = 2; return 0; }
int cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *n, const void *f, int b, size_t s, unsigned x) { (void)f, (void)b, (void)s, (void)x; *n = 2; return 0; }
static long nothing(void) { return 0; }
int cudaGetDriverEntryPoint(const char *name, void **f, u64 flags, int *result) { (void)name, (void)flags; *f = (void *)nothing; if (result) *result = 0; return 0; }
int cudaGetDriverEntryPointByVersion(const char *name, void **f, unsigned version, u64 flags, int *result) { (void)version; return cudaGetDriverEntryPoint(name, f, flags, result); }
void **__cudaRegisterFatBinary(void *binary) { (void)binary; static void *handle; return &handle; }
int __cudaGetKernel(void **kernel, const void *f) { *kernel = (void *)f; return 0; }
static __thread struct { dim3 grid, block; size_t shared; void *stream; } pushed;
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void *stream) { pushed.grid = grid, pushed.block = block, pushed.shared = shared, pushed.stream = stream; return 0; }
int __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void **stream) { *grid = pushed.grid, *block = pushed.block, *shared = pushed.shared, *stream = pushed.stream; return 0; }
int cudaGetSymbolAddress(void **at, const void *symbol) { (void)symbol; static char buffer[1 << 16]; *at = buffer; return 0; }
int cudaDeviceGetDefaultMemPool(void **pool, int device) { (void)device; *pool = (void *)8; return 0; }
int cudaDeviceCanAccessPeer(int *can, int a, int b) { (void)a, (void)b; *can = 0; return 0; }
