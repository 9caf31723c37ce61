"""What starts in one round, in which order. What must not live here: any rule of order, of room or of place."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from heapq import heappop, heappush
from typing import Any

from coda.memory import Known
from coda.model import Start
from coda.ordering import Shape, Waiter
from coda.quotas import QuotaLedger

_Line = tuple[Any, Waiter, Iterator[Waiter]]
"""The equal gangs of one shape: when the first of them is tried, that one, and the others."""


def starts(known: Known, quotas: QuotaLedger, now_s: float) -> Iterator[Start]:
    """What starts, in order. Within a round room and quotas only shrink: a shape that was refused once is done with."""
    blocks = known.policy.blocks
    blocked: set[Hashable] = set()
    lines: list[_Line] = []
    for shape in known.queue.shape_by_key.values():
        if blocks is not None or _may_start(known, shape):
            _line_up(known, lines, shape.turns(now_s))
    while lines:
        key, waiter, turns = heappop(lines)
        if _is_late(known, lines, key, waiter, turns):
            continue
        queue = blocks(waiter.job) if blocks is not None else None
        if queue in blocked:
            continue
        start = None if quotas.shortage(waiter.job) is not None else _start(known, quotas, waiter)
        if start is not None:
            yield start
            _line_up(known, lines, turns)
        elif blocks is not None and quotas.shortage(waiter.job) is None:
            blocked.add(queue)


def _line_up(known: Known, lines: list[_Line], turns: Iterator[Waiter]) -> None:
    waiter = next(turns, None)
    if waiter is not None:
        heappush(lines, (known.turn(waiter), waiter, turns))


def _is_late(known: Known, lines: list[_Line], key: Any, waiter: Waiter, turns: Iterator[Waiter]) -> bool:
    """True when starts since it was lined up have put it further back: it is lined up again. Shares only grow."""
    if known.shares is None or (turn := known.turn(waiter)) == key:
        return False
    heappush(lines, (turn, waiter, turns))
    return True


def _may_start(known: Known, shape: Shape) -> bool:
    if shape.job.within is not None and known.config.level_index(shape.job.within) is None:
        return False
    candidates = known.kind(shape).candidates
    candidates.refresh()
    return candidates.may_hold(shape.job.replicas)


def _start(known: Known, quotas: QuotaLedger, waiter: Waiter) -> Start | None:
    job = waiter.job
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
