"""The peak memory bandwidth of a node: found, measured if necessary, and stored. When to limit is the core's decision.

Read `controllers` (which caches share one), `peak` (which value counts), `dimm_speed` (the theoretical value), then
`calibrate` (measures) with `idle_check`, `memory_headroom` and `load_generator`. The resctrl file system itself is
`resctrl`. Nothing is exported here: every process of the load imports this package, and must stay small."""
