/* pthread_atfork for any C library: glibc's own leaves a name in us that only glibc has, and a musl loader then ends
   every program with 127. Old glibc and musl have the one, glibc on other processors than x86-64 the other. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>

extern void *__dso_handle __attribute__((visibility("hidden")));
extern int __register_atfork(void (*)(void), void (*)(void), void (*)(void), void *) __attribute__((weak));

__attribute__((visibility("hidden"))) int pthread_atfork(void (*before)(void), void (*parent)(void), void (*child)(void)) {
  if (__register_atfork) return __register_atfork(before, parent, child, &__dso_handle);
  typedef int (*AtFork)(void (*)(void), void (*)(void), void (*)(void));
  AtFork theirs = (AtFork)(uintptr_t)dlsym(RTLD_DEFAULT, "pthread_atfork");
  return theirs ? theirs(before, parent, child) : 0;
}
