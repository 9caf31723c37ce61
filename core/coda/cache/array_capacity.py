"""What each array may take of every node, kept while jobs come and go. What must not live here: the arrays' rules.

Each view of the nodes is a room of its own, so that a gang is looked for in it as in any other.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Set
from enum import Enum
from typing import NamedTuple

from coda.cache.queue import GangClass
from coda.model.decision import Stop, StopCause
from coda.model.job import Job, JobId
from coda.model.resources import NOTHING, Resources
from coda.model.world import ArraySizes
from coda.nodes.candidates import Score
from coda.nodes.free_capacity import FreeCapacity
from coda.nodes.node_search import NodeSearch, RankClass
from coda.policy.arrays import (
    NO_CLAIMS,
    Array,
    Claims,
    Held,
    Victim,
    array_of,
    claims_of,
    claims_with,
    cpu_jobs_capacity,
    gpu_jobs_capacity,
    held_by,
    large_nodes,
    reserved_cpu_m,
    victims,
)
from coda.policy.config import Component, PolicyConfig


class CapacityView(Enum):
    """What is looked at as free on a node."""

    __hash__ = object.__hash__

    FREE = "all that is free"
    GPU = "what GPU jobs may take"
    CPU = "what CPU jobs may take without borrowing"
    AFTER_RECLAIM = "what GPU jobs could take if borrowing CPU jobs were stopped"
    AFTER_MIGRATION = "what large jobs could take if small ones were stopped as well"
    AFTER_RECLAIM_PROTECTED = "as reclaimed, but for the nodes where nobody may be stopped"
    AFTER_MIGRATION_PROTECTED = "as cleared, but for the nodes where nobody may be stopped"


class StartOption(NamedTuple):
    """A way to start a gang: the view, the sub-array's nodes (None: all), and whether that is borrowed."""

    view: CapacityView
    side: Array | None = None
    borrows: bool = False
    stops: bool = False


Way = tuple[StartOption, RankClass]


class ArrayCapacity:
    """The arrays of one set of nodes."""

    def __init__(self, search: NodeSearch, config: PolicyConfig, sizes: ArraySizes | None, score: Score | None) -> None:
        capacity = self._capacity = search.capacity
        self.borrowing = Component.BORROWING not in config.without
        self.evictable: set[int] = set()  # nodes that stops would leave more room on
        self.are_protected = False  # nodes are kept for somebody: on some nobody may be stopped
        self._protected: Set[int] = frozenset()  # these, in the views that say so
        self._stale: set[int] = set()  # nodes that these views have not followed
        self._migration = Component.MIGRATION not in config.without
        self.sizes = sizes or config.arrays.sizes(sum(node.allocatable.gpus for node in capacity.nodes))
        large = large_nodes(capacity.nodes, self.sizes.large_gpus)
        self._reserves = [reserved_cpu_m(node.allocatable, self.sizes.reserve_cores_per_gpu) for node in capacity.nodes]
        self._held: list[dict[JobId, Held]] = [{} for _ in capacity.nodes]
        self._claims: list[Claims | None] = [NO_CLAIMS for _ in capacity.nodes]  # None: to be summed up again
        self._seen: list[tuple[int, Claims] | None] = [None for _ in capacity.nodes]  # when it was looked at last
        self._after_stops = [(NOTHING, NOTHING, NOTHING) for _ in capacity.nodes]  # GPU jobs' own, RECLAIMED, CLEARED
        self._is_large = [node.name in large for node in capacity.nodes]
        self._search_by_view = {CapacityView.FREE: search}
        for view in _VIEWS:
            own = FreeCapacity(capacity.nodes, config.levels, tells_sizes=score is not None)
            is_same = view is CapacityView.GPU and self.borrowing
            self._search_by_view[view] = search if is_same else NodeSearch(own, config, score)
        self._capacities = tuple(self._search_by_view[view].capacity for view in _VIEWS)
        numbers = range(len(capacity.nodes))
        sides: dict[Hashable, frozenset[int]] = {
            Array.LARGE: frozenset(number for number in numbers if self._is_large[number]),
            Array.SMALL: frozenset(number for number in numbers if not self._is_large[number]),
        }
        for each in self._search_by_view.values():
            each.sides = sides

    def hold(self, job: Job, nodes: tuple[str, ...], sign: int) -> None:
        """The job, or this version of it, holds these nodes, or no more; `follow` them then."""
        number_by_name = self._capacity.number_by_name
        numbers = [number_by_name.get(name) for name in nodes]
        is_guest = (
            job.request.gpus > 0
            and array_of(job) is Array.SMALL
            and all(n is not None and self._is_large[n] for n in numbers)
        )
        for number in set(numbers) if len(numbers) > 1 else numbers:
            if number is None:
                continue
            held_here = self._held[number]
            if sign > 0:
                ranks = 1 if len(numbers) == 1 else numbers.count(number)
                before, after = held_here.get(job.id), held_by(job, ranks, is_guest=is_guest)
                held_here[job.id] = after
            else:
                before, after = held_here.pop(job.id, None), None
            claims = self._claims[number]
            self._claims[number] = None if claims is None else claims_with(claims, before, after)

    def follow(self, numbers: Iterable[int]) -> None:
        """What is free on these nodes, or who holds it, has changed. O(1) for a node where it has not."""
        free_amounts, seen_by_node = self._capacity.free_amounts, self._seen
        for number in numbers:
            claims = self._claims[number]
            if claims is None:
                held = self._held[number]
                claims = self._claims[number] = claims_of(held.values()) if held else NO_CLAIMS
            seen = (free_amounts[number], claims)
            if seen_by_node[number] != seen:
                seen_by_node[number] = seen
                self._look(number, claims)

    def keep(self, protected: frozenset[int]) -> None:
        """Nodes are kept for somebody until `keep_no_more`, and on these nobody is stopped."""
        self._stale |= protected ^ self._protected
        self.are_protected, self._protected = True, protected
        for number in self._stale:
            self._show_kept(number)
        self._stale.clear()

    def unprotect_nodes(self) -> None:
        """Everybody may be stopped who may be stopped at all."""
        self.are_protected = False

    def _show_kept(self, number: int) -> None:
        own, after_reclaim, after_clearing = self._after_stops[number]
        hides = number in self._protected
        reclaimed, cleared = self._capacities[4:]
        reclaimed.put(number, own if hides else after_reclaim)
        cleared.put(number, own if hides else after_clearing)

    def _look(self, number: int, claims: Claims) -> None:
        """Look at a node anew."""
        free, reserve = self._capacity.free(number), self._reserves[number]
        gpu, cpu, reclaimed, cleared = self._capacities[:4]
        own = free
        if gpu is not self._capacity:
            own = gpu_jobs_capacity(free, claims.gpu_jobs_cpu_m, reserve)
            gpu.put(number, own)
        cpu.put(number, cpu_jobs_capacity(free, claims.gpu_jobs_cpu_m, reserve))
        moved = claims.movable if self._migration and self._is_large[number] else claims.borrowed
        after_reclaim = own if claims.borrowed is NOTHING else own + claims.borrowed
        after_clearing = after_reclaim if moved is claims.borrowed else own + moved
        reclaimed.put(number, after_reclaim)
        cleared.put(number, after_clearing)
        self._after_stops[number] = (own, after_reclaim, after_clearing)
        (self.evictable.discard if after_clearing == free else self.evictable.add)(number)
        if self.are_protected:
            self._show_kept(number)
        else:
            self._stale.add(number)

    @property
    def minds_the_queue(self) -> bool:
        """True where it hangs on who waits in the array before whether a job may borrow."""
        return not self._migration

    def ways(self, gang_class: GangClass, *, may_borrow: bool) -> tuple[Way, ...]:
        """The ways to start a gang of this shape, the best first. `may_borrow`: nobody waits in the arrays before
        its own. Only small GPU jobs that cannot be moved must mind: what CPU jobs borrow they give back at once."""
        key = (may_borrow, self.are_protected)
        ways: tuple[Way, ...] | None = gang_class.ways.get(key)
        if ways is None:
            options = self._options(gang_class.array, is_gang=gang_class.job.replicas > 1, may_borrow=may_borrow)
            rank_classes = (self._search(option.view).rank_class(gang_class.job, option.side) for option in options)
            ways = gang_class.ways[key] = tuple(zip(options, rank_classes, strict=True))
        return ways

    def _search(self, view: CapacityView) -> NodeSearch:
        return self._search_by_view[_PROTECTED_VIEW.get(view, view) if self.are_protected else view]

    def _options(self, array: Array, *, is_gang: bool, may_borrow: bool) -> tuple[StartOption, ...]:
        if array is Array.CPU:
            return _CPU if self.borrowing else _CPU[:1]
        if array is Array.SMALL and not may_borrow and not self._migration:
            return _SMALL_AT_HOME
        options = _LARGE if array is Array.LARGE else _SMALL
        return (*options[:-1], _ANYWHERE, options[-1]) if is_gang else options

    def stops_for(self, job: Job, rank_class: RankClass) -> tuple[Stop, ...]:
        """Who must stop so that the job can start where `kind`, a view after stops, has room; by id. None without room.

        A gang of one rank takes the node where the fewest jobs move, then the fewest cores are freed beyond need, then
        the first by name. O(nodes) for it."""
        if job.replicas == 1:
            numbers = [
                number
                for number in rank_class.groups.amount_by_node
                if job.request.fits_in(rank_class.groups.capacity.free(number))
            ]
            ways = [self._victims_on(job, 1, number) for number in sorted(numbers)]
            return _stops(job, min(ways, key=_cost, default=[]))
        rank_class.candidates.refresh()
        shares = rank_class.candidates.place(job.replicas, rank_class.within) or []
        return _stops(job, [victim for number, ranks in shares for victim in self._victims_on(job, ranks, number)])

    def free_after_stops(self, number: int) -> Resources:
        """What would be free on a node if everybody were stopped there who may be."""
        return self._after_stops[number][2]

    def free_for_growth(self, number: int) -> Resources:
        """What a GPU job that runs on this node may take there."""
        return self._search_by_view[CapacityView.GPU].capacity.free(number)

    def stops_for_growth(self, job: Job, growth_m: Mapping[int, int]) -> tuple[Stop, ...]:
        """Which borrowing CPU jobs must stop so that the GPU job can have so many more millicores on each of these
        nodes; by id. None where that is too few, or needless."""
        reclaimed = self._search_by_view[CapacityView.AFTER_RECLAIM].capacity
        if any(cpu_m > reclaimed.free(number).cpu_m for number, cpu_m in growth_m.items()):
            return ()
        found: list[Victim] = []
        for number, cpu_m in growth_m.items():
            wanted, free = Resources(cpu_m=cpu_m), self.free_for_growth(number)
            found += victims(self._held[number].values(), wanted, free, small_too=False)
        return _stops(job, found)

    def _victims_on(self, job: Job, ranks: int, number: int) -> list[Victim]:
        free = self._search_by_view[CapacityView.GPU].capacity.free(number)
        guests = self._migration and self._is_large[number] and array_of(job) is Array.LARGE
        return victims(self._held[number].values(), job.request * ranks, free, small_too=guests)


def _cost(found: list[Victim]) -> tuple[int, int]:
    moved = sum(cause is StopCause.MIGRATE for _, cause in found)
    return moved, sum(held.amount.cpu_m for held, _ in found)


def _stops(by: Job, found: list[Victim]) -> tuple[Stop, ...]:
    """One stop for each victim, by id, were it on several nodes."""
    stop_by_job = {
        held.job.id: Stop(job=held.job.id, attempt=held.job.attempt, cause=cause, by=by.id) for held, cause in found
    }
    return tuple(stop_by_job[job_id] for job_id in sorted(stop_by_job))


_VIEWS = (
    CapacityView.GPU,
    CapacityView.CPU,
    CapacityView.AFTER_RECLAIM,
    CapacityView.AFTER_MIGRATION,
    CapacityView.AFTER_RECLAIM_PROTECTED,
    CapacityView.AFTER_MIGRATION_PROTECTED,
)
_PROTECTED_VIEW = {
    CapacityView.AFTER_RECLAIM: CapacityView.AFTER_RECLAIM_PROTECTED,
    CapacityView.AFTER_MIGRATION: CapacityView.AFTER_MIGRATION_PROTECTED,
}
_CPU = (StartOption(CapacityView.CPU), StartOption(CapacityView.FREE, borrows=True))
_LARGE = (
    StartOption(CapacityView.GPU, Array.LARGE),
    StartOption(CapacityView.GPU, Array.SMALL),
    StartOption(CapacityView.AFTER_MIGRATION, stops=True),
)
_SMALL = (
    StartOption(CapacityView.GPU, Array.SMALL),
    StartOption(CapacityView.GPU, Array.LARGE, borrows=True),
    StartOption(CapacityView.AFTER_RECLAIM, stops=True),
)
_SMALL_AT_HOME = (
    StartOption(CapacityView.GPU, Array.SMALL),
    StartOption(CapacityView.AFTER_RECLAIM, Array.SMALL, stops=True),
)
_ANYWHERE = StartOption(CapacityView.GPU)
