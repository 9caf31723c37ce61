/* Event sets: what the driver tells of the devices that a program registered. As with NVML, a set gets what happens
 * after the registration, each event once, and a wait ends with the first one or with its time. */
#include "session.h"

#include <stdlib.h>

enum { LOOK_EVERY_US = 5000 };

struct opaque_event_set {
    u64 asked[MOST_DEVICES]; /* types; 0: not registered */
    u64 after[MOST_DEVICES]; /* number of the last event that was before the registration */
    u64 told;                /* number of the last event that was given out */
};

static u64 newest(const struct state *state) {
    return state->event_count ? state->events[state->event_count - 1].number : 0;
}

EXPORT nvmlReturn_t nvmlEventSetCreate(event_set_t *set) {
    struct target t;
    nvmlReturn_t result = enter(__func__, &t);
    if (result) return result;
    *set = calloc(1, sizeof **set);
    return leave(*set ? SUCCESS : UNKNOWN);
}

EXPORT nvmlReturn_t nvmlEventSetFree(event_set_t set) {
    struct target t;
    nvmlReturn_t result = enter(__func__, &t);
    if (result) return result;
    free(set);
    return leave(SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t handle, u64 *types) {
    struct target t;
    nvmlReturn_t result = enter_device(__func__, handle, &t);
    if (result) return result;
    *types = t.instance ? 0 : EVENT_XID;
    return leave(SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t handle, u64 types, event_set_t set) {
    struct target t;
    nvmlReturn_t result = enter_device(__func__, handle, &t);
    if (result) return result;
    if (t.instance || types & ~(u64)EVENT_XID) return leave(NOT_SUPPORTED);
    set->asked[t.index] |= types;
    set->after[t.index] = newest(t.state);
    return leave(SUCCESS);
}

static int take(const struct state *state, event_set_t set, event_data_t *found) {
    for (int k = 0; k < state->event_count; k++) {
        const struct event *e = &state->events[k];
        if (e->number <= set->told || e->device < 0 || e->device >= state->device_count) continue;
        if (!(set->asked[e->device] & e->type) || e->number <= set->after[e->device]) continue;
        set->told = e->number;
        *found = (event_data_t){handle_of(state->devices[e->device].uuid), e->type, e->content, e->gpu_instance,
                                e->compute_instance};
        return 1;
    }
    return 0;
}

EXPORT nvmlReturn_t nvmlEventSetWait_v2(event_set_t set, event_data_t *found, unsigned int timeout_ms) {
    for (u64 waited_us = 0;; waited_us += LOOK_EVERY_US) {
        struct target t;
        nvmlReturn_t result = enter(__func__, &t);
        if (result) return result;
        int is_there = take(t.state, set, found);
        leave(SUCCESS);
        if (is_there) return SUCCESS;
        if (waited_us >= (u64)timeout_ms * 1000) return TIMEOUT;
        pause_us(LOOK_EVERY_US);
    }
}
