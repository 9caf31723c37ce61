"""The cgroups of pods: where they are, their CPU time, and their CPU limits. It does not decide what to lower.

Read `identity` (names to pods), `layout` (directories), `threads`, `usage`, then `quota` (limits as values) and
`limits` (reads and writes them)."""

from coda_agent.cgroups.layout import (
    ENDED,
    ContainerCgroup,
    Layout,
    PodCgroup,
    Version,
    find_layout,
    find_pod,
    list_containers,
    list_pods,
)
from coda_agent.cgroups.threads import threads_of
from coda_agent.cgroups.usage import rates_between, read_use

__all__ = [
    "ENDED",
    "ContainerCgroup",
    "Layout",
    "PodCgroup",
    "Version",
    "find_layout",
    "find_pod",
    "list_containers",
    "list_pods",
    "rates_between",
    "read_use",
    "threads_of",
]
