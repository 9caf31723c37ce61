"""What will be free on each node, and when, if the jobs there end when they are expected to.

It is worked out again only for nodes where that can differ: a job came, left or changed, other capacity is free, or the
expected end of a job there no longer counts. `ExpectedEnds` gives the same answers as long, so nothing is asked less
often than its answers change.
"""

from __future__ import annotations

from math import inf
from typing import NamedTuple

from coda.cache.holdings import Holdings
from coda.cache.world_index import WorldIndex
from coda.model.job import JobId
from coda.model.resources import Resources
from coda.nodes.free_capacity import FreeCapacity
from coda.promises.expected_ends import ExpectedEnds

Step = tuple[float, Resources]
"""From when on so much is free."""

End = tuple[float, JobId, Resources]
"""When a job on a node is expected to end, its id, and what it holds there."""


class _NodeEnds(NamedTuple):
    """What was worked out for one node. `steps` follow from `ends` and from the amount that is `free` now."""

    until_s: float  # the ends count until then
    ends: tuple[End, ...]
    free: int
    steps: tuple[Step, ...]


class NodeEnds:
    """The expected ends on the nodes of one planner's index. O(jobs that hold nodes) values."""

    def __init__(self, ends: ExpectedEnds) -> None:
        self._ends = ends
        self._holdings: Holdings | None = None
        self._capacity: FreeCapacity | None = None
        self._place = 0  # how far the journal of holdings is read
        self._upsets = 0
        self._known: dict[int, _NodeEnds] = {}

    def refresh(self, index: WorldIndex) -> None:
        """Forget the nodes whose jobs changed. Call it before `steps`, once in a cycle. O(changes)."""
        journal, capacity = index.holdings.watch(), index.capacity
        is_same = self._holdings is index.holdings and self._capacity is capacity
        names = journal.since(self._place) if is_same else None
        if names is None:
            self._known.clear()
            self._holdings, self._capacity = index.holdings, capacity
        else:
            for name in names:
                number = capacity.number_by_name.get(name)
                if number is not None:
                    self._known.pop(number, None)
        self._place = journal.end

    def steps(self, index: WorldIndex, number: int, now_s: float) -> tuple[Step, ...]:
        """Return what is free on the node after each expected end, in order. Ties: by id. What is free now is left out.

        O(1), or O(jobs there, log) if something differs."""
        return self._known_on(index, number, now_s).steps

    def ends(self, index: WorldIndex, number: int, now_s: float) -> tuple[End, ...]:
        """Return the ends that `steps` are made of, in the same order; jobs without a known end are left out."""
        return self._known_on(index, number, now_s).ends

    def _known_on(self, index: WorldIndex, number: int, now_s: float) -> _NodeEnds:
        if self._upsets != self._ends.upsets:
            self._upsets = self._ends.upsets
            self._known.clear()
        free = index.capacity.free_amounts[number]
        known = self._known.get(number)
        if known is None or now_s >= known.until_s:
            ends, until_s = self._ends_at(index, index.capacity.nodes[number].name, now_s)
            known = self._known[number] = _NodeEnds(until_s, ends, free, _steps(index.capacity.free(number), ends))
        elif known.free != free:
            steps = _steps(index.capacity.free(number), known.ends)
            known = self._known[number] = _NodeEnds(known.until_s, known.ends, free, steps)
        return known

    def _ends_at(self, index: WorldIndex, name: str, now_s: float) -> tuple[tuple[End, ...], float]:
        found: list[End] = []
        until_s = inf
        for job, ranks in index.holdings.at(name):
            end_s = self._ends.end_s(job, now_s)
            until_s = min(until_s, self._ends.counts_until_s(job))
            if end_s < inf:
                found.append((end_s, job.id, job.request * ranks))
        found.sort(key=_in_time)
        return tuple(found), until_s


def _in_time(end: End) -> tuple[float, JobId]:
    return end[0], end[1]


def _steps(free: Resources, ends: tuple[End, ...]) -> tuple[Step, ...]:
    steps: list[Step] = []
    for end_s, _, amount in ends:
        free = free + amount
        steps.append((end_s, free))
    return tuple(steps)
