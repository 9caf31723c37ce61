"""What ResourceQuotas leave for whole gangs. What must not live here: nodes.

A quota that admits one pod of a gang but not all would start it by halves, so the whole gang is checked at once, and
ranks that were planned but whose pods do not exist yet count as used.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from coda.model.job import Job, Phase
from coda.model.live_placement import growth_by_node, is_resizing, live_placement
from coda.model.world import World

_CPU_KEYS = ("cpu", "limits.cpu", "requests.cpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortage:
    """A quota's key that leaves less than a whole gang needs; milli-units."""

    quota: str
    key: str
    needed_milli: int
    left_milli: int


class QuotaLedger:
    """What every quota has left during one round: hard - used - planned ranks without pods - starts of the round."""

    def __init__(self, world: World, planned: Iterable[Job] | None = None) -> None:
        """`planned`: where known, the jobs with `ranks_without_pods` or `growth_m`; by default all are looked at."""
        self._left: dict[str, list[tuple[str, dict[str, int]]]] = {}
        for quota in sorted(world.quotas, key=lambda quota: (quota.namespace, quota.name)):
            left = {key: hard - quota.used.get(key, 0) for key, hard in sorted(quota.hard.items())}
            self._left.setdefault(quota.namespace, []).append((quota.name, left))
        if self._left:
            for job in world.jobs if planned is None else planned:
                self._take(job, ranks_without_pods(job))
                self.grow(job, growth_m(job))

    def shortage(self, job: Job) -> Shortage | None:
        """The first quota, by name and key, that leaves less than all ranks of the job need; None without one."""
        for quota, left in self._left.get(job.namespace, ()):
            for key, rest in left.items():
                needed = job.quota.get(key, 0) * job.replicas
                if needed > rest and needed:
                    return Shortage(quota=quota, key=key, needed_milli=needed, left_milli=rest)
        return None

    def growth_shortage(self, job: Job, cpu_m: int) -> Shortage | None:
        """The same for so many more millicores of a job that runs."""
        for quota, left in self._left.get(job.namespace, ()):
            for key in _CPU_KEYS:
                rest = left.get(key)
                if rest is not None and key in job.quota and cpu_m > rest:
                    return Shortage(quota=quota, key=key, needed_milli=cpu_m, left_milli=rest)
        return None

    def grow(self, job: Job, cpu_m: int) -> None:
        """Count so many more millicores of a job that runs."""
        for _, left in self._left.get(job.namespace, ()) if cpu_m else ():
            for key in _CPU_KEYS:
                if key in left and key in job.quota:
                    left[key] -= cpu_m

    def take(self, job: Job) -> None:
        """Count all ranks of a job that starts in this round."""
        self._take(job, job.replicas)

    def _take(self, job: Job, ranks: int) -> None:
        if not ranks:
            return
        for _, left in self._left.get(job.namespace, ()):
            for key in left:
                left[key] -= job.quota.get(key, 0) * ranks


def ranks_without_pods(job: Job) -> int:
    """How many ranks of a live plan have no pod that the quota's own count could see."""
    # Pods are only created while the job is queued with a plan; what is missing later is gone, not to come.
    if job.phase is not Phase.QUEUED or live_placement(job) is None:
        return 0
    return job.replicas - len(job.bound.union(job.unbound))


def growth_m(job: Job) -> int:
    """Millicores that were granted to a running job and that its pods do not count with yet."""
    if job.placement is None or job.placement.answer is None or not is_resizing(job):
        return 0
    return sum(growth_by_node(job, job.placement.answer.cores).values())
