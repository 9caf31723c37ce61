/* Paces one kernel launch on `stream` that comes next. */
#ifndef CODA_PACE_H
#define CODA_PACE_H
#include <stdatomic.h>
#include <stdint.h>

#include "runtime.h"

extern _Atomic uint64_t launches;
extern _Atomic int paced_devices; /* 0: nothing is paced, and a launch costs one addition and one comparison. Those whose full
                                     speed ends by itself count, too: a launch then looks at the clock, 40 ns more */

void pace(const struct runtime *, void *stream);
void pace_stats(int device, uint64_t *values);
#endif
