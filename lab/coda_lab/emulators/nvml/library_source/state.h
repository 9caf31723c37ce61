/* What the state file says, as the library holds it between two changes of the file. */
#ifndef CODA_NVML_STATE_H
#define CODA_NVML_STATE_H

#include "nvml_abi.h"

enum {
    MOST_DEVICES = 16,
    MOST_STEPS = 256,
    MOST_SAMPLES = 2048,
    MOST_PROCESSES = 64,
    MOST_SLICES = 8,
    MOST_LINKS = 36,
    MOST_CPU_WORDS = 16,
    MOST_FAULTS = 64,
    MOST_EVENTS = 256,
    UUID_BYTES = 96,
    CALL_BYTES = 64,
};

struct step { u64 since_us; double percent; };
struct taken { u64 at_us; unsigned int percent; };
struct link { int known, active; char remote[32]; };
struct delay { char call[CALL_BYTES]; u64 us; };
struct fault { int device; char call[CALL_BYTES]; int code; }; /* device -1: everywhere */

/* What the driver told of a device; `number` grows from event to event of the whole node. */
struct event { u64 number, type, content; unsigned int gpu_instance, compute_instance; int device; };

struct process {
    unsigned int pid;
    long long memory; /* -1: not told */
    unsigned int gpu_instance, compute_instance, percent;
    u64 since_us;
};

struct process_sample {
    unsigned int pid;
    u64 at_us;
    unsigned int percent;
    int stale;
};

struct slice {
    unsigned int slot;
    char uuid[UUID_BYTES];
    unsigned int gpu_instance, compute_instance;
    u64 memory, used;
    double percent; /* -1: the device has no performance monitoring (GPM) */
    u64 since_us;
    double busy_us; /* until since_us */
    char profile[32];
};

struct pcie { double sent_per_s, received_per_s; int counters; u64 since_us, sent, received; };

struct device {
    char uuid[UUID_BYTES], name[96], bus_id[32];
    unsigned int minor;
    u64 memory, used;
    u64 period_us;
    unsigned int buffered;
    int lost, numa_node, mig; /* -1: not offered by the product */
    u64 cpus[MOST_CPU_WORDS];
    int has_cpus;
    int step_count, sample_count, process_count, process_sample_count, slice_count;
    struct step steps[MOST_STEPS];
    struct taken samples[MOST_SAMPLES];
    struct process processes[MOST_PROCESSES];
    struct process_sample process_samples[MOST_PROCESSES];
    struct slice slices[MOST_SLICES];
    struct link links[MOST_LINKS];
    struct pcie pcie;
};

struct state {
    u64 generation, epoch;
    char driver[80];
    int loaded;
    u64 frozen_us; /* 0: the wall clock */
    int device_count, fault_count, delay_count, event_count;
    struct device devices[MOST_DEVICES];
    int ancestors[MOST_DEVICES][MOST_DEVICES];
    struct fault faults[MOST_FAULTS];
    struct delay delays[MOST_FAULTS];
    struct event events[MOST_EVENTS]; /* the last ones, in order */
};

/* The newest state; NULL when the file is missing or cannot be read as one. Call it under the library's lock. */
const struct state *state_now(void);

/* The clock of the samples, in microseconds. */
u64 state_clock_us(const struct state *state);

#endif
