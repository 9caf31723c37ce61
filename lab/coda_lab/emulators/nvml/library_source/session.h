/* One call of NVML: the lock, the session, the handle and the failures that were asked for. */
#ifndef CODA_NVML_SESSION_H
#define CODA_NVML_SESSION_H

#include "state.h"

/* What a call is about. `instance` is NULL for a whole device. */
struct target {
    const struct state *state;
    const struct device *device;
    const struct slice *instance;
    int index; /* of the device */
};

/* Begin a call that is about no device, or about `handle`. SUCCESS: the lock is held until `leave`, and `target` is
 * set; else the answer to give, and nothing is held. */
nvmlReturn_t enter(const char *call, struct target *target);
nvmlReturn_t enter_device(const char *call, nvmlDevice_t handle, struct target *target);
nvmlReturn_t leave(nvmlReturn_t result);

/* Inside a call: what `index` answers for `call`, and the second device of a call about two. */
nvmlReturn_t condition_of(const struct state *state, int index, const char *call);
nvmlReturn_t find_handle(const struct state *state, nvmlDevice_t handle, struct target *target);

/* The handle of a device or slice, the same for the same UUID as long as the session lasts. */
nvmlDevice_t handle_of(const char *uuid);

/* Wait. Never while the lock is held. */
void pause_us(u64 us);

#endif
