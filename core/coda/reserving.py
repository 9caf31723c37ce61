"""How long a job can be overtaken: nodes are kept for the first of those that waited too long. What must not live here:
what starts (`starting`).

Whoever starts while a large job waits may take what it waits for, again and again. So after `overtaking_limit_s` (W) a
job that does not fit gets a reservation: nodes that hold it once the jobs have ended that started before it was
overdue. Others start there only beside what it needs. Nothing is remembered: nodes that hold it in this way are looked
for anew in every round, and the ones of the round before still do, since nobody took anything of them. So, with R the
longest time that a job runs, it starts at most W + R after it began to wait. While it has the reservation, nobody else
has one. A job whose turn comes later, when jobs that started after it was overdue are everywhere, gets whole nodes,
by their sizes alone, therefore always the same: the k-th in line starts at most W + k * R after it began to wait.

This holds for jobs that fit the nodes without any job of ours, while these nodes stay, among jobs of one priority, and
but for cores that are granted to running jobs meanwhile (they end all the same; it costs R once more at most).
Source: ours; backfilling with a reservation for the head needs run times, which are not known here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from math import inf
from typing import NamedTuple

from coda.memory import Known
from coda.model import NOTHING, Job, Resources
from coda.ordering import Waiter, smallest_first, waits_since_s
from coda.searching import Kind

Key = tuple[int, ...]

Takes = Mapping[int, Resources]
"""What others may take of each of these nodes, by number."""


class Reservation(NamedTuple):
    """Nodes kept for a job. `unstopped`: where nobody may be stopped for another job, since the place that leaves would
    make these nodes better than the ones kept, and be kept itself."""

    job: Job
    left_for_others: Takes
    unstopped: frozenset[int]


def limit_s(known: Known) -> float | None:
    """How long a job may be overtaken under this policy and configuration; None: for ever.

    Without borrowing there is no limit: a job can then be too large for its array, though it fits the cluster."""
    if not known.policy.limits_overtaking or (known.lending is not None and not known.lending.borrowing):
        return None
    return known.config.overtaking_limit_s


def overdue(known: Known, now_s: float) -> Iterator[Waiter]:
    """The jobs that have waited too long: higher priority, longest wait, id."""
    limit = limit_s(known)
    return iter(()) if limit is None else known.queue.waiting_since(now_s - limit, now_s)


def reserve(known: Known, job: Job, kind: Kind) -> Reservation | None:
    """The nodes for a job that does not fit now; None where it would not fit the nodes without any job of ours.

    Those where most ranks fit already, then where least must end (GPUs, cores), then the first by name; with a required
    level, in the domain where most ranks fit. O(running jobs + nodes log nodes)."""
    if known.search.ranks_when_empty(kind, kind.within) < job.replicas:
        return None
    due_s = waits_since_s(job) + (known.config.overtaking_limit_s or 0.0)
    sites = _Sites(known, job, kind)
    room = known.room
    chosen = sites.chosen(sites.distance, lambda holder: _began_s(holder) <= due_s)
    if chosen is not None:
        left = {site.number: _least(room.free(site.number), site.room - job.request * site.ranks) for site in chosen}
        return Reservation(job, left, _unstopped(known, job, kind, left))
    whole = sites.chosen(sites.size, lambda _: True)
    everywhere = frozenset(range(len(room.nodes)))
    return None if whole is None else Reservation(job, {site.number: NOTHING for site in whole}, everywhere)


def _began_s(holder: Job) -> float:
    return inf if holder.placement is None else holder.placement.committed_s


def _unstopped(known: Known, job: Job, kind: Kind, left: Takes) -> frozenset[int]:
    """The nodes kept, and those that could become as good by stops, were the former used by others as far as may be."""
    if known.lending is None:
        return frozenset()
    if kind.within is not None:
        return frozenset(range(len(known.room.nodes)))
    last = max((_distance(job, known.room.free(number) - others), number) for number, others in left.items())
    return frozenset(
        number
        for number in range(len(known.room.nodes))
        if number in left or (_distance(job, known.lending.free_after_stops(number)), number) < last
    )


class _Site(NamedTuple):
    """A node that may be kept: how many ranks it will hold and fits now, and the room it will have."""

    number: int
    ranks: int
    ready: int
    room: Resources


class _Sites:
    """The nodes a gang may have kept, and who holds them."""

    def __init__(self, known: Known, job: Job, kind: Kind) -> None:
        kind.candidates.refresh()
        self._room = known.room
        self._job = job
        self._distances: dict[int, Key] = {}  # by amount free: many nodes have the same
        self._sizes: dict[tuple[int, int, int, int], Key] = {}  # by what a node has, if that is all
        self._domains = None if kind.within is None else known.room.levels[kind.within].domain_by_node
        self._numbers = kind.pool.amount_by_node
        self._holders: dict[str, list[Job]] = {}
        for holder, nodes in known.holdings.all():
            for name in nodes:
                self._holders.setdefault(name, []).append(holder)

    def chosen(self, rank: Callable[[int], Key], ends: Callable[[Job], bool]) -> list[_Site] | None:
        """Nodes that hold the whole gang once those jobs have ended, the best by rank; None where there are too few."""
        numbers_by_domain: dict[str, list[tuple[Key, int]]] = {}
        for number in self._numbers:
            domain = "" if self._domains is None else self._domains[number]
            if domain is not None:
                numbers_by_domain.setdefault(domain, []).append((rank(number), number))
        found: list[tuple[int, str, list[_Site]]] = []
        for domain, ranked in numbers_by_domain.items():
            sites = self._filled((number for _, number in smallest_first(ranked)), ends)
            if sites:
                missing = sum(site.ranks - min(site.ranks, site.ready) for site in sites)
                found.append((missing, domain, sites))
        return min(found, key=lambda one: one[:2])[2] if found else None

    def _filled(self, numbers: Iterable[int], ends: Callable[[Job], bool]) -> list[_Site]:
        """The first of these that hold all ranks together; none where all are too few."""
        sites: list[_Site] = []
        missing = self._job.replicas
        for number in numbers:
            room = free = self._room.free(number)
            ready = ranks = -self.distance(number)[0]
            ending = [holder for holder in self._holders.get(self._room.nodes[number].name, ()) if ends(holder)]
            if ending:
                room = sum((holder.request for holder in ending), free)
                ranks = self._job.request.times_in(room)
            if ranks:
                sites.append(_Site(number, min(missing, ranks), ready, room))
                missing -= min(missing, ranks)
            if not missing:
                return sites
        return []

    def distance(self, number: int) -> Key:
        """Nearest first: what has most ranks free, then what lacks least for one more."""
        amount = self._room.free_amounts[number]
        known = self._distances.get(amount)
        if known is None:
            known = self._distances[amount] = _distance(self._job, self._room.amounts[amount])
        return known

    def size(self, number: int) -> Key:
        """What holds most ranks when nothing runs there."""
        has = self._room.nodes[number].allocatable
        if has.other:
            return (-self._job.request.times_in(has),)
        kind = (has.gpus, has.cpu_m, has.memory_bytes, has.pods)
        known = self._sizes.get(kind)
        if known is None:
            known = self._sizes[kind] = (-self._job.request.times_in(has),)
        return known


def _distance(job: Job, free: Resources) -> Key:
    """Minus the ranks that fit now; then the GPUs and millicores that one more lacks."""
    request = job.request
    ready = request.times_in(free)
    return (
        -ready,
        max(0, request.gpus * (ready + 1) - free.gpus),
        max(0, request.cpu_m * (ready + 1) - free.cpu_m),
    )


def _least(one: Resources, other: Resources) -> Resources:
    """Of each resource the smaller amount."""
    names = one.other.keys() | other.other.keys()
    return Resources(
        cpu_m=min(one.cpu_m, other.cpu_m),
        memory_bytes=min(one.memory_bytes, other.memory_bytes),
        gpus=min(one.gpus, other.gpus),
        pods=min(one.pods, other.pods),
        other={name: min(one.other.get(name, 0), other.other.get(name, 0)) for name in sorted(names)},
    )
