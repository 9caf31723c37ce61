"""What ResourceQuotas leave for whole gangs.

A quota could admit some pods of a gang and not the others. So the whole gang is checked at once, and placed ranks
without pods count as used.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil

from coda.cache.job_facts import JobFacts, facts_of
from coda.model.decision import WaitCode, WaitReason
from coda.model.job import Job
from coda.model.quota_scopes import QuotaScope, is_counted
from coda.model.world import World
from coda.wording import numbers_of, quota_text

_CPU_KEYS = ("cpu", "limits.cpu", "requests.cpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortage:
    """A quota's key that leaves less than a whole gang needs; milli-units."""

    quota: str
    key: str
    needed_milli: int
    left_milli: int
    limit_milli: int
    scopes: tuple[QuotaScope, ...] = ()  # of the quota

    @property
    def is_whole(self) -> bool:
        """True if even the whole quota is too little."""
        return self.needed_milli > self.limit_milli


class QuotaLedger:
    """What every quota has left during one cycle: hard - used - placed ranks without pods - starts of the cycle."""

    def __init__(self, world: World, pending: Iterable[tuple[Job, JobFacts]] | None = None) -> None:
        """`pending`: the jobs with `ranks_without_pods` or `growth_m`, if known; by default they are looked for."""
        self._left: dict[str, list[tuple[str, dict[str, int], tuple[QuotaScope, ...]]]] = {}
        self._quota_by_key = {(quota.namespace, quota.name): quota for quota in world.quotas}
        for quota in sorted(world.quotas, key=lambda quota: (quota.namespace, quota.name)):
            left = {key: hard - quota.used.get(key, 0) for key, hard in sorted(quota.hard.items())}
            self._left.setdefault(quota.namespace, []).append((quota.name, left, quota.scopes))
        if self._left:
            for job, facts in ((job, facts_of(job)) for job in world.jobs) if pending is None else pending:
                self._count(job, facts.ranks_without_pods)
                self.count_growth(job, facts.growth_m)

    def shortage(self, job: Job) -> Shortage | None:
        """Return the first quota, by name and key, that leaves less than the whole gang needs, or None.

        One that is too small as a whole goes before: no job that ends helps there."""
        found: Shortage | None = None
        for quota, left in self._counting(job):
            for key, rest in left.items():
                needed = job.quota.get(key, 0) * job.replicas
                if needed > rest and needed:
                    short = self._shortage(job, quota, key, needed, rest)
                    if short.is_whole:
                        return short
                    found = found or short
        return found

    def growth_shortage(self, job: Job, cpu_m: int) -> Shortage | None:
        """Return the first quota that leaves less than these millicores for a running job; None if there is none."""
        for quota, left in self._counting(job):
            for key in _CPU_KEYS:
                rest = left.get(key)
                if rest is not None and key in job.quota and cpu_m > rest:
                    return self._shortage(job, quota, key, cpu_m, rest)
        return None

    def _shortage(self, job: Job, quota: str, key: str, needed: int, rest: int) -> Shortage:
        known = self._quota_by_key[job.namespace, quota]
        return Shortage(
            quota=quota,
            key=key,
            needed_milli=needed,
            left_milli=rest,
            limit_milli=known.hard[key],
            scopes=known.scopes,
        )

    def count_growth(self, job: Job, cpu_m: int) -> None:
        """Count these millicores of a running job as used."""
        for _, left in self._counting(job) if cpu_m else ():
            for key in _CPU_KEYS:
                if key in left and key in job.quota:
                    left[key] -= cpu_m

    def count_start(self, job: Job) -> None:
        """Count all ranks of a job that starts in this cycle as used."""
        self._count(job, job.replicas)

    def _counting(self, job: Job) -> list[tuple[str, dict[str, int]]]:
        """What the quotas that count the job's ranks have left, by their names."""
        return [
            (quota, left)
            for quota, left, scopes in self._left.get(job.namespace, ())
            if not scopes or is_counted(scopes, job.scopes)
        ]

    def _count(self, job: Job, ranks: int) -> None:
        if not ranks:
            return
        for _, left in self._counting(job):
            for key in left:
                left[key] -= job.quota.get(key, 0) * ranks


def beyond_quota(job: Job, quotas: QuotaLedger) -> WaitReason | None:
    """Return which ResourceQuota leaves too little for the whole gang, without holders; None: none does."""
    short = quotas.shortage(job)
    if short is None:
        return None
    needed, left = quota_text(short.key, short.needed_milli), quota_text(short.key, max(0, short.left_milli))
    message = f"the whole gang needs {needed} of {short.key}, and "
    if short.is_whole:
        limit = quota_text(short.key, short.limit_milli)
        message += f"all of ResourceQuota {short.quota} is {limit}: ask for less or for a larger quota"
    else:
        message += f"ResourceQuota {short.quota} leaves {left}"
    return WaitReason(
        code=WaitCode.QUOTA_EXCEEDED,
        message=message,
        numbers=numbers_of(needed=ceil(short.needed_milli / 1000), left=short.left_milli // 1000),
    )
