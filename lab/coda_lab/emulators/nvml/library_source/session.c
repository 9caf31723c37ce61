/* Sessions and handles. A handle is a number: magic, the session's count, and a place in the table of UUIDs; so one
 * from an earlier session, or of nothing, is recognised and refused as NVML does. */
#include "session.h"

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum { MAGIC = 0xC0DA, MOST_HANDLES = 1024 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int opened;               /* nvmlInit calls not yet closed */
static unsigned int session;     /* counts first openings */
static u64 epoch;                /* the driver's, when this session began */
static char version_loaded[80];  /* the driver of which this process has the library: as the file on disk at dlopen */
static char uuids[MOST_HANDLES][UUID_BYTES];
static int uuid_count;

static nvmlReturn_t fault_of(const struct state *state, int index, const char *call) {
    for (int k = 0; k < state->fault_count; k++) {
        const struct fault *fault = &state->faults[k];
        int is_here = fault->device == -1 || fault->device == index;
        if (is_here && (!strcmp(fault->call, "*") || !strcmp(fault->call, call))) return fault->code;
    }
    return SUCCESS;
}

nvmlReturn_t condition_of(const struct state *state, int index, const char *call) {
    if (state->devices[index].lost) return state->devices[index].lost;
    return fault_of(state, index, call);
}

nvmlReturn_t leave(nvmlReturn_t result) {
    pthread_mutex_unlock(&lock);
    return result;
}

void pause_us(u64 us) {
    struct timespec pause = {.tv_sec = (time_t)(us / 1000000), .tv_nsec = (long)(us % 1000000) * 1000};
    if (us) nanosleep(&pause, NULL);
}

/* Spend the time that the state says `call` takes, without the lock. */
static void take_time(const char *call) {
    u64 us = 0;
    pthread_mutex_lock(&lock);
    const struct state *state = state_now();
    for (int k = 0; state && k < state->delay_count; k++)
        if (!strcmp(state->delays[k].call, call)) us = state->delays[k].us;
    pthread_mutex_unlock(&lock);
    pause_us(us);
}

nvmlReturn_t enter(const char *call, struct target *target) {
    take_time(call);
    pthread_mutex_lock(&lock);
    if (!opened) return leave(UNINITIALIZED);
    *target = (struct target){.state = state_now(), .index = -1};
    if (!target->state) return leave(UNKNOWN);
    if (!target->state->loaded || target->state->epoch != epoch) return leave(UNKNOWN);
    nvmlReturn_t fault = fault_of(target->state, -1, call);
    return fault ? leave(fault) : SUCCESS;
}

nvmlReturn_t find_handle(const struct state *state, nvmlDevice_t handle, struct target *target) {
    uintptr_t number = (uintptr_t)handle;
    unsigned int place = number & 0xFFFF;
    if (number >> 32 != MAGIC || (number >> 16 & 0xFFFF) != (session & 0xFFFF) || place >= (unsigned int)uuid_count)
        return INVALID_ARGUMENT;
    for (int index = 0; index < state->device_count; index++) {
        const struct device *device = &state->devices[index];
        *target = (struct target){.state = state, .device = device, .index = index};
        if (!strcmp(device->uuid, uuids[place])) return SUCCESS;
        for (int k = 0; k < device->slice_count; k++) {
            target->instance = &device->slices[k];
            if (!strcmp(device->slices[k].uuid, uuids[place])) return SUCCESS;
        }
    }
    return GPU_IS_LOST; /* it was there when the handle was given */
}

nvmlReturn_t enter_device(const char *call, nvmlDevice_t handle, struct target *target) {
    nvmlReturn_t result = enter(call, target);
    if (result) return result;
    result = find_handle(target->state, handle, target);
    if (!result) result = condition_of(target->state, target->index, call);
    return result ? leave(result) : SUCCESS;
}

nvmlDevice_t handle_of(const char *uuid) {
    int place = 0;
    while (place < uuid_count && strcmp(uuids[place], uuid)) place++;
    if (place == uuid_count) {
        if (place == MOST_HANDLES) return NULL;
        snprintf(uuids[uuid_count++], UUID_BYTES, "%s", uuid);
    }
    return (nvmlDevice_t)((uintptr_t)MAGIC << 32 | (uintptr_t)(session & 0xFFFF) << 16 | (uintptr_t)place);
}

static nvmlReturn_t open_driver(void) {
    const struct state *state = state_now();
    if (!state || !state->loaded) return DRIVER_NOT_LOADED;
    nvmlReturn_t fault = fault_of(state, -1, "nvmlInitWithFlags");
    if (fault) return fault;
    if (!version_loaded[0]) snprintf(version_loaded, sizeof version_loaded, "%s", state->driver);
    if (strcmp(version_loaded, state->driver)) return LIB_RM_VERSION_MISMATCH;
    epoch = state->epoch;
    session++;
    return SUCCESS;
}

EXPORT nvmlReturn_t nvmlInitWithFlags(unsigned int flags) {
    (void)flags;
    take_time(__func__);
    pthread_mutex_lock(&lock);
    nvmlReturn_t result = opened ? SUCCESS : open_driver();
    if (!result) opened++;
    return leave(result);
}

EXPORT nvmlReturn_t nvmlInit_v2(void) { return nvmlInitWithFlags(0); }

EXPORT nvmlReturn_t nvmlShutdown(void) {
    pthread_mutex_lock(&lock);
    if (!opened) return leave(UNINITIALIZED);
    opened--;
    return leave(SUCCESS);
}

EXPORT nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length) {
    struct target target;
    nvmlReturn_t result = enter(__func__, &target);
    if (result) return result;
    if (strlen(target.state->driver) >= length) return leave(INSUFFICIENT_SIZE);
    snprintf(version, length, "%s", target.state->driver);
    return leave(SUCCESS);
}

EXPORT nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned int length) {
    return snprintf(version, length, "12.%s", version_loaded) < (int)length ? SUCCESS : INSUFFICIENT_SIZE;
}

EXPORT const char *nvmlErrorString(nvmlReturn_t code) {
    static __thread char text[40];
    snprintf(text, sizeof text, "emulated NVML error %d", code);
    return text;
}
