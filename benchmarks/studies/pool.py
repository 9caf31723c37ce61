"""How many GPU jobs could start at once if all GPUs were one pool: a bound, from the log of a run."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush

from coda_sim.engine.log import RunLog
from coda_sim.results.metrics import MeasuredSpan

AT_ONCE_S = 10.0


def pool_measures(log: RunLog, window: MeasuredSpan) -> dict[str, float | None]:
    """Return `pool_started_10s`: the share of GPU jobs at once if all GPUs were one pool, the smallest gang first.

    Each job runs as long as it held its nodes in this run. No policy without a look ahead can be expected to do much
    better: nodes, cores and owners are left out."""
    jobs = [entry for entry in log.entries if entry.gang.gpus and entry.end_s is not None]
    waits = pool_waits(
        [
            (entry.gang.row.submit_s, entry.gang.gpus, sum(one.end_s - one.start_s for one in entry.pieces))
            for entry in jobs
        ],
        log.gpus,
    )
    counted = [wait for entry, wait in zip(jobs, waits, strict=True) if window.includes(entry.gang.row.submit_s)]
    return {"pool_started_10s": sum(wait <= AT_ONCE_S for wait in counted) / len(counted) if counted else None}


def pool_waits(jobs: Sequence[tuple[float, int, float]], gpus: int) -> list[float]:
    """Return the wait of each job (submission, GPUs, run time) in one pool of `gpus`, smallest first, stopping nobody.

    Ties: the earlier submission. O(jobs log jobs). Every job must fit the pool."""
    arrivals = sorted(range(len(jobs)), key=lambda number: (jobs[number][0], number))
    waits = [0.0] * len(jobs)
    waiting: list[tuple[int, float, int]] = []
    ends: list[tuple[float, int]] = []
    free, arrived = gpus, 0
    while arrived < len(arrivals) or ends:
        next_s = jobs[arrivals[arrived]][0] if arrived < len(arrivals) else ends[0][0]
        now_s = min(next_s, ends[0][0]) if ends else next_s
        while ends and ends[0][0] <= now_s:
            free += heappop(ends)[1]
        while arrived < len(arrivals) and jobs[arrivals[arrived]][0] <= now_s:
            number = arrivals[arrived]
            heappush(waiting, (jobs[number][1], jobs[number][0], number))
            arrived += 1
        while waiting and waiting[0][0] <= free:
            asked, submit_s, number = heappop(waiting)
            free -= asked
            waits[number] = now_s - submit_s
            heappush(ends, (now_s + jobs[number][2], asked))
    return waits
