"""The decision: what starts now, where, and why everything else waits. What must not live here: any single rule."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush

from coda.config import PolicyConfig
from coda.explaining import refusals_of
from coda.memory import Known, Memory
from coda.model import Plan, Start, World
from coda.ordering import Shape, Turn, Waiter
from coda.quotas import QuotaLedger


def decide(
    world: World, config: PolicyConfig, now_s: float, memory: Memory | None = None, *, explain: int | None = None
) -> Plan:
    """Start every waiting gang that fits whole, in order, and refuse each of the others with its reason.

    `world` must pass `world.check`. Pure: equal arguments, in any order of nodes, jobs and quotas, give equal plans,
    whatever `memory` has seen before; it only saves time. Each waiting job is in `starts` or in `refusals`, once, but
    for those beyond the first `explain` refused, where that is given. What does not fit is skipped, so nothing runnable
    waits behind it. Reasons describe the world after all starts: with these committed, deciding again starts nothing
    and refuses alike.
    Cost: O(nodes + jobs log jobs), and O(nodes) for each distinct demand and O(amounts) for each distinct request among
    the waiting jobs. With a memory: O(nodes + jobs) comparisons of pointers, and the above for what changed."""
    with (memory or Memory()).about(world, config) as known:
        quotas = QuotaLedger(world, known.planned.values())
        starts = tuple(_starts(known, quotas, now_s))
        refusals = refusals_of(known, quotas, now_s, explain)
    return Plan(starts=starts, refusals=refusals)


def _starts(known: Known, quotas: QuotaLedger, now_s: float) -> Iterator[Start]:
    """What starts, in order. Within a round room and quotas only shrink: a shape that was refused once is done with."""
    lines: list[tuple[Turn, Waiter, Iterator[Waiter]]] = []
    for shape in known.queue.shape_by_key.values():
        if _may_start(known, shape):
            _line_up(lines, shape.turns(now_s))
    while lines:
        _, waiter, turns = heappop(lines)
        start = _start(known, quotas, waiter)
        if start is not None:
            yield start
            _line_up(lines, turns)


def _line_up(lines: list[tuple[Turn, Waiter, Iterator[Waiter]]], turns: Iterator[Waiter]) -> None:
    waiter = next(turns, None)
    if waiter is not None:
        heappush(lines, (waiter.turn, waiter, turns))


def _may_start(known: Known, shape: Shape) -> bool:
    if shape.job.within is not None and known.config.level_index(shape.job.within) is None:
        return False
    candidates = known.kind(shape).candidates
    candidates.refresh()
    return candidates.may_hold(shape.job.replicas)


def _start(known: Known, quotas: QuotaLedger, waiter: Waiter) -> Start | None:
    job = waiter.job
    if quotas.shortage(job) is not None:
        return None
    nodes = known.search.take(job, known.kind(waiter.shape))
    if nodes is None:
        return None
    quotas.take(job)
    known.start(job, nodes)
    return Start(
        job=job.id,
        attempt=job.attempt,
        generation=job.generation,
        nodes=nodes,
        cpus_per_replica=job.cpus_per_replica,
    )
