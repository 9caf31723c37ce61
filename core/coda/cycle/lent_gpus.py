"""Lent GPUs go back to their owners, during one cycle: for whom, and who stops. The rules: `tenants.fair_share`."""

from __future__ import annotations

from collections.abc import Iterator, Set
from math import ceil

from coda.cache.gang_class import GangClass, QueuedJob
from coda.cache.world_index import WorldIndex
from coda.cycle.victims import stopped_in_turn
from coda.model.decision import Stop, WaitCode, WaitReason
from coda.model.job import Job, JobId, StopCause
from coda.nodes.node_groups import NodeGroups
from coda.promises.hold import PromiseHold
from coda.tenants import FairShareMemory, TenantLedger
from coda.tenants.fair_share import LentGangs, Takings, lent_gangs
from coda.tenants.memory import key_of_stop
from coda.wording import clock_text, counted, numbers_of


class LentGpus:
    """The lent GPUs of one cycle, once everything has started that can. `hold`: nobody is stopped on nodes that it
    keeps, and what it keeps is for one job only.

    `reasons`: why owners wait for them. `notes`: why nobody stops for them, by class. `wake_s`: when time alone lets
    somebody stop."""

    def __init__(self, index: WorldIndex, ledger: TenantLedger, now_s: float) -> None:
        self.hold = PromiseHold(index, None)
        self._index = index
        self._ledger = ledger
        self._config = index.config.fair_share
        self._now_s = now_s
        self._candidates: LentGangs | None = None
        self.reasons: dict[JobId, WaitReason] = {}
        self.wake_s: float | None = None
        self.notes: dict[GangClass, str] = {}
        self._use: dict[tuple[int, int, bool], tuple[int, int]] = {}  # of a kind of rank: usable, and in use

    def is_due(self, queued: QueuedJob) -> bool:
        """True if so many of the GPUs that the job could use are in use that gangs may stop for it. O(nodes) for the
        first job of each kind.

        GPUs count as in use if no rank of the job can have them: they are the rest of a node, or kept for another job.
        Nodes that it may not use, for one because it avoids them, do not count at all. If a limit of its tenant is
        reached, no idle GPU is for the job. A note says why nobody stops, if gangs would give what it needs."""
        from_use, job, gang_class = self._config.from_use, queued.job, queued.gang_class
        if from_use is None:
            return False
        if self._ledger.shortage(job) is not None:
            return bool(self._ledger.lacking(job))  # else what stops already leaves enough
        usable, used = self._use_for(job, self._index.rank_class(gang_class).groups)
        if usable > 0 and used >= from_use * usable:
            return True
        if usable > 0 and self._may_be_given(queued):
            self.notes[gang_class] = (  # without numbers that change from cycle to cycle
                f"what it needs is its VirtualCluster's own and lent: gangs give it back once at most "
                f"{1 - from_use:.0%} of {counted(usable, 'GPU')} are idle for ranks like its own"
            )
        return False

    def _may_be_given(self, queued: QueuedJob) -> bool:
        """True if the job would fit once gangs stop that it may take from, although not now.

        O(gangs that might stop x their nodes)."""
        ready, later = self._lent()
        runners = [*ready, *((runner, nodes) for _, runner, nodes in later)]
        takings = Takings(self._ledger, queued.job, owns=True)
        return bool(stopped_in_turn(runners, queued.job, self._index.rank_class(queued.gang_class), takings))

    def _use_for(self, job: Job, groups: NodeGroups) -> tuple[int, int]:
        """Return the GPUs of these nodes, and how many of them a rank of the job cannot have. O(nodes), once."""
        own, rank_gpus, capacity = self.hold.free_for(job.id), job.request.gpus, self._index.capacity
        key = (id(groups), rank_gpus, bool(own))
        if key not in self._use:
            usable = used = 0
            for number in groups.amount_by_node:
                gpus = capacity.nodes[number].allocatable.gpus
                idle = max(0, (own[number] if number in own else capacity.free(number)).gpus)
                usable += gpus
                used += gpus - idle + idle % rank_gpus
            self._use[key] = (usable, used)
        return self._use[key]

    def owed(self, early: Set[JobId]) -> list[QueuedJob]:
        """Return the first job of each class that still waits for GPUs its tenant owns, in order; none of `early`.

        O(classes log them)."""
        started = early | set(self._index.started())
        first: list[QueuedJob] = []
        for gang_class in self._index.queue.class_by_key.values():
            if not gang_class.job.request.gpus or not Takings(self._ledger, gang_class.job, owns=True).is_owed:
                continue
            startable: Iterator[QueuedJob] = gang_class.startable(self._now_s)
            queued = next((one for one in startable if one.job.id not in started), None)
            if queued is not None:
                first.append(queued)
        return sorted(first, key=self._index.sort_key)

    def stops_for(self, memory: FairShareMemory, queued: QueuedJob) -> tuple[Stop, ...]:
        """Return which gangs stop so that the job starts; nobody if it would not fit even then, or not yet.

        O(jobs that hold nodes) for the first job of a cycle, and O(gangs that might stop x their nodes) for each."""
        job, (ready, later) = queued.job, self._lent()
        rank_class = self._index.rank_class(queued.gang_class)
        takings = Takings(self._ledger, job, owns=True)
        stops = stopped_in_turn(ready, job, rank_class, takings, StopCause.FAIR_SHARE)
        if stops:
            next_s = memory.next_stop_s(self._config, {key_of_stop(stop) for stop in stops}, self._now_s)
            if next_s is None:
                return stops
            self._wait(job.id, next_s, "and too many jobs stopped for others in the last minute")
            return ()
        spared = [(runner, nodes) for _, runner, nodes in later]
        takings = Takings(self._ledger, job, owns=True)
        stops = stopped_in_turn([*ready, *spared], job, rank_class, takings) if spared else ()
        if stops:
            until_by_job = {runner.id: until_s for until_s, runner, _ in later}
            until_s = max([until_by_job.get(stop.job, self._now_s) for stop in stops])
            which, it, its = ("which has", "it", "its") if len(stops) == 1 else ("some of which have", "they", "their")
            since = f"since {it} began or {its} quota was edited"
            who = f"to {counted(len(stops), 'job')}, {which}"
            self._wait(job.id, until_s, f"{who} not run for the minimum time yet {since}")
        return ()

    def _lent(self) -> LentGangs:
        """The gangs that might stop for somebody: none on nodes that are kept. O(jobs that hold nodes), once."""
        if self._candidates is None:
            self._candidates = lent_gangs(self._ledger, self._index.holdings.all(), self._config, self._now_s)
        safe_nodes, found = self.hold.kept_nodes, self._candidates
        if not safe_nodes:
            return found
        return LentGangs(
            [runner for runner in found.ready if safe_nodes.isdisjoint(runner[1])],
            [one for one in found.later if safe_nodes.isdisjoint(one[2])],
        )

    def _wait(self, job: JobId, until_s: float, why: str) -> None:
        self.wake_s = until_s if self.wake_s is None else min(self.wake_s, until_s)
        owned = "the GPUs that it needs are its VirtualCluster's own and lent"
        self.reasons[job] = WaitReason(
            code=WaitCode.RECLAIM_DELAYED,
            message=f"{owned} {why}: they are given back from {clock_text(until_s)} on",
            numbers=numbers_of(not_before_s=ceil(until_s)),
        )
