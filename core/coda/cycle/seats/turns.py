"""Whose turn it is to get a seat. No quota is charged for seats, so a tenant that has many lets others go first."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from heapq import heapify, heappop, heappush

from coda.model.job import Job, JobId
from coda.model.seats import seated_ranks


def seats_by_tenant(jobs: Iterable[Job]) -> dict[str, int]:
    """Return how many seats the jobs of each virtual cluster have. O(jobs)."""
    seats: dict[str, int] = {}
    for job in jobs:
        if count := len(list(seated_ranks(job))):
            seats[job.virtual_cluster] = seats.get(job.virtual_cluster, 0) + count
    return seats


def in_turn(waiting: Iterable[Job], seats: Mapping[str, int]) -> Iterator[Job]:
    """Yield the jobs by priority, by how few `seats` their tenant has by then, time in the queue and name.

    Whoever takes a job counts what it gets in `seats` before the next one. O(jobs log jobs)."""
    queue_by_tenant: dict[str, deque[Job]] = {}
    for job in sorted(waiting, key=_rank):
        queue_by_tenant.setdefault(job.virtual_cluster, deque()).append(job)
    turns = [_turn(queue[0], seats) for queue in queue_by_tenant.values()]
    heapify(turns)
    while turns:
        queue = queue_by_tenant[heappop(turns)[-1]]
        yield queue.popleft()
        if queue:
            heappush(turns, _turn(queue[0], seats))


def _rank(job: Job) -> tuple[int, float, JobId]:
    return -job.priority, job.queued_s, job.id


def _turn(job: Job, seats: Mapping[str, int]) -> tuple[int, int, float, JobId, str]:
    return -job.priority, seats.get(job.virtual_cluster, 0), job.queued_s, job.id, job.virtual_cluster
