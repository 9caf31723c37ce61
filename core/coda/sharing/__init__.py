"""GPU sharing: who may share a GPU with whom, and what each gets of it. Values in, values out; no GPU is touched here.

Read `job_classes` and `pairing` (who suits whom), `gpu_placement` (which GPUs, Algorithm 1 of AntMan), then
`coordinator` with `pace_control`, `memory_limits`, `memory_waits` and `memory_trial` (what happens on the GPU).
`policies` is the table."""
