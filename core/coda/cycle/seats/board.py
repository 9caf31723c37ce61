"""The GPUs that offer seats, and who has them.

A GPU is open to opportunistic jobs if nobody can have it whole. Who has which GPU whole is the kubelet's choice, and
nobody tells the planner. So GPUs are known to be nobody's on nodes none of whose GPUs are asked for whole."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from coda.model.job import Job
from coda.model.resources import NOTHING, Resources
from coda.model.seats import SEAT, seat_name, seated_ranks, seats_offered
from coda.model.world import Node, World
from coda.sharing.gpu_placement import SharedGpu
from coda.sharing.pairing import GpuProfile

MEMORY_LABEL: Final = "nvidia.com/gpu.memory"
"""Label of NVIDIA's GPU feature discovery: the memory of each GPU of the node, MiB."""

_MIB: Final = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class SeatGpu:
    """One GPU that offers seats. `memory_bytes` None: not known. `is_known`: who uses it is known."""

    node: str
    index: int
    seats: int
    memory_bytes: int | None
    sharers: tuple[Job, ...] = ()
    is_known: bool = True

    @property
    def has_seat(self) -> bool:
        """True if another one may have a seat."""
        return len(self.sharers) < self.seats

    def has_memory_for(self, job: Job) -> bool:
        """True if all fit at their peaks. A job whose peak nobody knows fits where nobody else is."""
        if not self.sharers:
            return self.memory_bytes is None or job.gpu_bytes <= self.memory_bytes
        peaks = [one.gpu_bytes for one in (job, *self.sharers)]
        return self.memory_bytes is not None and all(peaks) and sum(peaks) <= self.memory_bytes

    def joined_by(self, job: Job) -> SeatGpu:
        """Return it with one more."""
        return replace(self, sharers=(*self.sharers, job))

    def as_shared(self, job: Job) -> SharedGpu:
        """Return it as `coda.sharing` judges it, for a job that has memory there."""
        total = self.memory_bytes or sum(one.gpu_bytes for one in (job, *self.sharers)) or 1
        sharers = tuple([profile_of(one) for one in self.sharers])
        return SharedGpu(node=self.node, index=self.index, total_bytes=max(1, total), sharers=sharers)


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
    board: Board = {}
    for offering in sorted(_offering(world.nodes), key=lambda node: node.name):
        used = world.used.get(offering.name, NOTHING).other
        leaving = world.leaving.get(offering.name, NOTHING).gpus  # `free` counts it, and its pods use it still
        has_whole = offering.allocatable.gpus > free.get(offering.name, NOTHING).gpus - leaving
        for gpu, seats in seats_offered(offering.allocatable).items():
            place = offering.name, gpu
            is_known = not has_whole and used.get(seat_name(gpu), 0) <= bound.get(place, 0)
            board[place] = SeatGpu(
                node=offering.name,
                index=gpu,
                seats=seats,
                memory_bytes=_memory_bytes(offering),
                sharers=tuple(sharers.get(place, ())),
                is_known=is_known,
            )
    return board


def _offering(nodes: Iterable[Node]) -> list[Node]:
    return [node for node in nodes if any(name.startswith(SEAT) for name in node.allocatable.other)]


def _memory_bytes(node: Node) -> int | None:
    text = node.labels.get(MEMORY_LABEL, "")
    is_number = text.isascii() and text.isdigit() and len(text) <= 10
    return (int(text) * _MIB or None) if is_number else None
