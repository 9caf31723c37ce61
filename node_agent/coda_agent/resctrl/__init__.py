"""Memory bandwidth by the kernel's resctrl file system: abilities, counters, limits. It decides no throttle.

There is one throttle group `coda-throttle`, and a monitoring group `coda-<uid>` for every pod: below the root while the
pod is free, below the throttle group while it is throttled. So one class of service is enough, and one rename throttles
a pod. Names without `coda-` belong to others and are never written. A *domain* has one last-level cache and one limit:
a socket on Intel, a core complex on AMD; the core calls it a socket.

Read `layout` (names), `schemata` (text of limits), `probe` (abilities), `counters` (measures), `tasks` (threads of a
group), `groups` (one method per step), `pod_groups` (a group for every pod), then `remove`."""

from coda_agent.resctrl.counters import MemoryTraffic, TrafficMeter
from coda_agent.resctrl.groups import GroupOutcome, Groups
from coda_agent.resctrl.pod_groups import PodGroups
from coda_agent.resctrl.probe import Abilities, Unit, domain_by_cpu, limits_by_domain, probe_abilities

__all__ = [
    "Abilities",
    "GroupOutcome",
    "Groups",
    "MemoryTraffic",
    "PodGroups",
    "TrafficMeter",
    "Unit",
    "domain_by_cpu",
    "limits_by_domain",
    "probe_abilities",
]
