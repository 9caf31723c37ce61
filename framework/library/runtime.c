/* Finds the runtime behind us: that of the calling library, else any that is loaded.

   RTLD_NEXT does not do: it finds nothing when Python opened this library, and the file names of wheels carry hashes. */
#define _GNU_SOURCE
#include "runtime.h"

#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>

enum { CALLERS = 64, RUNTIMES = 8, PATH = 4096 };

static struct {
  uintptr_t from, to;
  const struct runtime *runtime;
} callers[CALLERS]; /* code that has called us, by segment. Found libraries are never unloaded: we hold them open. */
static _Atomic int known_callers;
static struct {
  void *identity;
  struct runtime functions;
} runtimes[RUNTIMES];
static _Atomic int known_runtimes;
static pthread_mutex_t adding = PTHREAD_MUTEX_INITIALIZER;

struct object {
  uintptr_t at;   /* in: the address that is looked for, or 0 for a runtime by its file name */
  uintptr_t from, to;
  char name[PATH]; /* "": the program itself */
  int found;
};

static int looks_at(struct dl_phdr_info *info, size_t size, void *context) {
  struct object *object = context;
  (void)size;
  if (object->at == 0) {
    const char *file = strrchr(info->dlpi_name, '/');
    if (strncmp(file ? file + 1 : info->dlpi_name, "libcudart", 9) != 0) return 0;
  }
  for (int i = 0; i < info->dlpi_phnum; i++) {
    const ElfW(Phdr) *part = &info->dlpi_phdr[i];
    uintptr_t from = info->dlpi_addr + part->p_vaddr, to = from + part->p_memsz;
    if (part->p_type != PT_LOAD || (object->at && (object->at < from || object->at >= to))) continue;
    if (strlen(info->dlpi_name) >= PATH) return 0;
    strcpy(object->name, info->dlpi_name);
    object->from = from, object->to = to, object->found = 1;
    return 1;
  }
  return 0;
}

/* Not from within dl_iterate_phdr: that would take the loader's locks in the wrong order. */
static void *opened(const struct object *object) {
  return dlopen(*object->name ? object->name : NULL, RTLD_NOLOAD | RTLD_LAZY);
}

static void fill(struct runtime *to, void *library) {
#define FUNCTION(name) to->name = (__typeof__(to->name))(uintptr_t)dlsym(library, #name)
  FUNCTION(cudaGetDevice);
  FUNCTION(cudaDeviceGetPCIBusId);
  FUNCTION(cudaSetDevice);
  FUNCTION(cudaDeviceSynchronize);
  FUNCTION(cudaDeviceReset);
  FUNCTION(cudaMalloc);
  FUNCTION(cudaFree);
  FUNCTION(cudaHostAlloc);
  FUNCTION(cudaFreeHost);
  FUNCTION(cudaMemGetInfo);
  FUNCTION(cudaGetLastError);
  FUNCTION(cudaPeekAtLastError);
  FUNCTION(cudaStreamQuery);
  FUNCTION(cudaStreamIsCapturing);
  FUNCTION(cudaThreadExchangeStreamCaptureMode);
  FUNCTION(cudaLaunchKernel);
  FUNCTION(cudaLaunchKernel_ptsz);
  FUNCTION(__cudaLaunchKernel);
  FUNCTION(__cudaLaunchKernel_ptsz);
  FUNCTION(cudaLaunchCooperativeKernel);
  FUNCTION(cudaLaunchCooperativeKernel_ptsz);
  FUNCTION(cudaLaunchKernelExC);
  FUNCTION(cudaLaunchKernelExC_ptsz);
  FUNCTION(cudaGraphLaunch);
  FUNCTION(cudaGraphLaunch_ptsz);
}

static const struct runtime *runtime_in(void *library) {
  void *identity = library ? dlsym(library, "cudaGetDevice") : NULL; /* a name that we do not define */
  if (!identity) return NULL;
  int count = atomic_load(&known_runtimes);
  for (int i = 0; i < count; i++)
    if (runtimes[i].identity == identity) return &runtimes[i].functions;
  struct object object = {.at = (uintptr_t)identity};
  if (count == RUNTIMES || !dl_iterate_phdr(looks_at, &object)) return NULL;
  void *itself = opened(&object);
  if (!itself) return NULL;
  runtimes[count].identity = identity;
  fill(&runtimes[count].functions, itself);
  atomic_store(&known_runtimes, count + 1);
  return &runtimes[count].functions;
}

static const struct runtime *find(uintptr_t caller) {
  struct object object = {.at = caller};
  int known = dl_iterate_phdr(looks_at, &object);
  const struct runtime *runtime = known ? runtime_in(opened(&object)) : NULL;
  if (!runtime) {
    struct object any = {.at = 0};
    if (dl_iterate_phdr(looks_at, &any)) runtime = runtime_in(opened(&any));
  }
  int count = atomic_load(&known_callers);
  if (known && runtime && count < CALLERS) {
    callers[count].from = object.from, callers[count].to = object.to, callers[count].runtime = runtime;
    atomic_store(&known_callers, count + 1);
  }
  return runtime;
}

static const struct runtime *known(uintptr_t caller) {
  int count = atomic_load_explicit(&known_callers, memory_order_acquire);
  for (int i = 0; i < count; i++)
    if (caller >= callers[i].from && caller < callers[i].to) return callers[i].runtime;
  return NULL;
}

const struct runtime *runtime_of(const void *caller) {
  const struct runtime *runtime = known((uintptr_t)caller);
  if (runtime) return runtime;
  pthread_mutex_lock(&adding);
  runtime = known((uintptr_t)caller);
  if (!runtime) runtime = find((uintptr_t)caller);
  pthread_mutex_unlock(&adding);
  return runtime;
}

const struct runtime *first_runtime(void) { return atomic_load(&known_runtimes) ? &runtimes[0].functions : NULL; }

int device_now(const struct runtime *runtime) {
  int device = -1;
  if (!runtime || !runtime->cudaGetDevice || runtime->cudaGetDevice(&device) != SUCCESS) return -1;
  return device;
}

int begin_unspoiling(const struct runtime *runtime) {
  int mode = 2; /* cudaStreamCaptureModeRelaxed */
  if (!runtime->cudaThreadExchangeStreamCaptureMode || runtime->cudaThreadExchangeStreamCaptureMode(&mode) != SUCCESS)
    return -1;
  return mode;
}

void end_unspoiling(const struct runtime *runtime, int mode) {
  if (mode >= 0) runtime->cudaThreadExchangeStreamCaptureMode(&mode);
}

static void in_child(void) { pthread_mutex_init(&adding, NULL); }
__attribute__((constructor)) static void prepare_for_forks(void) { pthread_atfork(NULL, NULL, in_child); }
