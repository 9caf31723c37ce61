"""The node's GPUs: what they do, how they are linked, and whose they are. What was not measured is None, never 0.

NVML is the source of the first two; the kubelet's pod-resources socket and the processes on each GPU of the third. It
does not decide what a measured value means. Read `devices` (the words), `nvml` (the calls), `session`, `discovery`,
`samples` and `measure` (one device), `gpus` (all of them), `links`, then `allocations`, `pod_resources`, `processes`
and `ownership`."""

from coda_agent.gpus.devices import GpuReading, Health, LibraryState, Snapshot
from coda_agent.gpus.gpus import Gpus
from coda_agent.gpus.links import Link, find_links
from coda_agent.gpus.ownership import Ownership, holding_of
from coda_agent.gpus.pod_resources import PodResources
from coda_agent.gpus.processes import ProcessOwners
from coda_agent.gpus.samples import Moment

__all__ = [
    "GpuReading",
    "Gpus",
    "Health",
    "LibraryState",
    "Link",
    "Moment",
    "Ownership",
    "PodResources",
    "ProcessOwners",
    "Snapshot",
    "find_links",
    "holding_of",
]
