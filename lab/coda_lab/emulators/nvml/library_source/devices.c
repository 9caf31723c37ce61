/* Which devices there are, what they are called, their memory, and their MIG slices. */
#include "session.h"

#include <stdio.h>
#include <string.h>

static nvmlReturn_t put_text(char *where, unsigned int length, const char *text) {
    if (strlen(text) >= length) return INSUFFICIENT_SIZE;
    snprintf(where, length, "%s", text);
    return SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count) {
    struct target t;
    nvmlReturn_t result = enter(__func__, &t);
    if (result) return result;
    *count = (unsigned int)t.state->device_count; /* a lost device is still counted */
    return leave(SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *handle) {
    struct target t;
    nvmlReturn_t result = enter(__func__, &t);
    if (result) return result;
    if (index >= (unsigned int)t.state->device_count) return leave(INVALID_ARGUMENT);
    if ((result = condition_of(t.state, (int)index, __func__))) return leave(result);
    *handle = handle_of(t.state->devices[index].uuid);
    return leave(SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *handle) {
    struct target t;
    nvmlReturn_t result = enter(__func__, &t);
    if (result) return result;
    result = uuid ? find_handle(t.state, handle_of(uuid), &t) : INVALID_ARGUMENT;
    if (result) return leave(result == GPU_IS_LOST ? NOT_FOUND : result);
    if ((result = condition_of(t.state, t.index, __func__))) return leave(result);
    *handle = handle_of(uuid);
    return leave(SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t handle, char *uuid, unsigned int length) {
    struct target t;
    nvmlReturn_t result = enter_device(__func__, handle, &t);
    if (result) return result;
    return leave(put_text(uuid, length, t.instance ? t.instance->uuid : t.device->uuid));
}

EXPORT nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t handle, char *name, unsigned int length) {
    struct target t;
    char full[160];
    nvmlReturn_t result = enter_device(__func__, handle, &t);
    if (result) return result;
    snprintf(full, sizeof full, t.instance ? "%s MIG %s" : "%s", t.device->name, t.instance ? t.instance->profile : "");
    return leave(put_text(name, length, full));
}

EXPORT nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t handle, unsigned int *index) {
    struct target t;
    nvmlReturn_t result = enter_device(__func__, handle, &t);
    if (result) return result;
    *index = t.instance ? t.instance->slot : (unsigned int)t.index;
    return leave(SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t handle, unsigned int *minor) {
    struct target t;
    nvmlReturn_t result = enter_device(__func__, handle, &t);
    if (result) return result;
    if (t.instance) return leave(NOT_SUPPORTED);
    *minor = t.device->minor;
    return leave(SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t handle, pci_info_t *pci) {
    struct target t;
    nvmlReturn_t result = enter_device(__func__, handle, &t);
    if (result) return result;
    memset(pci, 0, sizeof *pci);
    sscanf(t.device->bus_id, "%x:%x:%x", &pci->domain, &pci->bus, &pci->device);
    snprintf(pci->bus_id, sizeof pci->bus_id, "%s", t.device->bus_id);
    snprintf(pci->bus_id_legacy, sizeof pci->bus_id_legacy, "%04X:%02X:%02X.0", pci->domain & 0xFFFF, pci->bus & 0xFF,
             pci->device & 0xFF);
    return leave(SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t handle, memory_t *memory) {
    struct target t;
    nvmlReturn_t result = enter_device(__func__, handle, &t);
    if (result) return result;
    memory->total = t.instance ? t.instance->memory : t.device->memory;
    memory->used = t.instance ? t.instance->used : t.device->used;
    memory->free = memory->total - memory->used;
    return leave(SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t handle, memory_v2_t *memory) {
    memory_t plain;
    if (memory->version != (sizeof *memory | 2u << 24)) return ARGUMENT_VERSION_MISMATCH;
    nvmlReturn_t result = nvmlDeviceGetMemoryInfo(handle, &plain);
    if (result) return result;
    memory->total = plain.total;
    memory->reserved = plain.total / 128; /* about what drivers keep */
    memory->used = plain.used;
    memory->free = plain.free > memory->reserved ? plain.free - memory->reserved : 0;
    return SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t handle, unsigned int *mode, unsigned int *pending) {
    struct target t;
    nvmlReturn_t result = enter_device(__func__, handle, &t);
    if (result) return result;
    if (t.device->mig < 0) return leave(NOT_SUPPORTED);
    *mode = *pending = (unsigned int)t.device->mig;
    return leave(SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t handle, unsigned int *count) {
    struct target t;
    nvmlReturn_t result = enter_device(__func__, handle, &t);
    if (result) return result;
    *count = t.device->mig < 0 ? 0 : 7;
    return leave(SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t handle, unsigned int slot, nvmlDevice_t *slice) {
    struct target t;
    nvmlReturn_t result = enter_device(__func__, handle, &t);
    if (result) return result;
    if (t.device->mig < 0) return leave(NOT_SUPPORTED);
    for (int k = 0; t.device->mig && k < t.device->slice_count; k++)
        if (t.device->slices[k].slot == slot) {
            *slice = handle_of(t.device->slices[k].uuid);
            return leave(SUCCESS);
        }
    return leave(slot < 7 ? NOT_FOUND : INVALID_ARGUMENT);
}

EXPORT nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t slice, nvmlDevice_t *handle) {
    struct target t;
    nvmlReturn_t result = enter_device(__func__, slice, &t);
    if (result) return result;
    if (!t.instance) return leave(INVALID_ARGUMENT);
    *handle = handle_of(t.device->uuid);
    return leave(SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t handle, unsigned int *is_slice) {
    struct target t;
    nvmlReturn_t result = enter_device(__func__, handle, &t);
    if (result) return result;
    *is_slice = t.instance != NULL;
    return leave(SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t handle, unsigned int *id) {
    struct target t;
    nvmlReturn_t result = enter_device(__func__, handle, &t);
    if (result) return result;
    if (!t.instance) return leave(INVALID_ARGUMENT);
    *id = t.instance->gpu_instance;
    return leave(SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t handle, unsigned int *id) {
    struct target t;
    nvmlReturn_t result = enter_device(__func__, handle, &t);
    if (result) return result;
    if (!t.instance) return leave(INVALID_ARGUMENT);
    *id = t.instance->compute_instance;
    return leave(SUCCESS);
}
