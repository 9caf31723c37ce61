/* What the two halves of the make-believe runtime share. */
#ifndef RIG_RUNTIME_H
#define RIG_RUNTIME_H
#include <stddef.h>
#include <stdint.h>

typedef unsigned long long u64;
struct three { unsigned x, y, z; };
enum { MOST_GPUS = 8, TO_HOST = 2 };
enum { INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NO_DEVICE = 100, INVALID_DEVICE = 101, NOT_READY = 600 };
enum { NOWHERE = 0, ON_HOST = 1, ON_DEVICE = 2 };

u64 rig_now(void);
u64 rig_capacity(void);
int rig_gpu_of(int device); /* the GPU behind a visible device; -1: none */
int rig_kind_of(const void *, int *device, void **start);
#endif
