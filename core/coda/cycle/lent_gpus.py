"""Lent GPUs go back to their owners, during one cycle: for whom, and who stops. The rules: `tenants.fair_share`."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from coda.cache.gang_class import QueuedJob
from coda.cache.world_index import WorldIndex
from coda.cycle.victims import stopped_in_turn
from coda.model.decision import Stop, WaitCode, WaitReason
from coda.model.job import JobId, StopCause
from coda.tenants import FairShareMemory, TenantLedger
from coda.tenants.fair_share import LentGangs, Takings, lent_gangs
from coda.tenants.memory import key_of_stop
from coda.wording import clock_text, counted, numbers_of


class LentGpus:
    """The lent GPUs of one cycle; made when it begins, before anything is kept or starts. O(nodes).

    `reasons`: why owners wait for them. `wake_s`: when time alone lets somebody stop."""

    def __init__(self, index: WorldIndex, ledger: TenantLedger, now_s: float) -> None:
        self._index = index
        self._ledger = ledger
        self._config = index.config.fair_share
        self._now_s = now_s
        self._candidates: LentGangs | None = None
        self.reasons: dict[JobId, WaitReason] = {}
        self.wake_s: float | None = None
        capacity, blocked, free = index.capacity, 0, 0
        for number, amount in enumerate(capacity.free_amounts):
            gpus = max(0, capacity.amounts[amount].gpus)
            free += gpus
            if not capacity.nodes[number].schedulable:
                blocked += gpus
        self._usable = ledger.gpus - blocked
        self._used = ledger.gpus - free

    def is_due(self) -> bool:
        """True if so many of the GPUs that could be used are in use that gangs may stop. O(jobs that start)."""
        from_use = self._config.from_use
        if from_use is None or self._usable <= 0:
            return False
        started = [self._index.holdings.of(job) for job in self._index.started()]
        used = self._used + sum([one.job.request.gpus * len(one.nodes) for one in started if one is not None])
        return used >= from_use * self._usable

    def owed(self) -> list[QueuedJob]:
        """Return the first job of each class that still waits for GPUs its tenant owns, in order.

        O(classes log them)."""
        started = self._index.started()
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
        if self._candidates is None:
            self._candidates = lent_gangs(self._ledger, self._index.holdings.all(), self._config, self._now_s)
        job, (ready, later) = queued.job, self._candidates
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
            which = "which has" if len(stops) == 1 else "some of which have"
            self._wait(job.id, until_s, f"to {counted(len(stops), 'job')}, {which} not run for the minimum time yet")
        return ()

    def _wait(self, job: JobId, until_s: float, why: str) -> None:
        self.wake_s = until_s if self.wake_s is None else min(self.wake_s, until_s)
        owned = "the GPUs that it needs are its VirtualCluster's own and lent"
        self.reasons[job] = WaitReason(
            code=WaitCode.RECLAIM_DELAYED,
            message=f"{owned} {why}: they are given back from {clock_text(until_s)} on",
            numbers=numbers_of(not_before_s=ceil(until_s)),
        )
