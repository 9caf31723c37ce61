"""Keeps others from the nodes that are kept for jobs, while one cycle starts them."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType

from coda.cache.gang_class import GangClass, QueuedJob
from coda.cache.world_index import WorldIndex
from coda.model.job import JobId
from coda.model.resources import Resources
from coda.nodes.node_search import EligibleNodes
from coda.promises.earliest_start import amount_for
from coda.promises.promise_book import PromiseBook
from coda.promises.reserved_nodes import Kept


class PromiseHold:
    """Until it is left, others find on the kept nodes only what is left for them, and protected nodes are safe.

    `kept`: for whom; no node matches two of them. Without kept nodes it does nothing."""

    def __init__(self, index: WorldIndex) -> None:
        self.kept: list[Kept] = []
        self._index = index
        self._left: dict[int, Resources] = {}  # for others
        self._free: dict[int, Resources] = {}
        self._rest: dict[int, Resources] = {}  # of what was left for others
        self.kept_nodes: frozenset[str] = frozenset()
        self._is_beside: dict[EligibleNodes, bool] = {}
        self._on: dict[EligibleNodes, Sequence[Kept]] = {}

    def __enter__(self) -> None:
        pass

    def keep(self, kept: Kept) -> None:
        """Keep others from these nodes, too."""
        index = self._index
        self.kept.append(kept)
        self._is_beside, self._on = {}, {}
        self._left |= kept.left_for_others
        self._free |= {number: index.capacity.free(number) for number in kept.left_for_others}
        self.kept_nodes = frozenset([index.capacity.nodes[number].name for number in self._left])
        index.set_free(kept.left_for_others)
        if index.arrays is not None:
            index.arrays.protect_nodes(frozenset([number for one in self.kept for number in one.protected]))
        if index.running is not None:
            index.running.safe_nodes = self.kept_nodes

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Put back what was kept, less what others took beside it."""
        if not self.kept:
            return
        free = {number: amount for kept in self.kept for number, amount in self.free_for(kept.job.id).items()}
        self._rest = {number: self._index.capacity.free(number) for number in self._left}
        self._index.set_free(free)
        if self._index.arrays is not None:
            self._index.arrays.unprotect_nodes()
        if self._index.running is not None:
            self._index.running.safe_nodes = frozenset()

    @property
    def is_full(self) -> bool:
        """True if nobody else can have nodes kept: a job with kept nodes could use every node, or only one may."""
        if self._index.policy.reserves_for_first and self.kept:
            return True
        return any(len(kept.eligible.matching) == len(self._index.capacity.nodes) for kept in self.kept)

    def is_beside(self, gang_class: GangClass) -> bool:
        """True if no job with kept nodes could use a node that these gangs could. O(nodes) for each constraints."""
        eligible = self._index.rank_class(gang_class).eligible
        if eligible not in self._is_beside:
            matching = eligible.matching
            self._is_beside[eligible] = all(matching.isdisjoint(kept.eligible.matching) for kept in self.kept)
        return self._is_beside[eligible]

    def on(self, gang_class: GangClass) -> Sequence[Kept]:
        """Return those whose nodes gangs of this class might take. O(nodes) for each constraints, if there are several.

        All, if there is one, or the class could not be judged."""
        rank_class = gang_class.rank_class
        if len(self.kept) < 2 or rank_class is None:
            return self.kept
        eligible = rank_class.eligible
        if eligible not in self._on:
            matching = eligible.matching
            self._on[eligible] = [kept for kept in self.kept if not matching.isdisjoint(kept.eligible.matching)]
        return self._on[eligible]

    def ends_in_time(self, queued: QueuedJob, book: PromiseBook, now_s: float) -> bool:
        """True if a job that starts now is expected to end before the promised ones can start; for certain, if that is
        certain."""
        job, beside = queued.job, self.on(queued.gang_class)
        for promise in [kept.promise for kept in beside]:
            run_s = job.run_left_s if promise.is_certain else book.ends.cautious_s(job, now_s)
            if run_s is None or run_s > promise.start_s - now_s:
                return False
        return bool(beside)

    def may_end_in_time(self, gang_class: GangClass, book: PromiseBook, now_s: float) -> bool:
        """False if no job of the class that may start ends in time. One job of each kind is asked, in order, and none
        after the first that does: book and answers are as if each job was asked."""
        for queued in gang_class.run_kinds():
            if queued.may_start(now_s) and self.ends_in_time(queued, book, now_s):
                return True
        return False

    def free_for(self, job: JobId) -> dict[int, Resources]:
        """Return what the job that nodes are kept for finds on them, until it is left; nothing for others.

        What others took beside it is gone."""
        free_now, found = self._index.capacity.free, dict[int, Resources]()
        for kept in self.kept:
            if kept.job.id == job:
                for number, left in kept.left_for_others.items():
                    found[number] = self._free[number] - (left - free_now(number))
        return found

    def keeps_idle(self, request: Resources) -> bool:
        """True if a rank with this request fits on a kept node, and not beside what is kept there."""
        free = self._index.capacity.free
        return any(request.fits_in(free(n)) and not request.fits_in(rest) for n, rest in self._rest.items())

    def count_idle(self) -> None:
        """The starts of the cycle are done: what is still idle is at the cost of each promise."""
        free, rest = self._index.capacity.free, self._rest
        for kept in self.kept:
            job = kept.job
            kept.promise.idle = sum(
                max(0.0, amount_for(job, free(number)) - max(0.0, amount_for(job, rest[number])))
                for number in kept.left_for_others
            )
