"""The GPUs that offer seats, and who has them.

Who has which GPU whole is the kubelet's choice, and the node's agent tells it a while later. A GPU is open to
opportunistic jobs if a job has it whole that is known well enough to be joined, or if nobody can have it. The latter is
known of nodes none of whose GPUs are asked for whole, or of which the agent names an owner for as many as are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from coda.model.job import Job, JobId, Phase
from coda.model.live_placement import live_placement
from coda.model.resources import NOTHING, Resources
from coda.model.seats import MEMORY_LABEL, SEAT, seat_name, seated_ranks, seats_offered
from coda.model.world import GpuUse, Node, World
from coda.sharing.config import SharingConfig
from coda.sharing.gpu_placement import SharedGpu
from coda.sharing.pairing import GpuProfile

_MIB: Final = 2**20
_MARGIN: Final = SharingConfig().peak_margin


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuOwner:
    """A job that has a GPU whole and may be joined, and what is known of it there."""

    job: Job
    profile: GpuProfile


@dataclass(frozen=True, slots=True, kw_only=True)
class SeatGpu:
    """One GPU that offers seats. `memory_bytes` None: not known. `is_known`: who uses it is known, and may be joined.

    `owner`: who has it whole; None: nobody, or nobody knows."""

    node: str
    index: int
    seats: int
    memory_bytes: int | None
    sharers: tuple[Job, ...] = ()
    owner: GpuOwner | None = None
    is_known: bool = True

    @property
    def has_seat(self) -> bool:
        """True if another one may have a seat."""
        return len(self.sharers) < self.seats

    def has_memory_for(self, job: Job) -> bool:
        """True if all fit at their peaks. A job whose peak nobody knows fits where nobody else is."""
        if not self.sharers and self.owner is None:
            return self.memory_bytes is None or job.gpu_bytes <= self.memory_bytes
        peaks = [one.gpu_bytes for one in (job, *self.sharers)]
        if self.owner is not None:
            peaks.append(self.owner.profile.peak_bytes)
        return self.memory_bytes is not None and all(peaks) and sum(peaks) <= self.memory_bytes

    def joined_by(self, job: Job) -> SeatGpu:
        """Return it with one more."""
        return replace(self, sharers=(*self.sharers, job))

    def as_shared(self, job: Job) -> SharedGpu:
        """Return it as `coda.sharing` judges it, for a job that has memory there."""
        total = self.memory_bytes or sum(one.gpu_bytes for one in (job, *self.sharers)) or 1
        owner = self.owner
        return SharedGpu(
            node=self.node,
            index=self.index,
            total_bytes=max(1, total),
            load=0.0 if owner is None else owner.profile.duty,
            guaranteed=None if owner is None else owner.job.uid,
            profile=None if owner is None else owner.profile,
            sharers=tuple([profile_of(one) for one in self.sharers]),
        )


def profile_of(job: Job) -> GpuProfile:
    """Return what is known of a job: its peak, if it says so. It counts as always busy, and keeps all of its memory.

    Source: our choice, until its agent measures it: so nobody is promised more than there is."""
    peak = max(1, job.gpu_bytes)
    return GpuProfile(key=job.id, duty=1.0, step_s=1.0, peak_bytes=peak, floor_bytes=peak)


Board = dict[tuple[str, int], SeatGpu]
"""The GPUs with seats, by node and index, in that order."""


def board_from(world: World, free: Mapping[str, Resources]) -> Board:
    """Return every GPU that offers seats. `free`: by node name, what nobody has or is given. O(nodes + jobs)."""
    sharers: dict[tuple[str, int], list[Job]] = {}
    bound: dict[tuple[str, int], int] = {}
    for job in world.jobs:
        for rank, node, gpu in seated_ranks(job):
            sharers.setdefault((node, gpu), []).append(job)
            bound[node, gpu] = bound.get((node, gpu), 0) + (rank in job.bound)
    job_by_id = {job.id: job for job in world.jobs} if world.gpu_uses else {}
    board: Board = {}
    for offering in sorted(_offering(world.nodes), key=lambda node: node.name):
        used = world.used.get(offering.name, NOTHING).other
        use_by_gpu = {use.index: use for use in world.gpu_uses.get(offering.name, ())}
        leaving = world.leaving.get(offering.name, NOTHING).gpus  # `free` counts it, and its pods use it still
        whole = offering.allocatable.gpus - free.get(offering.name, NOTHING).gpus + leaving
        are_all_told = whole == sum([use.is_taken for use in use_by_gpu.values()])
        for gpu, seats in seats_offered(offering.allocatable).items():
            place, use = (offering.name, gpu), use_by_gpu.get(gpu)
            is_taken = use is not None and use.is_taken
            owner = _owner(use, offering.name, job_by_id) if use is not None and is_taken else None
            is_free = not is_taken and (are_all_told if use is not None else whole <= 0 and not use_by_gpu)
            has_strangers = used.get(seat_name(gpu), 0) > bound.get(place, 0)
            board[place] = SeatGpu(
                node=offering.name,
                index=gpu,
                seats=seats,
                memory_bytes=_memory_bytes(offering) or (None if use is None else use.memory_bytes),
                sharers=tuple(sharers.get(place, ())),
                owner=owner,
                is_known=(is_free or owner is not None) and not has_strangers,
            )
    return board


def _owner(use: GpuUse, node: str, job_by_id: Mapping[JobId, Job]) -> GpuOwner | None:
    """The job that has the GPU whole; None if it cannot be joined: it does not run as planned, its pods lack the files,
    its cores are being looked for, or how busy it is and how much memory it needs is not known."""
    job = None if use.job is None else job_by_id.get(use.job)
    placement = None if job is None else live_placement(job)
    if job is None or placement is None or not placement.joinable or job.phase is not Phase.RUNNING or job.searching:
        return None
    is_rank = use.attempt == job.attempt and use.rank in job.bound and use.rank not in job.gone
    if not is_rank or placement.nodes[use.rank] != node:
        return None
    peak_bytes = max(job.gpu_bytes, round(_MARGIN * (use.peak_bytes or 0)))
    if use.duty is None or not peak_bytes:
        return None
    duty = (
        use.duty if use.is_heard else 1.0
    )  # its neighbours have the floor: as little as beside one that is always busy
    profile = GpuProfile(key=job.id, duty=duty, step_s=1.0, peak_bytes=peak_bytes, floor_bytes=peak_bytes)
    return GpuOwner(job=job, profile=profile)


def _offering(nodes: Iterable[Node]) -> list[Node]:
    return [node for node in nodes if any(name.startswith(SEAT) for name in node.allocatable.other)]


def _memory_bytes(node: Node) -> int | None:
    text = node.labels.get(MEMORY_LABEL, "")
    is_number = text.isascii() and text.isdigit() and len(text) <= 10
    return (int(text) * _MIB or None) if is_number else None
