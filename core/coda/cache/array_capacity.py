"""What each array may take of every node, kept up to date. The rules are in `policy.arrays`.

Each view of the nodes is a `FreeCapacity` of its own, so the search for nodes is the same in every view.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Set

from coda.cache.gang_class import CapacityView, GangClass, StartOption, Way
from coda.model.job import Job, JobId
from coda.model.resources import NOTHING, Resources
from coda.model.world import ArrayQuota
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
    others_reserve_m,
    returnable_cpu_m,
    victims,
)
from coda.policy.config import Component, PolicyConfig
from coda.policy.core_loans import Loan, could_not_return, own_cores, spare_cores, taken_back
from coda.policy.division import divide
from coda.policy.reclaim import kept_until_s


class ArrayCapacity:
    """The arrays of one set of nodes."""

    def __init__(
        self, search: NodeSearch, config: PolicyConfig, quotas: Iterable[ArrayQuota], score: Score | None
    ) -> None:
        capacity = self._capacity = search.capacity
        self.borrowing = Component.BORROWING not in config.without
        self.evictable: set[int] = set()  # nodes where a job could be stopped
        self.are_protected = False  # there is a reservation, and on some nodes nobody may be stopped
        self._protected: Set[int] = frozenset()  # these nodes
        self._stale: set[int] = set()  # nodes whose *_PROTECTED views are not up to date
        self._migration = Component.MIGRATION not in config.without
        self._reclaim = config.reclaim
        self._takes_back = self.borrowing and config.arrays.takes_back
        division = divide(capacity.nodes, quotas, config.arrays)
        self._reserves = division.reserves_cpu_m
        self._held: list[dict[JobId, Held]] = [{} for _ in capacity.nodes]
        self._claims: list[Claims | None] = [NO_CLAIMS for _ in capacity.nodes]  # None: add up again
        self._others_m = [0 for _ in capacity.nodes]  # of the reserve, used by GPU pods of others
        self._seen: list[tuple[int, Claims, int] | None] = [
            None for _ in capacity.nodes
        ]  # free amount, claims and `_others_m` at the last `_recompute`
        self._after_stops = [
            (NOTHING, NOTHING, NOTHING) for _ in capacity.nodes
        ]  # views GPU, AFTER_RECLAIM, AFTER_MIGRATION
        self._is_large = division.is_large
        self._search_by_view = {CapacityView.FREE: search}
        for view in _VIEWS:
            own = FreeCapacity(capacity.nodes, config.levels, tells_sizes=score is not None)
            is_same = view is CapacityView.GPU and self.borrowing
            self._search_by_view[view] = search if is_same else NodeSearch(own, config, score)
        self.stuck: set[JobId] = set()  # jobs that were told to give cores back and could not
        self._returned: FreeCapacity | None = None  # view AFTER_RETURNS
        if self._takes_back:
            self._returned = FreeCapacity(capacity.nodes, config.levels, tells_sizes=score is not None)
            self._search_by_view[CapacityView.AFTER_RETURNS] = NodeSearch(self._returned, config, score)
        self.searches = tuple(dict.fromkeys(self._search_by_view.values()))  # each tells when a node is replaced
        self._capacities = tuple(self._search_by_view[view].capacity for view in _VIEWS)
        numbers = range(len(capacity.nodes))
        sides: dict[Hashable, frozenset[int]] = {
            Array.LARGE: frozenset(number for number in numbers if self._is_large[number]),
            Array.SMALL: frozenset(number for number in numbers if not self._is_large[number]),
        }
        self._sides = sides
        for each in self._search_by_view.values():
            each.sides = sides

    def add(self, job: Job, nodes: tuple[str, ...]) -> None:
        """The job, or this version of it, holds a rank on each of these nodes. Call `refresh` after it."""
        numbers = self._numbers(nodes)
        is_small = job.request.gpus > 0 and array_of(job) is Array.SMALL
        is_guest = is_small and all(n is not None and self._is_large[n] for n in numbers)
        spare = self._spare_cores(job, numbers) if self._takes_back and job.tunable else 0
        (self.stuck.add if self._takes_back and could_not_return(job) else self.stuck.discard)(job.id)
        for number in set(numbers) if len(numbers) > 1 else numbers:
            if number is not None:
                ranks = 1 if len(numbers) == 1 else numbers.count(number)
                kept_s = kept_until_s(job, self._reclaim)
                held_here = self._held[number]
                after = held_by(job, ranks, is_guest=is_guest, kept_until_s=kept_s, spare=spare)
                before, held_here[job.id] = held_here.get(job.id), after
                self._change_claims(number, before, after)

    def _spare_cores(self, job: Job, numbers: list[int | None]) -> int:
        nodes, reserves = self._capacity.nodes, self._reserves
        known = {number for number in numbers if number is not None}
        return spare_cores(job, own_cores(job, [(nodes[n].allocatable, reserves[n]) for n in known]))

    def remove(self, job: Job, nodes: tuple[str, ...]) -> None:
        """The job holds nothing any more on these nodes. Call `refresh` after it."""
        self.stuck.discard(job.id)
        for number in set(self._numbers(nodes)):
            if number is not None:
                self._change_claims(number, self._held[number].pop(job.id, None), None)

    def renew(self, before: Job, job: Job, nodes: tuple[str, ...]) -> None:
        """The job changed and holds the same nodes. Call `refresh` after it."""
        self.add(job, nodes)

    def _numbers(self, nodes: tuple[str, ...]) -> list[int | None]:
        number_by_name = self._capacity.number_by_name
        return [number_by_name.get(name) for name in nodes]

    def _change_claims(self, number: int, before: Held | None, after: Held | None) -> None:
        claims = self._claims[number]
        self._claims[number] = None if claims is None else claims_with(claims, before, after)

    def _claims_on(self, number: int) -> Claims:
        claims = self._claims[number]
        if claims is None:
            held = self._held[number]
            claims = self._claims[number] = claims_of(held.values()) if held else NO_CLAIMS
        return claims

    def refresh_others(self, numbers: Iterable[int], in_flight: Mapping[str, Resources]) -> None:
        """Find what bound pods of others hold of these nodes. Call `refresh` after it. `in_flight`: as in `World`.

        What is free there must be as the world says: what is set aside in a cycle is not theirs."""
        capacity = self._capacity
        for number in numbers:
            node, untaken = capacity.nodes[number], capacity.free(number)
            if node.name in in_flight:
                untaken = untaken + in_flight[node.name]
            claims, reserve = self._claims_on(number), self._reserves[number]
            self._others_m[number] = others_reserve_m(node.allocatable, untaken, claims, reserve)

    def refresh(self, numbers: Iterable[int]) -> None:
        """Recompute the views of these nodes. O(1) for a node where nothing changed."""
        free_amounts, seen_by_node = self._capacity.free_amounts, self._seen
        for number in numbers:
            claims = self._claims_on(number)
            seen = (free_amounts[number], claims, self._others_m[number])
            if seen_by_node[number] != seen:
                seen_by_node[number] = seen
                self._recompute(number, claims)

    def protect_nodes(self, protected: frozenset[int]) -> None:
        """Stop nobody on these nodes until `unprotect_nodes`."""
        self._stale |= protected ^ self._protected
        self.are_protected, self._protected = True, protected
        for number in self._stale:
            self._recompute_protected(number)
        self._stale.clear()

    def unprotect_nodes(self) -> None:
        """End `protect_nodes`."""
        self.are_protected = False

    def _recompute_protected(self, number: int) -> None:
        own, after_reclaim, after_migration = self._after_stops[number]
        is_protected = number in self._protected
        reclaimed, migrated = self._capacities[4:]
        reclaimed.set_free(number, own if is_protected else after_reclaim)
        migrated.set_free(number, own if is_protected else after_migration)

    def _recompute(self, number: int, claims: Claims) -> None:
        free, reserve = self._capacity.free(number), self._reserves[number]
        gpu_jobs_m = claims.gpu_jobs_cpu_m + self._others_m[number]
        gpu, cpu, reclaimed, migrated = self._capacities[:4]
        own = free
        if gpu is not self._capacity:
            own = gpu_jobs_capacity(free, gpu_jobs_m, reserve)
            gpu.set_free(number, own)
        of_cpu_jobs = cpu_jobs_capacity(free, gpu_jobs_m, reserve)
        cpu.set_free(number, of_cpu_jobs)
        if self._returned is not None:
            returned_m = returnable_cpu_m(gpu_jobs_m, claims.spare_cpu_m, reserve)
            returned = of_cpu_jobs.with_cpu(of_cpu_jobs.cpu_m + returned_m) if returned_m else of_cpu_jobs
            self._returned.set_free(number, returned)
        moved = claims.movable if self._migration and self._is_large[number] else claims.borrowed
        after_reclaim = own if claims.borrowed is NOTHING else own + claims.borrowed
        after_migration = after_reclaim if moved is claims.borrowed else own + moved
        reclaimed.set_free(number, after_reclaim)
        migrated.set_free(number, after_migration)
        self._after_stops[number] = (own, after_reclaim, after_migration)
        (self.evictable.discard if after_migration == free else self.evictable.add)(number)
        if self.are_protected:
            self._recompute_protected(number)
        else:
            self._stale.add(number)

    @property
    def borrowing_depends_on_queue(self) -> bool:
        """True if a job may borrow only while nobody waits in the arrays before its own."""
        return not self._migration

    def ways(self, gang_class: GangClass, *, may_borrow: bool) -> tuple[Way, ...]:
        """Return the ways to start a gang of this class, best first.

        `may_borrow`: nobody waits in the arrays before its own. It matters for small GPU jobs without migration only:
        CPU jobs give back at once what they borrow."""
        key = (may_borrow, self.are_protected)
        ways = gang_class.ways.get(key)
        if ways is None:
            options = self._options(gang_class, may_borrow=may_borrow)
            rank_classes = (self._search(option.view).rank_class(gang_class.job, option.side) for option in options)
            ways = gang_class.ways[key] = tuple(zip(options, rank_classes, strict=True))
        return ways

    def _search(self, view: CapacityView) -> NodeSearch:
        return self._search_by_view[_PROTECTED_VIEW.get(view, view) if self.are_protected else view]

    def _options(self, gang_class: GangClass, *, may_borrow: bool) -> tuple[StartOption, ...]:
        array, job = gang_class.array, gang_class.job
        if array is Array.CPU:
            # On kept nodes what comes back is kept too: nothing is taken back as long as there are some.
            takes_back = _TAKING_BACK if self._takes_back and not self.are_protected else ()
            return (*(_CPU if self.borrowing and job.may_borrow else _CPU[:1]), *takes_back)
        if array is Array.SMALL and not may_borrow and not self._migration:
            return _SMALL_AT_HOME
        options: tuple[StartOption, ...] = _SMALL
        if array is Array.LARGE:
            options = _LARGE if self._migration else _LARGE[:-1]
        return (*options[:2], _ANYWHERE, *options[2:]) if job.replicas > 1 else options

    def own_rank_class(self, job: Job) -> RankClass | None:
        """Return the class of a CPU job's ranks on the nodes where the CPU array owns enough cores for one.

        None if it owns so many nowhere, or for a gang that needs one domain. O(nodes) at the first call for the job's
        cores."""
        side, cpu_m = ("own", job.request.cpu_m), job.request.cpu_m
        if side not in self._sides:
            nodes = self._capacity.nodes
            own = (number for number in range(len(nodes)) if self._own_cpu_m(number) >= cpu_m)
            self._sides[side] = frozenset(own)
        if not self._sides[side] or job.within is not None:
            return None
        return self._search_by_view[CapacityView.FREE].rank_class(job, side)

    def own_left_m(self, number: int) -> int:
        """Return the millicores of a node that the CPU array owns and its jobs leave it. It may be below 0."""
        claims = self._claims[number] or claims_of(self._held[number].values())
        return self._own_cpu_m(number) - claims.cpu_jobs_cpu_m

    def holds_own(self, number: int, job: JobId) -> bool:
        """True if the job holds cores of a node that belong to the CPU array: it does not borrow them."""
        held = self._held[number].get(job)
        return held is not None and not held.is_borrower and not held.job.request.gpus

    def most_own_m(self) -> int:
        """Return the most millicores of one node that belong to the CPU array; 0 without nodes. O(nodes)."""
        return max([0, *(self._own_cpu_m(number) for number in range(len(self._capacity.nodes)))])

    def _own_cpu_m(self, number: int) -> int:
        """The millicores of a node that belong to the CPU array."""
        return self._capacity.nodes[number].allocatable.cpu_m - self._reserves[number]

    def free_after_stops(self, number: int) -> Resources:
        """Return what would be free on a node after every stop that is possible there."""
        return self._after_stops[number][2]

    def free_for_growth(self, number: int) -> Resources:
        """Return what a GPU job that runs on this node may take there."""
        return self._search_by_view[CapacityView.GPU].capacity.free(number)

    def free_after_reclaim(self, number: int) -> Resources:
        """Return what a GPU job could take on a node once every borrowing CPU job there has stopped."""
        return self._search_by_view[CapacityView.AFTER_RECLAIM].capacity.free(number)

    def may_leave(self, gpus: int, taken: Iterable[int]) -> bool:
        """False if guests certainly find no place for so many GPUs of theirs on nodes that are not `taken`."""
        capacity = self._search_by_view[CapacityView.AFTER_RECLAIM].capacity
        return gpus <= capacity.free_gpus - sum(max(0, capacity.free(number).gpus) for number in taken)

    def gpu_rank_class(self, job: Job) -> RankClass:
        """Return the class of a GPU job's ranks by what GPU jobs may take now, on nodes of all arrays."""
        return self._search_by_view[CapacityView.GPU].rank_class(job)

    def guest_rank_class(self, job: Job) -> RankClass:
        """Return the class of a guest's ranks where they could go on, on any node, once borrowing CPU jobs stop."""
        return self._search(CapacityView.AFTER_RECLAIM).rank_class(job, None)

    def victims_on(self, job: Job, ranks: int, number: int, *, moves: bool, now_s: float) -> list[Victim]:
        """Return who must stop on a node so that these ranks of the job fit there. `moves`: guests too."""
        guests = moves and self._is_large[number]
        free = self.free_for_growth(number)
        return victims(self._held[number].values(), job.request * ranks, free, small_too=guests, now_s=now_s)

    def kept_on_nodes(self, is_kept: Callable[[Held], bool]) -> dict[int, Resources]:
        """Return, by node, what borrowers hold that are to stay. O(nodes, and jobs where any borrows)."""
        kept: dict[int, Resources] = {}
        for number, claims in enumerate(self._claims):
            if claims is not None and claims.borrowed is NOTHING:
                continue
            for one in self._held[number].values():
                if one.is_borrower and is_kept(one):
                    kept[number] = kept.get(number, NOTHING) + one.amount
        return kept

    def spare(self, kept: Mapping[int, Resources]) -> None:
        """Count these amounts as not given back until `refresh_stops` of these nodes."""
        reclaimed, migrated = self._after_stop_capacities()
        for number, amount in kept.items():
            if self.are_protected and number in self._protected:
                continue  # nobody is stopped there
            reclaimed.set_free(number, reclaimed.free(number) - amount)
            migrated.set_free(number, migrated.free(number) - amount)

    def refresh_stops(self, numbers: Iterable[int]) -> None:
        """End `spare` on these nodes."""
        reclaimed, migrated = self._after_stop_capacities()
        for number in numbers:
            own, after_reclaim, after_migration = self._after_stops[number]
            is_protected = self.are_protected and number in self._protected
            reclaimed.set_free(number, own if is_protected else after_reclaim)
            migrated.set_free(number, own if is_protected else after_migration)

    def _after_stop_capacities(self) -> tuple[FreeCapacity, FreeCapacity]:
        """Of the views that `ways` gives now."""
        found = self._capacities[4:] if self.are_protected else self._capacities[2:4]
        return found[0], found[1]

    def returns_cpu_m(self, wanted: Resources, number: int) -> int:
        """Return the millicores that a CPU job with this amount lacks on a node, of what its array owns there."""
        return wanted.cpu_m - self._search_by_view[CapacityView.CPU].capacity.free(number).cpu_m

    def returns_on(self, wanted: Resources, number: int) -> dict[JobId, tuple[Job, int]]:
        """Return the GPU jobs that give cores back on a node so that a CPU job there gets this amount of its own, each
        with how many cores per rank."""
        held = self._held[number].values()
        loans = [Loan(one.job, one.ranks, one.spare, _nodes_of(one.job)) for one in held if one.spare]
        taken = taken_back(loans, self.returns_cpu_m(wanted, number))
        return {loan.job.id: (loan.job, taken[loan.job.id]) for loan in loans if loan.job.id in taken}

    def borrowers_on(self, wanted: Resources, number: int, *, now_s: float) -> list[Victim]:
        """Return the CPU jobs that must give borrowed cores back on a node so that a GPU job there gets this amount."""
        free = self.free_for_growth(number)
        return victims(self._held[number].values(), wanted, free, small_too=False, now_s=now_s)


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
_TAKING_BACK = (StartOption(CapacityView.AFTER_RETURNS, takes_back=True),)
_LARGE = (
    StartOption(CapacityView.GPU, Array.LARGE),
    StartOption(CapacityView.GPU, Array.SMALL),
    StartOption(CapacityView.AFTER_RECLAIM, stops=True),
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


def _nodes_of(job: Job) -> int:
    return len(set(job.placement.nodes)) if job.placement is not None else 1
