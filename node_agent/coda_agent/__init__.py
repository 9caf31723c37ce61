"""The node agent: it measures GPUs, memory bandwidth and cores, tunes training jobs and throttles CPU pods.

Every decision is the core's (`coda.contention`, `coda.allocator`). Here the node is read, and decisions are written.
Read `loop` (one round: read, decide, write), `sensor` (read), `throttling` and `tuning` (write), `node` (what is held
open), then the packages for one kernel or driver interface each: `cgroups`, `gpus`, `resctrl`."""
