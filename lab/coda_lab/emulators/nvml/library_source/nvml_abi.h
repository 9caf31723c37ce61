/* The part of NVML's binary interface that the emulator offers: numbers and layouts as nvidia-ml-py expects them. */
#ifndef CODA_NVML_ABI_H
#define CODA_NVML_ABI_H

#define EXPORT __attribute__((visibility("default")))

typedef int nvmlReturn_t;
typedef struct opaque_device *nvmlDevice_t;
typedef unsigned long long u64;

enum {
    SUCCESS = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9,
    TIMEOUT = 10,
    GPU_IS_LOST = 15,
    LIB_RM_VERSION_MISMATCH = 18,
    ARGUMENT_VERSION_MISMATCH = 25,
    UNKNOWN = 999,
};

enum { VALUE_UNSIGNED_INT = 1, VALUE_UNSIGNED_LONG_LONG = 3 };
enum { SAMPLES_GPU_UTILIZATION = 1, SAMPLES_MEMORY_UTILIZATION = 2 };
enum { GPM_GRAPHICS_UTIL = 1, GPM_METRICS_VERSION = 1 };
enum { FIELD_PCIE_TX_BYTES = 197, FIELD_PCIE_RX_BYTES = 198 };
enum { EVENT_XID = 8 };
enum { NO_INSTANCE = 0xFFFFFFFF };

typedef union {
    double d;
    unsigned int ui;
    unsigned long ul;
    u64 ull;
    long long sll;
    int si;
    unsigned short us;
} value_t;

typedef struct {
    u64 timestamp_us;
    value_t value;
} sample_t;

typedef struct {
    unsigned int gpu, memory;
} utilization_t;

typedef struct {
    u64 total, free, used;
} memory_t;

typedef struct {
    unsigned int version;
    u64 total, reserved, free, used;
} memory_v2_t;

typedef struct {
    unsigned int pid;
    u64 used_memory;
    unsigned int gpu_instance, compute_instance;
} process_info_t;

typedef struct {
    unsigned int pid;
    u64 timestamp_us;
    unsigned int sm, mem, enc, dec;
} process_sample_t;

typedef struct opaque_gpm_sample *gpm_sample_t;

typedef struct {
    unsigned int id;
    nvmlReturn_t result;
    double value;
    const char *short_name, *long_name, *unit;
} gpm_metric_t;

typedef struct {
    unsigned int version, count;
    gpm_sample_t before, after;
    gpm_metric_t metrics[]; /* NVML_GPM_METRIC_MAX, which grows with every version */
} gpm_metrics_get_t;

typedef struct opaque_event_set *event_set_t;

typedef struct {
    nvmlDevice_t device;
    u64 type, content;
    unsigned int gpu_instance, compute_instance;
} event_data_t;

typedef struct {
    char bus_id_legacy[16];
    unsigned int domain, bus, device, device_id, subsystem_id;
    char bus_id[32];
} pci_info_t;

typedef struct {
    unsigned int field, scope;
    long long timestamp_us, latency_us;
    unsigned int value_type;
    nvmlReturn_t result;
    value_t value;
} field_value_t;

#endif
