"""The node's GPUs: what they do, how they are linked, and whose they are. What was not measured is None, never 0.

NVML is the source of the first two, in a process of its own (`driver`), because a call into the driver may never
return. The kubelet's pod-resources socket and the processes on each GPU are the source of the third. It does not decide
what a measured value means. Read `devices` (the words), `samples`, `driver_process` (asks the process), then
`allocations`, `pod_resources`, `processes` and `ownership`.

The driver's process imports this package too: it costs memory there, so only words and samples are its face."""

from coda_agent.gpus.devices import GpuReading, Health, LibraryState, Link, Snapshot
from coda_agent.gpus.samples import Moment

__all__ = [
    "GpuReading",
    "Health",
    "LibraryState",
    "Link",
    "Moment",
    "Snapshot",
]
