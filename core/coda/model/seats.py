"""Seats: how an opportunistic rank asks for a GPU that others use too, and how its job counts.

A node offers a resource for each of its GPUs, `coda.scheduler/gpu-<index>`, as many as may share it. A pod that asks
for one of these gets that GPU; the kubelet knows no other way to say which (docs/gpu-sharing.md)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from coda.model.job import FINISHED, Job, Phase, Placement, SharingWish
from coda.model.live_placement import live_placement, open_wish
from coda.model.resources import Resources

SEAT: Final = "coda.scheduler/gpu-"
"""Begins the names of seats, in `Resources.other`; the index of the GPU follows."""

SHARING: Final = "coda.scheduler/sharing"
"""The resource of a pod that has a GPU whole and may be joined: with it come the files by which it says how fast it is.
No GPU comes with it."""

MEMORY_LABEL: Final = "nvidia.com/gpu.memory"
"""Label of NVIDIA's GPU feature discovery: the memory of each GPU of the node, MiB."""

WHOLE_GPUS: Final = "requests.nvidia.com/gpu"
"""The key of a ResourceQuota that no seat counts for."""


def seat_name(gpu: int) -> str:
    """Return the resource of the seats on the GPU with this index."""
    return f"{SEAT}{gpu}"


def seats_offered(allocatable: Resources) -> dict[int, int]:
    """Return the seats of each GPU by its index, in order. Names that are no index, and GPUs without seats, are out."""
    seats = {name[len(SEAT) :]: count for name, count in allocatable.other.items() if name.startswith(SEAT) and count}
    return {gpu: seats[str(gpu)] for gpu in sorted(int(text) for text in seats if _is_index(text))}


def placement_on_seats(job: Job) -> Placement | None:
    """Return the placement of the job's attempt if its ranks have seats, whether it counts still or not."""
    placement = job.placement
    if placement is None or not placement.gpus or placement.attempt != job.attempt or job.phase in FINISHED:
        return None
    return None if job.phase is Phase.QUEUED and placement.generation != job.generation else placement


def is_sharer(job: Job) -> bool:
    """True for a job that has seats, or has nothing and may have nothing else."""
    if job.placement is not None and placement_on_seats(job) is not None:
        return True
    return job.sharing is SharingWish.OPPORTUNISTIC and live_placement(job) is None


def sharers_of(jobs: Iterable[Job]) -> list[Job]:
    """Return the jobs that `is_sharer` is true of, in their order. O(jobs), and fast: few are asked."""
    opportunistic = SharingWish.OPPORTUNISTIC
    return [
        job
        for job in jobs
        if (job.sharing is opportunistic or ((placement := job.placement) is not None and placement.gpus))
        and is_sharer(job)
    ]


def can_have_seats(job: Job) -> bool:
    """True if the job allows seats, and each rank asks for one GPU: a seat is on one."""
    return job.sharing in (SharingWish.OPPORTUNISTIC, SharingWish.AUTO) and job.request.gpus == 1


def wants_whole_gpus(job: Job) -> bool:
    """True for a job that has seats, would rather have GPUs of its own, and goes on where it was after a stop."""
    return (
        job.sharing is SharingWish.AUTO
        and job.resumable
        and job.phase is Phase.RUNNING
        and not job.unwritable
        and placement_on_seats(job) is not None
        and live_placement(job) is not None
    )


def should_move(job: Job) -> bool:
    """True for a job that stands still on a seat, and goes on where it was on another one, or has nothing to lose, or
    holds what the pod that has the GPU whole waits for.

    The other ranks of a gang wait for the one that stands still, until NCCL fails them: by default for 10 minutes."""
    may_go = job.resumable or job.replicas > 1 or job.awaited
    return bool(job.crowded) and may_go and placement_on_seats(job) is not None


def wants_other_shares(job: Job) -> bool:
    """True for a running job about which something may be decided: it wants other cores, or other GPUs."""
    if open_wish(job) is not None or (job.sharing is SharingWish.AUTO and wants_whole_gpus(job)):
        return True
    return should_move(job)


def as_sharer(job: Job) -> Job:
    """Return the job as it counts on seats: without GPUs of its own, and with the cores it starts with."""
    return replace(
        job,
        request=replace(job.request, gpus=0),
        quota={key: amount for key, amount in job.quota.items() if key != WHOLE_GPUS},
        wish=None,
        tunable=False,
    )


def in_its_class(job: Job) -> Job:
    """Return a job as its object describes it, or `as_sharer` if its placement gives it seats."""
    return job if placement_on_seats(job) is None else as_sharer(job)


def seated_ranks(job: Job) -> Iterator[tuple[int, str, int]]:
    """Yield each rank that takes a seat, or will: its number, its node and the GPU.

    Of a placement that counts no more, those whose pods are still there."""
    placement = placement_on_seats(job)
    if placement is None:
        return
    is_live = live_placement(job) is not None
    for rank, (node, gpu) in enumerate(zip(placement.nodes, placement.gpus, strict=False)):
        if rank not in job.gone and (is_live or rank in job.bound or rank in job.unbound):
            yield rank, node, gpu


def request_of_rank(job: Job, placement: Placement, rank: int) -> Resources:
    """Return what the pod of a rank asks for under this placement of the job: with its seat, or `SHARING`."""
    if placement.joinable:
        return job.request + Resources(other={SHARING: 1})
    if not 0 <= rank < len(placement.gpus):
        return job.request
    return job.request + Resources(other={seat_name(placement.gpus[rank]): 1})


def _is_index(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 4 and str(int(text)) == text
