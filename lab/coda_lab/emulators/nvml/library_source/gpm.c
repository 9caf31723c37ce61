/* Performance monitoring of GPU instances (GPM): a sample counts how long each has been busy, two give its share. */
#include "session.h"

#include <stdlib.h>

struct opaque_gpm_sample {
    u64 at_us;
    double busy_us;
    unsigned int gpu_instance;
};

EXPORT nvmlReturn_t nvmlGpmSampleAlloc(gpm_sample_t *sample) {
    *sample = calloc(1, sizeof **sample);
    return *sample ? SUCCESS : UNKNOWN;
}

EXPORT nvmlReturn_t nvmlGpmSampleFree(gpm_sample_t sample) {
    free(sample);
    return SUCCESS;
}

EXPORT nvmlReturn_t nvmlGpmMigSampleGet(nvmlDevice_t handle, unsigned int gpu_instance, gpm_sample_t sample) {
    struct target t;
    nvmlReturn_t result = enter_device(__func__, handle, &t);
    if (result) return result;
    const struct slice *slice = NULL;
    for (int k = 0; k < t.device->slice_count; k++)
        if (t.device->slices[k].gpu_instance == gpu_instance) slice = &t.device->slices[k];
    if (!slice) return leave(INVALID_ARGUMENT);
    if (slice->percent < 0) return leave(NOT_SUPPORTED);
    u64 now_us = state_clock_us(t.state);
    double since_us = now_us > slice->since_us ? (double)(now_us - slice->since_us) : 0;
    *sample = (struct opaque_gpm_sample){now_us, slice->busy_us + since_us * slice->percent / 100, gpu_instance};
    return leave(SUCCESS);
}

EXPORT nvmlReturn_t nvmlGpmMetricsGet(gpm_metrics_get_t *asked) {
    if (asked->version != GPM_METRICS_VERSION) return ARGUMENT_VERSION_MISMATCH;
    if (asked->before->gpu_instance != asked->after->gpu_instance) return INVALID_ARGUMENT;
    if (asked->after->at_us < asked->before->at_us + 100000) return INVALID_ARGUMENT; /* NVML: 100 ms at least */
    double passed_us = (double)(asked->after->at_us - asked->before->at_us);
    for (unsigned int k = 0; k < asked->count; k++) {
        gpm_metric_t *metric = &asked->metrics[k];
        metric->result = metric->id == GPM_GRAPHICS_UTIL ? SUCCESS : NOT_SUPPORTED;
        metric->value = 100 * (asked->after->busy_us - asked->before->busy_us) / passed_us;
    }
    return SUCCESS;
}
