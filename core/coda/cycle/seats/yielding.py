"""Which opportunistic jobs stop for what was decided about all others.

A node that lacks something for a start, a placement or a wish gets it from the opportunistic jobs there, the youngest
first: they lose least. Whole gangs stop, and none that would not help."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from coda.cycle.seats.sharers import add, held_by_pods, may_stop
from coda.model.capacity import after_stops, free_by_node, withheld_shares
from coda.model.decision import Decision, Stop, StopCause
from coda.model.job import Job, JobId
from coda.model.live_placement import growth_by_node
from coda.model.resources import MAIN, NOTHING, Resources, amount_free, amount_of, amounts_asked
from coda.model.seats import is_sharer
from coda.model.world import World


@dataclass(frozen=True, slots=True, kw_only=True)
class Yielded:
    """Who stops, and what is then free by node name without what they leave: that has its owner."""

    decision: Decision
    free: dict[str, Resources]


def yielded(decision: Decision, world: World, passing: Mapping[str, Resources]) -> Yielded:
    """Return the decision with the stops of opportunistic jobs that it needs. O(nodes + jobs).

    Nobody stops for what is `passing`, by node name: what will be free in a moment, and foreign pods in flight that
    count on each node where they may land. If one lands where it is in the way, somebody stops then."""
    free = free_by_node(after_stops(world))
    takers = _takers(decision, world, free)
    for taker in takers:
        if taker.is_new:
            add(free, taker.shares, -1)
    calm = {node: amount + passing.get(node, NOTHING) for node, amount in free.items()}
    short = {node: amount for node, amount in calm.items() if _lacking(amount, (*MAIN, *amount.other))}
    stops: dict[JobId, Stop] = {}
    for node, by_name in _needy(takers, short):
        for job in sorted(_holders(world.jobs, node), key=_youth):
            lacking = _lacking(short[node], by_name)
            if not lacking:
                break
            held = held_by_pods(job)
            given = [name for name in lacking if amount_of(held[node], name) > 0]
            if job.id in stops or not given:
                continue
            stops[job.id] = Stop(job=job.id, attempt=job.attempt, cause=StopCause.PREEMPT, by=by_name[given[0]])
            add(short, {name: amount for name, amount in held.items() if name in short})
    changed = decision if not stops else replace(decision, stops=(*decision.stops, *stops.values()))
    return Yielded(decision=changed, free=free)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Taker:
    job: JobId
    shares: Mapping[str, Resources]
    is_new: bool = True  # by this decision: else the world counts it already


def _takers(decision: Decision, world: World, free: Mapping[str, Resources]) -> list[_Taker]:
    """Everybody who takes capacity and has no pods there yet, the newest first, then by id: as it will be once this
    decision is committed."""
    job_by_id = {job.id: job for job in world.jobs}
    starts = [
        _Taker(
            job=start.job,
            shares={node: job_by_id[start.job].request * count for node, count in Counter(start.nodes).items()},
        )
        for start in sorted(decision.starts, key=lambda start: start.job)
    ]
    grants = [_Taker(job=one.job, shares=_growth(job_by_id[one.job], one.cores)) for one in decision.grants]
    held = [job for job in world.jobs if not is_sharer(job) and job.placement is not None]
    earlier = [
        _Taker(job=job.id, shares=shares, is_new=False)
        for job in sorted(held, key=lambda job: (-job.placement.committed_s if job.placement else 0.0, job.id))
        if (shares := withheld_shares(job))
    ]
    wishes = [] if decision.stops else [job_by_id[job] for job in decision.postponed]
    return [*starts, *grants, *_wishing(wishes, world, free), *earlier]


def _wishing(jobs: Iterable[Job], world: World, free: Mapping[str, Resources]) -> Iterator[_Taker]:
    """Wishes that are postponed for what only opportunistic jobs can leave. What is in flight may not land there."""
    for job in jobs:
        growth = {} if job.wish is None else _growth(job, job.wish.cores)
        lacks = [
            node
            for node, more in growth.items()
            if node in free and more.cpu_m > free[node].cpu_m + world.in_flight.get(node, NOTHING).cpu_m
        ]
        if lacks:
            yield _Taker(job=job.id, shares=growth)


def _growth(job: Job, cores: int) -> dict[str, Resources]:
    return {node: Resources(cpu_m=cpu_m) for node, cpu_m in growth_by_node(job, cores).items()}


def _needy(takers: Iterable[_Taker], short: Mapping[str, Resources]) -> list[tuple[str, dict[str, JobId]]]:
    """Each node that is short, by name, with the amounts that lack there and are taken, and who takes them first.

    What nobody takes lacks nobody: while a device plugin starts again, a node offers none of what its pods have."""
    by_node: dict[str, dict[str, JobId]] = {}
    for taker in takers:
        for node, share in taker.shares.items():
            for name in _lacking(short[node], amounts_asked(share)) if node in short else ():
                by_node.setdefault(node, {}).setdefault(name, taker.job)
    return sorted(by_node.items())


def _holders(jobs: Iterable[Job], node: str) -> list[Job]:
    return [job for job in jobs if may_stop(job) and node in held_by_pods(job)]


def _youth(job: Job) -> tuple[float, JobId]:
    assert job.placement is not None, "only jobs with a placement hold anything"
    return -job.placement.committed_s, job.id


def _lacking(free: Resources, names: Iterable[str]) -> list[str]:
    """Those of the names of which more is taken than there is."""
    return [name for name in names if amount_free(free, name) < 0]
