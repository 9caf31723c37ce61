"""The running jobs that a rule of preemption may stop, in its order: those that resume. The rules are in
`policy.preemption_rules`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator, Mapping
from math import inf
from operator import itemgetter
from typing import Final

from coda.cache.usage import Usage
from coda.history.queue_estimates import GittinsIndices
from coda.model.job import Job
from coda.model.live_placement import live_placement
from coda.model.resources import NOTHING, Resources
from coda.policy.arrays import can_stop
from coda.policy.preemption_rules import PreemptionRule, lost_work
from coda.tenants import TenantLedger
from coda.tenants.fair_share import Takings

FAR_MORE: Final = 2
"""Jobs that hold more than so many times the GPUs that are asked for are stopped last. Our choice, see
docs/decisions/0148."""


class RunningJobs:
    """The running jobs, in the order of the moments that the rule judges them by."""

    def __init__(self, rule: PreemptionRule, shares: Usage | None, indices: GittinsIndices) -> None:
        self._rule = rule
        self._indices = indices
        self._shares = shares
        self._runners: list[tuple[float, str, Job, tuple[str, ...]]] = []
        self._count_by_priority: dict[int, int] = {}
        self.safe_nodes: frozenset[str] = frozenset()  # nobody is stopped there now
        self.tenants: TenantLedger | None = None  # tenants that hold no more than their own are protected
        self._gpus_by_node: dict[str, int] | None = None  # of the first `_counted` runners; None: count again
        self._counted = 0
        self._requests_by_node: dict[str, list[Resources]] = {}  # of the same runners' ranks
        self._held_by_node: dict[str, Resources] = {}  # their sums, of the nodes that were asked about
        self._lowest_of: tuple[int, float] | None = None  # how many runners, and the term; None: look again
        self._lowest_by_priority: dict[int, float] = {}

    def add(self, job: Job, nodes: tuple[str, ...]) -> None:
        """The job holds a rank on each of these nodes."""
        if _can_stop(job):
            self._gpus_by_node = self._lowest_of = None
            insort(self._runners, (self._rule.judged_at_s(job), job.id, job, nodes), key=_standing)
            self._count_by_priority[job.priority] = self._count_by_priority.get(job.priority, 0) + 1

    def remove(self, job: Job, nodes: tuple[str, ...]) -> None:
        """The job no longer holds a rank on each of these nodes."""
        if _can_stop(job):
            self._gpus_by_node = self._lowest_of = None
            del self._runners[bisect_left(self._runners, (self._rule.judged_at_s(job), job.id), key=_standing)]
            self._count_by_priority[job.priority] -= 1
            if not self._count_by_priority[job.priority]:
                del self._count_by_priority[job.priority]

    def renew(self, before: Job, job: Job, nodes: tuple[str, ...]) -> None:
        """The job changed and holds the same."""
        self.remove(before, nodes)
        self.add(job, nodes)

    def in_order(self, job: Job, now_s: float, *, is_overdue: bool) -> Iterable[tuple[Job, tuple[str, ...]]]:
        """Return the jobs in reach as they are chosen from: where the rule says so, the lowest priority first, of equal
        ones who is least likely to end soon, then who loses least work.

        Of a priority, those that hold more than `FAR_MORE` times the GPUs that the job asks for go last: a large gang
        has to wait until as many are free at once, and until then some are idle."""
        runners = self.in_reach(job, now_s, is_overdue=is_overdue)
        if not self._rule.least_likely_first:
            return runners
        most, indices = FAR_MORE * job.request.gpus * job.replicas, self._indices

        def key(runner: tuple[Job, tuple[str, ...]]) -> tuple[int, bool, int, float]:
            held = runner[0].request.gpus * runner[0].replicas
            return (runner[0].priority, held > most, indices.step_of(runner[0]), lost_work(runner[0], now_s))

        return sorted(runners, key=key)

    def gpus_in_reach(self, now_s: float) -> Mapping[str, int]:
        """Return the GPUs on each node that jobs hold whose moment has come. O(these jobs) when they changed."""
        beyond = bisect_right(self._runners, now_s, key=_moment)
        if self._gpus_by_node is None or self._counted != beyond:
            self._counted, self._gpus_by_node, self._requests_by_node, self._held_by_node = beyond, {}, {}, {}
            for _, _, runner, nodes in self._runners[:beyond]:
                for node in nodes:
                    self._gpus_by_node[node] = self._gpus_by_node.get(node, 0) + runner.request.gpus
                    self._requests_by_node.setdefault(node, []).append(runner.request)
        return self._gpus_by_node

    def held_in_reach(self, node: str) -> Resources:
        """Return all that the jobs of `gpus_in_reach` hold on a node, as it was asked last. O(1) when asked again."""
        held = self._held_by_node.get(node)
        if held is None:
            held = NOTHING
            for request in self._requests_by_node.get(node, ()):
                held = held + request
            self._held_by_node[node] = held
        return held

    @property
    def is_empty(self) -> bool:
        """True if no running job may be stopped for any other."""
        return not self._runners

    def may_lower_bar(self, job: Job) -> bool:
        """True if somebody may have been spared for the job, who would stop for one after it. O(1)."""
        return self._indices.wake_s is not None and self._indices.is_lowest(job)

    def lower_bar(self, job: Job) -> None:
        """The job would start if nobody were spared: who is spared for it is spared for those after it."""
        self._indices.lower_bar(job)

    def may_stop_for(self, job: Job, now_s: float) -> bool:
        """False if no running job may be stopped for the job, whatever the indices say: it must be tried, since its bar
        holds for those after it."""
        return bool(self._runners) and next(self.in_reach(job, now_s, by_index=False), None) is not None

    def wake_s(self, waiting: Iterable[Job], now_s: float) -> float | None:
        """Return the next moment at which time alone lets one of these stop a running job; None for never.

        O(jobs waiting) until one is found that may stop any job; O(1) if no moment comes."""
        if not self._rule.is_timed:
            return None
        index = bisect_right(self._runners, now_s, key=_moment)
        moment_s = self._runners[index][0] if index < len(self._runners) else inf
        again_s = self._indices.wake_s
        if again_s is not None:
            moment_s = min(moment_s, again_s)
        least = min(self._count_by_priority, default=inf) if self._rule.heeds_priority else inf
        if moment_s == inf or all(job.priority <= least and self._rule.reach(job, now_s) is None for job in waiting):
            return None
        return moment_s

    def in_reach(
        self, job: Job, now_s: float, *, is_overdue: bool = False, by_index: bool = True
    ) -> Iterator[tuple[Job, tuple[str, ...]]]:
        """Yield the jobs that the rule lets stop for this one, with their nodes, in the order it takes them.

        `by_index`: without those that are spared because they are likely to end soon (`GittinsIndices`)."""
        if self._rule.heeds_priority:
            yield from self._of_lower_rank(job, now_s, is_overdue=is_overdue, by_index=by_index)
            return
        span = self._rule.reach(job, now_s)
        if span is None or (self._rule.of_borrowers and not self._is_within_quota(job)):
            return
        borrowers = self._borrowers() if self._rule.of_borrowers else None
        first, beyond = (bisect_right(self._runners, moment, key=_moment) for moment in span)
        for _, job_id, runner, nodes in reversed(self._runners[first:beyond]):
            if borrowers is None or job_id in borrowers:
                yield runner, nodes

    def takings(self, job: Job) -> Takings | None:
        """Return what protects tenants from stops for this job; None if nothing does."""
        return None if self.tenants is None else Takings(self.tenants, job, owns=False)

    def _of_lower_rank(
        self, job: Job, now_s: float, *, is_overdue: bool, by_index: bool
    ) -> Iterator[tuple[Job, tuple[str, ...]]]:
        """Those whose slice is over and that go after the job, the last that had it first. Of equal priority, only
        those below the job's bar (`GittinsIndices`), unless it is overdue."""
        goes_first = is_overdue or self._rule.reach(job, now_s) is not None
        most = job.priority if goes_first else job.priority - 1
        least = min(self._count_by_priority, default=inf)
        if not job.request.gpus or most < least:
            return
        indices, bar = self._indices, inf
        if by_index and not is_overdue and most == job.priority:
            bar = indices.bar_of(job)
            if least == most and indices.spares(self._lowest_index(most, now_s), bar):
                return
        safe, takings = self.safe_nodes, self.takings(job)
        for _, _, runner, nodes in reversed(self._runners[: bisect_right(self._runners, now_s, key=_moment)]):
            if runner.priority > most or not safe.isdisjoint(nodes):
                continue
            if takings is not None and not takings.may_take(runner):
                continue
            if bar < inf and runner.priority == most and indices.spares(indices.index_of(runner), bar):
                continue
            yield runner, nodes

    def _lowest_index(self, priority: int, now_s: float) -> float:
        """Return the lowest index of the jobs of this priority whose moment has come. O(these jobs) when they changed,
        and once in each term."""
        beyond = bisect_right(self._runners, now_s, key=_moment)
        state = (beyond, self._indices.term_s)
        if self._lowest_of != state:
            self._lowest_of = state
            self._lowest_by_priority.clear()
        lowest = self._lowest_by_priority.get(priority)
        if lowest is None:
            ready = [runner for _, _, runner, _ in self._runners[:beyond] if runner.priority == priority]
            lowest = min(map(self._indices.index_of, ready), default=inf)
            self._lowest_by_priority[priority] = lowest
        return lowest

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
    return job.resumable and can_stop(job) and live_placement(job) is not None


_standing = itemgetter(0, 1)
_moment = itemgetter(0)
