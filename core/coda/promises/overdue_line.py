"""Which jobs have waited too long, and which of them a cycle looks at.

The first few in line are looked at in every cycle. What a look costs allows no more, and some of these may never start:
what daemons take of each node is not known, and a job beside them may have no end. So of all behind them one has its
turn in each cycle, whoever was looked at longest ago. Those that nodes are kept for are always looked at.
Source: ours.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from math import inf

from coda.cache.gang_class import GangClass, QueuedJob
from coda.cache.world_index import WorldIndex
from coda.promises.promise_book import PromiseBook


def patience_s(index: WorldIndex) -> float | None:
    """Return how long a job waits until it is promised a start; None: it never is.

    Without borrowing no job is: it can be too large for its array though it fits the cluster."""
    if index.policy.reserves_for_first:
        return 0.0
    if not index.policy.limits_overtaking or (index.arrays is not None and not index.arrays.borrowing):
        return None
    return index.config.promise_patience_s


def overdue(index: WorldIndex, now_s: float) -> Iterator[QueuedJob]:
    """The jobs that have waited too long, in order: higher priority, longest wait, id."""
    limit_s = patience_s(index)
    return iter(()) if limit_s is None else index.queue.waiting_since(now_s - limit_s, now_s)


def in_turn(
    behind: Iterator[QueuedJob], book: PromiseBook, passed: Collection[GangClass], now_s: float
) -> list[QueuedJob]:
    """Return whose turn it is of the jobs behind the first ones, then the job that nodes are kept for, if it is there.

    One job of each class, but those `passed`, has turns: the one looked at longest ago; ties: the first in line. Behind
    the job with the nodes nobody has one. To ask twice at one time gives the same. O(overdue jobs)."""
    seen: set[GangClass] = set()
    found: tuple[tuple[bool, float], QueuedJob] | None = None
    for queued in behind:
        gang_class, job = queued.gang_class, queued.job.id
        if gang_class in passed:
            continue
        looked_s = book.looked_s_by_job.get(job, -inf)
        promise = book.promise_by_job.get(job)
        if promise is not None and promise.nodes:
            return [queued] if found is None or looked_s == now_s else [found[1], queued]
        if gang_class not in seen:
            seen.add(gang_class)
            turn = (looked_s < now_s, looked_s)
            if found is None or turn < found[0]:
                found = (turn, queued)
    return [] if found is None else [found[1]]
