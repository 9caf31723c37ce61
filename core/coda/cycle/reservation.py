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

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from coda.cache.queue import QueuedJob, waits_since_s
from coda.cache.reservable_nodes import Distances, ReservableNodes
from coda.cache.world_index import WorldIndex
from coda.model.job import Job
from coda.model.resources import NOTHING, Resources
from coda.nodes.node_search import RankClass

_REMEMBERED: Final = 8
"""For so many of the jobs asked for last, what nodes would hold is remembered. Our choice: most rounds ask for one."""

LeftForOthers = Mapping[int, Resources]
"""What others may take of each of these nodes, by number."""


class Reservation(NamedTuple):
    """Nodes kept for a job. `unstopped`: where nobody may be stopped for another job, though somebody can be, since the
    place that leaves would make these nodes better than the ones kept, and be kept itself."""

    job: Job
    left_for_others: LeftForOthers
    unstopped: frozenset[int]


def limit_s(known: WorldIndex) -> float | None:
    """How long a job may be overtaken under this policy and configuration; None: for ever.

    Without borrowing there is no limit: a job can then be too large for its array, though it fits the cluster."""
    if not known.policy.limits_overtaking or (known.lending is not None and not known.lending.borrowing):
        return None
    return known.config.overtaking_limit_s


def overdue(known: WorldIndex, now_s: float) -> Iterator[QueuedJob]:
    """The jobs that have waited too long: higher priority, longest wait, id."""
    limit = limit_s(known)
    return iter(()) if limit is None else known.queue.waiting_since(now_s - limit, now_s)


def reserve(known: WorldIndex, job: Job, kind: RankClass) -> Reservation | None:
    """The nodes for a job that does not fit now; None where it would not fit the nodes without any job of ours.

    Those where most ranks fit already, then where least must end (GPUs, cores), then the first by name; with a required
    level, in the domain where most ranks fit. O(domains + nodes kept), and O(log nodes) for each node that changed
    since the last call for the job; O(running jobs + nodes log nodes) at the first."""
    if known.search.ranks_when_empty(kind, kind.within) < job.replicas:
        return None
    due_s = waits_since_s(job) + (known.config.overtaking_limit_s or 0.0)
    nearest = _sites(known, kind, due_s)
    room = known.room
    chosen = nearest.chosen(job.replicas)
    if chosen is not None:
        left = {
            number: _least(room.free(number), nearest.room(number) - job.request * ranks) for number, ranks, _ in chosen
        }
        return Reservation(job, left, _unstopped(known, kind, nearest.distances, left))
    whole = _sites(known, kind, None).chosen(job.replicas)
    if whole is None:
        return None
    return Reservation(job, {site.number: NOTHING for site in whole}, _stoppable(known))


def _sites(known: WorldIndex, kind: RankClass, due_s: float | None) -> ReservableNodes:
    """The nodes as they are once those have ended that began by then; None: whole nodes, whoever is there."""
    key = (kind, due_s)
    sites = known.sites.pop(key, None)
    if sites is None:
        sites = ReservableNodes(known.room, known.holdings, kind, due_s)
    known.sites[key] = sites
    if len(known.sites) > _REMEMBERED:
        del known.sites[next(iter(known.sites))]
    sites.refresh()
    return sites


def _unstopped(known: WorldIndex, kind: RankClass, distances: Distances, left: LeftForOthers) -> frozenset[int]:
    """Of the nodes kept, and of those that could become as good by stops, were the former used by others as far as may
    be, those where anybody can be stopped."""
    lending, room = known.lending, known.room
    if lending is None or kind.within is not None:
        return _stoppable(known)
    last = max((distances.to(room.free(number) - others), number) for number, others in left.items())
    return frozenset(
        number
        for number in lending.stoppable
        if number in left or (distances.to(lending.free_after_stops(number)), number) < last
    )


def _stoppable(known: WorldIndex) -> frozenset[int]:
    """The nodes that stops would leave more room on."""
    return frozenset() if known.lending is None else frozenset(known.lending.stoppable)


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


class ReservationHold:
    """From its making to `give_back` others find there what the reservation leaves them, and stop only who may be."""

    def __init__(self, known: WorldIndex, reservation: Reservation) -> None:
        self.job = reservation.job
        self._known = known
        self._left = reservation.left_for_others
        self._free = {number: known.room.free(number) for number in self._left}
        self._put(self._left)
        if known.lending is not None:
            known.lending.keep(reservation.unstopped)

    def give_back(self) -> None:
        """Put back what was kept, less what others took of the rest."""
        room = self._known.room
        left = self._left
        self._put({number: self._free[number] - (left[number] - room.free(number)) for number in left})
        if self._known.lending is not None:
            self._known.lending.keep_no_more()

    def _put(self, room_by_number: LeftForOthers) -> None:
        for number, room in room_by_number.items():
            self._known.room.put(number, room)
        if self._known.lending is not None:
            self._known.lending.follow(room_by_number)
