"""Which running jobs stop for a waiting job, where a policy preempts. The rules are in `policy.preemption`."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator
from math import inf
from operator import itemgetter

from coda.cache.usage import Usage
from coda.model.decision import Stop, StopCause
from coda.model.job import Job
from coda.model.live_placement import live_placement
from coda.model.resources import NOTHING, Resources
from coda.nodes.node_search import RankClass
from coda.policy.arrays import RUNNING
from coda.policy.preemption import PreemptionRule


class RunningJobs:
    """The running jobs, in the order of the moments that the rule judges them by."""

    def __init__(self, rule: PreemptionRule, shares: Usage | None) -> None:
        self._rule = rule
        self._shares = shares
        self._runners: list[tuple[float, str, Job, tuple[str, ...]]] = []

    def add(self, job: Job, nodes: tuple[str, ...]) -> None:
        """The job holds a rank on each of these nodes."""
        if _can_stop(job):
            insort(self._runners, (self._rule.judged_at_s(job), job.id, job, nodes), key=_standing)

    def remove(self, job: Job, nodes: tuple[str, ...]) -> None:
        """The job no longer holds a rank on each of these nodes."""
        if _can_stop(job):
            del self._runners[bisect_left(self._runners, (self._rule.judged_at_s(job), job.id), key=_standing)]

    def renew(self, before: Job, job: Job, nodes: tuple[str, ...]) -> None:
        """The job changed and holds the same."""
        self.remove(before, nodes)
        self.add(job, nodes)

    def may_stop_for(self, job: Job, now_s: float) -> bool:
        """False if no running job may be stopped for the job."""
        return next(self._in_reach(job, now_s), None) is not None

    def stops_for(self, job: Job, rank_class: RankClass, now_s: float) -> tuple[Stop, ...]:
        """Return who must stop so that the job fits, by id; nobody if it would not fit even then.

        Jobs in reach are chosen in order until the job fits. Then, in the opposite order, each is spared if the job
        fits without stopping it. O(jobs in reach x their nodes); O(nodes) more for a job that needs one domain."""
        what_if = WhatIf(rank_class, job.replicas)
        chosen: list[tuple[Job, tuple[str, ...]]] = []
        for runner, nodes in self._in_reach(job, now_s):
            if what_if.remove(runner, nodes):
                chosen.append((runner, nodes))
                if what_if.fits():
                    break
        else:
            return ()
        for runner, nodes in reversed(chosen[:]):
            what_if.restore(runner, nodes)
            if what_if.fits():
                chosen.remove((runner, nodes))
            else:
                what_if.remove(runner, nodes)
        stops = (
            Stop(job=runner.id, attempt=runner.attempt, cause=StopCause.PREEMPT, by=job.id) for runner, _ in chosen
        )
        return tuple(sorted(stops, key=lambda stop: stop.job))

    def wake_s(self, waiting: Iterable[Job], now_s: float) -> float | None:
        """Return the next moment at which time alone lets one of these stop a running job; None for never.

        O(jobs waiting) until one is found that may stop any job."""
        if not self._rule.is_timed or all(self._rule.reach(job, now_s) is None for job in waiting):
            return None
        index = bisect_right(self._runners, now_s, key=_moment)
        moment_s = self._runners[index][0] if index < len(self._runners) else inf
        return moment_s if moment_s < inf else None

    def _in_reach(self, job: Job, now_s: float) -> Iterator[tuple[Job, tuple[str, ...]]]:
        span = self._rule.reach(job, now_s)
        if span is None or (self._rule.of_borrowers and not self._is_within_quota(job)):
            return
        borrowers = self._borrowers() if self._rule.of_borrowers else None
        first, beyond = (bisect_right(self._runners, moment, key=_moment) for moment in span)
        for _, job_id, runner, nodes in reversed(self._runners[first:beyond]):
            if borrowers is None or job_id in borrowers:
                yield runner, nodes

    def _is_within_quota(self, job: Job) -> bool:
        return self._shares is not None and self._shares.is_within_quota(job)

    def _borrowers(self) -> set[str]:
        """The jobs beyond their tenant's quota, counted from the oldest job."""
        gpus_by_tenant: dict[str, int] = {}
        borrowers: set[str] = set()
        assert self._shares is not None
        for _, job_id, runner, _ in self._runners:
            tenant = runner.virtual_cluster
            held = gpus_by_tenant[tenant] = gpus_by_tenant.get(tenant, 0) + runner.request.gpus * runner.replicas
            if held > self._shares.quota_of(tenant):
                borrowers.add(job_id)
        return borrowers


def _can_stop(job: Job) -> bool:
    return job.phase in RUNNING and live_placement(job) is not None


_standing = itemgetter(0, 1)
_moment = itemgetter(0)


_ANYWHERE = ""


class WhatIf:
    """Whether a gang would fit if some jobs were gone. Judges as `Candidates.place` does."""

    def __init__(self, rank_class: RankClass, replicas: int) -> None:
        self._rank_class = rank_class
        self._replicas = replicas
        self._capacity = rank_class.groups.capacity
        self._gained: dict[int, Resources] = {}
        rank_class.candidates.refresh()
        self._domains = None if rank_class.within is None else self._capacity.levels[rank_class.within].domain_by_node
        self._ranks: dict[str | None, int] = {_ANYWHERE: rank_class.candidates.ranks}
        if self._domains is not None:
            self._ranks = {}
            for number in rank_class.groups.amount_by_node:
                self._count(number, self._ranks_on(number))

    def fits(self) -> bool:
        """True if all ranks fit, in one domain if they must."""
        return max(self._ranks.values(), default=0) >= self._replicas

    def remove(self, job: Job, nodes: Iterable[str]) -> bool:
        """Count this job as gone. False if that changes nothing for the gang."""
        return self._change(nodes, job.request)

    def restore(self, job: Job, nodes: Iterable[str]) -> None:
        """Undo `remove` of this job."""
        self._change(nodes, NOTHING - job.request)

    def _change(self, nodes: Iterable[str], gain: Resources) -> bool:
        matters = False
        for name in nodes:
            number = self._capacity.number_by_name.get(name)
            if number is None or number not in self._rank_class.groups.amount_by_node:
                continue
            before = self._ranks_on(number)
            self._gained[number] = self._gained.get(number, NOTHING) + gain
            self._count(number, self._ranks_on(number) - before)
            matters = True
        return matters

    def _ranks_on(self, number: int) -> int:
        free = self._capacity.free(number)
        gained = self._gained.get(number)
        return self._rank_class.request.times_in(free if gained is None else free + gained)

    def _count(self, number: int, ranks: int) -> None:
        domain = _ANYWHERE if self._domains is None else self._domains[number]
        self._ranks[domain] = self._ranks.get(domain, 0) + ranks
