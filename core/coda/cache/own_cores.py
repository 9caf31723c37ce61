"""Where CPU jobs start in one cycle on cores that their own array has: nobody takes these back.

Thousands of overdue CPU jobs may start in one cycle. So the nodes that fit a class are listed once, and afterwards only
those are looked at that have changed.
"""

from __future__ import annotations

from bisect import bisect_left, insort

from coda.cache.array_capacity import ArrayCapacity
from coda.model.decision import WaitCode, WaitReason
from coda.model.job import Job
from coda.model.resources import CPU, Resources
from coda.nodes.free_capacity import FreeCapacity
from coda.nodes.node_search import RankClass
from coda.wording import amount_text, numbers_of

_Place = tuple[int, int, int]
"""The millicores that are free on a node, its number, and how many ranks it has room for."""


class OwnCores:
    """Of one cycle, in which jobs only start: no node comes or goes, and no job gives anything back."""

    def __init__(self, arrays: ArrayCapacity, capacity: FreeCapacity) -> None:
        self._arrays = arrays
        self._capacity = capacity
        self._places_by_class: dict[RankClass, _Places] = {}

    def place(self, job: Job) -> list[tuple[int, int]] | None:
        """Return where a CPU job starts on cores that the CPU array owns and its other jobs leave it; None if nowhere.

        The nodes with fewest cores free; ties: by name. O(nodes where the CPU array owns enough) for the first job of a
        class, then O(nodes that changed, log)."""
        rank_class = self._arrays.own_rank_class(job)
        if rank_class is None:
            return None
        places = self._places_by_class.get(rank_class)
        if places is None:
            places = self._places_by_class[rank_class] = _Places(self._arrays, self._capacity, rank_class)
        places.refresh()
        shares, missing = [], job.replicas
        for _, number, ranks in places.in_order:
            shares.append((number, min(ranks, missing)))
            missing -= ranks
            if missing <= 0:
                return shares
        return None


def lacks_own_cores(arrays: ArrayCapacity | None, job: Job) -> WaitReason | None:
    """Return why a CPU job waits that may not borrow, if its array owns too few cores or other jobs use them.

    None if it may borrow, lacks none of them, or there are no arrays. O(nodes)."""
    if arrays is None or job.request.gpus or job.may_borrow:
        return None
    own, asked = arrays.own_rank_class(job), amount_text(CPU, job.request.cpu_m)
    if own is None:
        most_m = arrays.most_own_m()
        most = amount_text(CPU, most_m)
        message = f"needs {asked} and may not borrow; the CPU array owns at most {most} on any node"
        return _short_of_cores(message, asked_m=job.request.cpu_m, most_own_m=most_m)
    own.groups.refresh()
    left_m = max([0, *(arrays.own_left_m(number) for number in own.groups.amount_by_node)])
    if left_m >= job.request.cpu_m:
        return None
    left = amount_text(CPU, left_m)
    message = f"needs {asked} and may not borrow; other jobs leave the CPU array at most {left} on any node"
    return _short_of_cores(message, asked_m=job.request.cpu_m, most_left_m=left_m)


def _short_of_cores(message: str, **numbers: int) -> WaitReason:
    return WaitReason(code=WaitCode.INSUFFICIENT_CPU, message=message, numbers=numbers_of(**numbers), short_of=CPU)


class _Places:
    """The nodes with room for a rank of one class, those with fewest cores free first."""

    def __init__(self, arrays: ArrayCapacity, capacity: FreeCapacity, rank_class: RankClass) -> None:
        self.in_order: list[_Place] = []
        self._arrays = arrays
        self._capacity = capacity
        self._request: Resources = rank_class.request
        rank_class.groups.refresh()
        self._numbers = rank_class.groups.amount_by_node.keys()
        self._by_number: dict[int, _Place] = {}
        self._read_until = -1

    def refresh(self) -> None:
        """Look at what changed since the last call, or at every node."""
        journal = self._capacity.journal
        changed = None if self._read_until < 0 else journal.since(self._read_until)
        self._read_until = journal.end
        if changed is None:
            found = [place for number in self._numbers if (place := self._place(number)) is not None]
            self.in_order, self._by_number = sorted(found), {place[1]: place for place in found}
            return
        for number in {*changed} & self._numbers:
            before, after = self._by_number.pop(number, None), self._place(number)
            if before is not None:
                del self.in_order[bisect_left(self.in_order, before)]
            if after is not None:
                insort(self.in_order, after)
                self._by_number[number] = after

    def _place(self, number: int) -> _Place | None:
        left_m, free = self._arrays.own_left_m(number), self._capacity.free(number)
        if left_m < self._request.cpu_m or not self._request.fits_in(free):
            return None
        return free.cpu_m, number, self._request.times_in(free.with_cpu(min(left_m, free.cpu_m)))
