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

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from coda.memory import Known
from coda.model import NOTHING, Job, Resources
from coda.ordering import Waiter, waits_since_s
from coda.searching import Kind

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


def overdue(known: Known, now_s: float) -> list[Waiter]:
    """The jobs that have waited too long: higher priority, longest wait, id."""
    limit = limit_s(known)
    return [] if limit is None else known.queue.waiting_since(now_s - limit, now_s)


def reserve(known: Known, job: Job, kind: Kind) -> Reservation | None:
    """The nodes for a job that does not fit now; None where it would not fit the nodes without any job of ours.

    Those where most ranks fit already, then where least must end (GPUs, cores), then the first by name; with a required
    level, in the domain where most ranks fit. O(running jobs + nodes log nodes)."""
    limit = known.config.overtaking_limit_s or 0.0
    due_s = waits_since_s(job) + limit
    ending = _ending(known, lambda holder: holder.placement is not None and holder.placement.committed_s <= due_s)
    need = _spread(known, job, kind, ending)
    if need is not None:
        room = known.room
        left = {
            number: _least(room.free(number), room.free(number) + ending.get(number, NOTHING) - job.request * ranks)
            for number, ranks in need
        }
        return Reservation(job, left, _unstopped(known, job, kind, left))
    whole = _spread(known, job, kind, _ending(known, lambda _: True), by_size=True)
    everywhere = frozenset(range(len(known.room.nodes)))
    return None if whole is None else Reservation(job, {number: NOTHING for number, _ in whole}, everywhere)


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


def _ending(known: Known, ends: Callable[[Job], bool]) -> dict[int, Resources]:
    """What these running jobs hold, by node number."""
    held: dict[int, Resources] = {}
    for holding in known.holdings.all():
        if ends(holding.job):
            for name in holding.nodes:
                number = known.room.number_by_name.get(name)
                if number is not None:
                    held[number] = held.get(number, NOTHING) + holding.job.request
    return held


class _Site(NamedTuple):
    """A node that may be kept: how good, which, and how many ranks it will hold."""

    key: tuple[int, ...]
    number: int
    ranks: int


def _spread(
    known: Known, job: Job, kind: Kind, ending: Mapping[int, Resources], *, by_size: bool = False
) -> list[tuple[int, int]] | None:
    """Nodes and ranks that hold the whole gang once this has ended; None where nothing does."""
    kind.candidates.refresh()
    sites_by_domain: dict[str, list[_Site]] = {}
    domains = None if kind.within is None else known.room.levels[kind.within].domain_by_node
    for number in kind.pool.amount_by_node:
        free = known.room.free(number)
        ranks = job.request.times_in(free + ending.get(number, NOTHING))
        domain = "" if domains is None else domains[number]
        if ranks and domain is not None:
            key = (-ranks,) if by_size else _distance(job, free)
            sites_by_domain.setdefault(domain, []).append(_Site(key, number, ranks))
    found = [
        (_gap(chosen, by_size), domain, chosen)
        for domain, sites in sites_by_domain.items()
        if (chosen := _filled(sites, job.replicas))
    ]
    return [(site.number, site.ranks) for site in min(found)[2]] if found else None


def _distance(job: Job, free: Resources) -> tuple[int, ...]:
    """Minus the ranks that fit now; then the GPUs and millicores that one more lacks."""
    ready = job.request.times_in(free)
    lacking = job.request * (ready + 1) - free
    return (-ready, max(0, lacking.gpus), max(0, lacking.cpu_m))


def _filled(sites: Iterable[_Site], replicas: int) -> list[_Site]:
    """The best of these that hold so many ranks together; none where all are too few."""
    chosen: list[_Site] = []
    for site in sorted(sites):
        chosen.append(site._replace(ranks=min(site.ranks, replicas)))
        replicas -= site.ranks
        if replicas <= 0:
            return chosen
    return []


def _gap(sites: list[_Site], by_size: bool) -> int:
    """How many of the ranks do not fit yet; nothing where only sizes count."""
    return 0 if by_size else sum(max(0, site.ranks + site.key[0]) for site in sites)


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
