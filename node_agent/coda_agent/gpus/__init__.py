"""The node's GPUs: what they do, how they are linked, and whose they are. What was not measured is None, never 0.

NVML is the source of the first two; the kubelet's pod-resources socket and the processes on each GPU of the third. It
does not decide what a measured value means. Read `devices` (the words), `nvml` (the calls), `session`, `discovery`,
`samples` and `measure` (one device), `gpus` (all of them), `links`, then `allocations`, `pod_resources`, `processes`
and `ownership`."""
