/* What devices are doing: samples, rates, processes, PCIe traffic.
 *
 * A device's `step`s are seen by a sampler with the device's period, on a grid of the clock; each sample is a whole
 * percent, spread so that their mean is the step's value. `sample`s are given as they stand. */
#include "session.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static double percent_at(const struct device *device, u64 us) {
    double percent = 0;
    u64 best = 0;
    for (int k = 0; k < device->step_count; k++)
        if (device->steps[k].since_us <= us && device->steps[k].since_us >= best) {
            best = device->steps[k].since_us;
            percent = device->steps[k].percent;
        }
    return percent;
}

static unsigned int spread(double percent, u64 tick) {
    double now = floor(percent * (double)(tick % 100000 + 1)), before = floor(percent * (double)(tick % 100000));
    return (unsigned int)(now - before);
}

static int by_time(const void *one, const void *other) {
    u64 a = ((const struct taken *)one)->at_us, b = ((const struct taken *)other)->at_us;
    return (a > b) - (a < b);
}

/* The driver's buffer, oldest first: at most `buffered` samples, the newest at the last whole period. */
static unsigned int fill_buffer(const struct target *t, struct taken *buffer) {
    const struct device *device = t->device;
    unsigned int count = 0;
    u64 last = state_clock_us(t->state) / device->period_us;
    for (u64 tick = last - (last > device->buffered ? device->buffered - 1 : last); device->step_count && tick <= last;
         tick++) {
        u64 at_us = tick * device->period_us;
        if (at_us < device->steps[0].since_us) continue;
        buffer[count++] = (struct taken){at_us, spread(percent_at(device, at_us), tick)};
    }
    for (int k = 0; k < device->sample_count; k++) buffer[count++] = device->samples[k];
    qsort(buffer, count, sizeof *buffer, by_time);
    return count;
}

EXPORT nvmlReturn_t nvmlDeviceGetSamples(nvmlDevice_t handle, unsigned int type, u64 last_seen_us,
                                         unsigned int *value_type, unsigned int *count, sample_t *samples) {
    static struct taken buffer[MOST_SAMPLES * 2];
    struct target t;
    nvmlReturn_t result = enter_device(__func__, handle, &t);
    if (result) return result;
    if (t.instance || t.device->mig > 0) return leave(NOT_SUPPORTED);
    if (type != SAMPLES_GPU_UTILIZATION && type != SAMPLES_MEMORY_UTILIZATION) return leave(NOT_SUPPORTED);
    unsigned int filled = fill_buffer(&t, buffer), given = 0;
    *value_type = VALUE_UNSIGNED_INT;
    if (!samples) { /* how much room: the whole buffer, whatever is new in it */
        *count = filled > t.device->buffered ? filled : t.device->buffered;
        return leave(SUCCESS);
    }
    if (!*count) return leave(INVALID_ARGUMENT);
    for (unsigned int k = 0; k < filled && given < *count; k++)
        if (buffer[k].at_us > last_seen_us)
            samples[given++] = (sample_t){.timestamp_us = buffer[k].at_us, .value.ull = buffer[k].percent};
    *count = given;
    return leave(given ? SUCCESS : NOT_FOUND);
}

EXPORT nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t handle, utilization_t *rates) {
    static struct taken buffer[MOST_SAMPLES * 2];
    struct target t;
    nvmlReturn_t result = enter_device(__func__, handle, &t);
    if (result) return result;
    if (t.instance || t.device->mig > 0) return leave(NOT_SUPPORTED);
    unsigned int filled = fill_buffer(&t, buffer);
    rates->gpu = filled ? buffer[filled - 1].percent : 0;
    rates->memory = rates->gpu / 2;
    return leave(SUCCESS);
}

/* One entry per process with non-zero use, as of the last sample period; then what was put in word for word. */
static unsigned int fill_process_samples(const struct target *t, u64 last_seen_us, process_sample_t *entries,
                                         unsigned int room) {
    unsigned int count = 0;
    u64 period_us = t->device->period_us, at_us = state_clock_us(t->state) / period_us * period_us;
    for (int k = 0; k < t->device->process_count && count < room; k++) {
        const struct process *p = &t->device->processes[k];
        if (!p->percent || at_us < p->since_us || at_us <= last_seen_us) continue;
        entries[count++] = (process_sample_t){.pid = p->pid, .timestamp_us = at_us, .sm = p->percent};
    }
    for (int k = 0; k < t->device->process_sample_count && count < room; k++) {
        const struct process_sample *s = &t->device->process_samples[k];
        if (!s->stale && s->at_us <= last_seen_us) continue;
        entries[count++] = (process_sample_t){.pid = s->pid, .timestamp_us = s->at_us, .sm = s->percent};
    }
    return count;
}

EXPORT nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t handle, process_sample_t *entries,
                                                    unsigned int *count, u64 last_seen_us) {
    process_sample_t filled[MOST_PROCESSES * 2];
    struct target t;
    nvmlReturn_t result = enter_device(__func__, handle, &t);
    if (result) return result;
    if (t.instance || t.device->mig > 0) return leave(NOT_SUPPORTED);
    if (!entries) { /* with nothing in the buffer the size call succeeds, which pynvml raises as an error of value 0 */
        *count = fill_process_samples(&t, 0, filled, MOST_PROCESSES * 2);
        return leave(*count ? INSUFFICIENT_SIZE : SUCCESS);
    }
    unsigned int fresh = fill_process_samples(&t, last_seen_us, filled, MOST_PROCESSES * 2);
    if (fresh > *count) return leave(INSUFFICIENT_SIZE);
    memcpy(entries, filled, fresh * sizeof *entries);
    *count = fresh;
    return leave(fresh ? SUCCESS : NOT_FOUND);
}

EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t handle, unsigned int *count,
                                                            process_info_t *entries) {
    struct target t;
    unsigned int found = 0;
    nvmlReturn_t result = enter_device(__func__, handle, &t);
    if (result) return result;
    for (int k = 0; k < t.device->process_count; k++) {
        const struct process *p = &t.device->processes[k];
        if (t.instance && p->gpu_instance != t.instance->gpu_instance) continue;
        if (found < *count && entries)
            entries[found] = (process_info_t){p->pid, (u64)p->memory, p->gpu_instance, p->compute_instance};
        found++;
    }
    result = found <= *count && (entries || !found) ? SUCCESS : INSUFFICIENT_SIZE;
    *count = found;
    return leave(result);
}

EXPORT nvmlReturn_t nvmlDeviceGetPcieThroughput(nvmlDevice_t handle, unsigned int counter, unsigned int *kib_per_s) {
    struct target t;
    nvmlReturn_t result = enter_device(__func__, handle, &t);
    if (result) return result;
    if (t.instance) return leave(NOT_SUPPORTED);
    const struct pcie *pcie = &t.device->pcie;
    double bytes_per_s = counter == 0 ? pcie->sent_per_s : pcie->received_per_s;
    leave(SUCCESS);
    if (counter > 1) return INVALID_ARGUMENT;
    pause_us(20000); /* the driver counts bytes that long */
    *kib_per_s = (unsigned int)(bytes_per_s / 1024);
    return SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t handle, int count, field_value_t *values) {
    struct target t;
    nvmlReturn_t result = enter_device(__func__, handle, &t);
    if (result) return result;
    const struct pcie *pcie = &t.device->pcie;
    u64 now_us = state_clock_us(t.state), since_us = pcie->since_us ? pcie->since_us : now_us;
    double elapsed_s = now_us > since_us ? (double)(now_us - since_us) / 1e6 : 0;
    for (int k = 0; k < count; k++) {
        int sent = values[k].field == FIELD_PCIE_TX_BYTES, received = values[k].field == FIELD_PCIE_RX_BYTES;
        values[k].timestamp_us = (long long)now_us;
        values[k].latency_us = 0;
        values[k].result = pcie->counters && !t.instance && (sent || received) ? SUCCESS : NOT_SUPPORTED;
        values[k].value_type = VALUE_UNSIGNED_LONG_LONG;
        values[k].value.ull = sent ? pcie->sent + (u64)(pcie->sent_per_s * elapsed_s)
                                   : pcie->received + (u64)(pcie->received_per_s * elapsed_s);
    }
    return leave(SUCCESS);
}
