/* How devices are connected: to each other, to CPUs and to memory. */
#include "session.h"

#include <stdio.h>
#include <string.h>

enum { NO_ANCESTOR_SAID = 0, SYSTEM = 50, P2P_OK = 0, P2P_NOT_SUPPORTED = 5 };

static nvmlReturn_t enter_pair(const char *call, nvmlDevice_t one, nvmlDevice_t other, struct target *a,
                               struct target *b) {
    nvmlReturn_t result = enter_device(call, one, a);
    if (result) return result;
    result = find_handle(a->state, other, b);
    if (!result) result = condition_of(b->state, b->index, call);
    if (!result && (a->instance || b->instance || a->index == b->index)) result = INVALID_ARGUMENT;
    return result ? leave(result) : SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t one, nvmlDevice_t other, unsigned int *level) {
    struct target a, b;
    nvmlReturn_t result = enter_pair(__func__, one, other, &a, &b);
    if (result) return result;
    int said = a.state->ancestors[a.index][b.index];
    *level = said == NO_ANCESTOR_SAID ? SYSTEM : (unsigned int)said;
    return leave(SUCCESS);
}

static int reaches(const struct device *device, const char *remote) {
    for (int k = 0; k < MOST_LINKS; k++)
        if (device->links[k].active && !strcmp(device->links[k].remote, remote)) return 1;
    return 0;
}

/* Over a link from one to the other, or through a switch to which both have links. */
static int has_nvlink(const struct state *state, const struct device *one, const struct device *other) {
    if (reaches(one, other->bus_id)) return 1;
    for (int k = 0; k < MOST_LINKS; k++) {
        int is_switch = one->links[k].active;
        for (int index = 0; index < state->device_count; index++)
            is_switch &= strcmp(state->devices[index].bus_id, one->links[k].remote) != 0;
        if (is_switch && reaches(other, one->links[k].remote)) return 1;
    }
    return 0;
}

EXPORT nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t one, nvmlDevice_t other, unsigned int capability,
                                           unsigned int *status) {
    enum { NVLINK = 2 };
    struct target a, b;
    nvmlReturn_t result = enter_pair(__func__, one, other, &a, &b);
    if (result) return result;
    int level = a.state->ancestors[a.index][b.index], linked = has_nvlink(a.state, a.device, b.device);
    int is_near = level != NO_ANCESTOR_SAID && level < SYSTEM;
    *status = linked || (capability != NVLINK && is_near) ? P2P_OK : P2P_NOT_SUPPORTED;
    return leave(SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t handle, unsigned int link, unsigned int *is_active) {
    struct target t;
    nvmlReturn_t result = enter_device(__func__, handle, &t);
    if (result) return result;
    int has_links = 0;
    for (int k = 0; k < MOST_LINKS; k++) has_links |= t.device->links[k].known;
    if (!has_links || t.instance) return leave(NOT_SUPPORTED);
    if (link >= MOST_LINKS || !t.device->links[link].known) return leave(INVALID_ARGUMENT);
    *is_active = (unsigned int)t.device->links[link].active;
    return leave(SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t handle, unsigned int link, pci_info_t *pci) {
    struct target t;
    nvmlReturn_t result = enter_device(__func__, handle, &t);
    if (result) return result;
    if (link >= MOST_LINKS || !t.device->links[link].known) return leave(INVALID_ARGUMENT);
    if (!t.device->links[link].active) return leave(NOT_SUPPORTED);
    memset(pci, 0, sizeof *pci);
    snprintf(pci->bus_id, sizeof pci->bus_id, "%s", t.device->links[link].remote);
    sscanf(pci->bus_id, "%x:%x:%x", &pci->domain, &pci->bus, &pci->device);
    return leave(SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetCpuAffinityWithinScope(nvmlDevice_t handle, unsigned int words, unsigned long *cpus,
                                                        unsigned int scope) {
    struct target t;
    (void)scope; /* a NUMA node is a socket here */
    nvmlReturn_t result = enter_device(__func__, handle, &t);
    if (result) return result;
    if (!t.device->has_cpus || t.instance) return leave(NOT_SUPPORTED);
    if (!words) return leave(INVALID_ARGUMENT);
    for (unsigned int k = 0; k < words; k++) cpus[k] = k < MOST_CPU_WORDS ? t.device->cpus[k] : 0;
    return leave(SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetCpuAffinity(nvmlDevice_t handle, unsigned int words, unsigned long *cpus) {
    return nvmlDeviceGetCpuAffinityWithinScope(handle, words, cpus, 0);
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryAffinity(nvmlDevice_t handle, unsigned int words, unsigned long *nodes,
                                                unsigned int scope) {
    struct target t;
    (void)scope;
    nvmlReturn_t result = enter_device(__func__, handle, &t);
    if (result) return result;
    if (t.device->numa_node < 0 || t.instance) return leave(NOT_SUPPORTED);
    if (!words) return leave(INVALID_ARGUMENT);
    memset(nodes, 0, words * sizeof *nodes);
    if ((unsigned int)t.device->numa_node < words * 64) nodes[t.device->numa_node / 64] = 1ul << t.device->numa_node % 64;
    return leave(SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetNumaNodeId(nvmlDevice_t handle, int *node) {
    struct target t;
    (void)node; /* only for GPUs that are NUMA nodes themselves, which none of these is */
    nvmlReturn_t result = enter_device(__func__, handle, &t);
    return result ? result : leave(NOT_SUPPORTED);
}
