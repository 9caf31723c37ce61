"""Why a job waits for seats: what each GPU lacks for it, and the sentence that says so."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from coda.cycle.seats.board import SeatGpu
from coda.model.decision import WaitCode, WaitReason
from coda.model.job import Job, JobId
from coda.model.resources import CPU, GPUS, MEMORY, PODS, Resources, amount_free
from coda.model.world import Node
from coda.nodes.eligibility import accepts, exclusion
from coda.wording import amounts_text, bytes_text, counted, listed, numbers_of

SHARING_OFF: Final = WaitReason(
    code=WaitCode.SHARING_OFF,
    message="it asks for a seat on a shared GPU, and this installation shares none: with serviceClass Guaranteed it "
    "gets GPUs of its own",
)


class SeatObstacle(Enum):
    """What keeps a rank from a GPU. The order in which they are named; the first that most GPUs have is the code."""

    SEATS = "have no seat left"
    GPU_MEMORY = "have too little memory beside those that use them, or nobody knows how much that is"
    UNKNOWN = "belong to jobs that cannot be joined yet, or nobody can say whose they are"
    NODE = "are on nodes without the cores, the memory or the pod slot that it needs, or that are not ready"


_CODES: Final = {
    SeatObstacle.SEATS: WaitCode.SEATS_TAKEN,
    SeatObstacle.GPU_MEMORY: WaitCode.GPU_MEMORY_TAKEN,
    SeatObstacle.UNKNOWN: WaitCode.GPUS_NOT_KNOWN,
    SeatObstacle.NODE: WaitCode.INSUFFICIENT_RESOURCES,
}
_NODE_CODES: Final = {
    CPU: WaitCode.INSUFFICIENT_CPU,
    MEMORY: WaitCode.INSUFFICIENT_MEMORY,
    PODS: WaitCode.INSUFFICIENT_PODS,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A GPU with its node, and what is free there."""

    gpu: SeatGpu
    node: Node
    free: Resources

    def obstacle(self, job: Job) -> SeatObstacle | None:
        """Return what keeps a rank of the job from it; None: nothing. The job counts `as_sharer`."""
        if not self.is_usable(job):
            return SeatObstacle.NODE
        if not self.gpu.is_known:
            return SeatObstacle.UNKNOWN
        if not self.gpu.has_seat:
            return SeatObstacle.SEATS
        if not self.gpu.has_memory_for(job):
            return SeatObstacle.GPU_MEMORY
        return None if job.request.fits_in(self.free) else SeatObstacle.NODE

    def is_usable(self, job: Job) -> bool:
        """True if its node takes pods of the job now, apart from what is free there."""
        return self.node.name not in job.avoid and accepts(job.constraints, self.node)

    def could_ever(self, job: Job) -> bool:
        """True if the GPU could take a rank if nobody was there."""
        total = self.gpu.memory_bytes
        return job.request.fits_in(self.node.allocatable) and (total is None or job.gpu_bytes <= total)


def matching_places(job: Job, places: Iterable[Place]) -> list[Place]:
    """Return the GPUs of the nodes that the job's constraints do not exclude."""
    return [place for place in places if exclusion(job.constraints, place.node) is None]


def lasting_reason(job: Job, matching: Sequence[Place]) -> WaitReason | None:
    """Return what no other job's end can change; None: the cluster could hold the job."""
    if not matching:
        message = "no node that accepts its pods offers seats on its GPUs"
        return WaitReason(code=WaitCode.NO_SEATS, message=message)
    able = sum(place.could_ever(job) for place in matching)
    if able >= job.replicas:
        return None
    needs = f"needs seats on {counted(job.replicas, 'GPU')}, each with {_needs_text(job)}"
    message = f"{needs}; even empty, {able} of the {counted(len(matching), 'GPU')} with seats could take one"
    return WaitReason(
        code=WaitCode.NEVER_FITS, message=message, numbers=numbers_of(ranks=job.replicas, gpus_when_empty=able)
    )


def shortage_reason(job: Job, matching: Sequence[Place], holders: int) -> WaitReason:
    """Return what is short now, for a job that the empty cluster could hold. `holders`: jobs named at most."""
    counts = Counter(obstacle for place in matching if (obstacle := place.obstacle(job)) is not None)
    if not counts:
        message = f"{counted(len(matching), 'GPU')} could take a rank, but not {job.replicas} at once"
        return WaitReason(code=WaitCode.INSUFFICIENT_RESOURCES, message=message)
    most = max(counts.values())
    cause = next(obstacle for obstacle in SeatObstacle if counts[obstacle] == most)
    parts = [f"{counts[obstacle]} {obstacle.value}" for obstacle in SeatObstacle if counts[obstacle]]
    asked = f"needs a seat on {counted(job.replicas, 'GPU')}, each with {_needs_text(job)}"
    message = f"{asked}; of {counted(len(matching), 'GPU')} with seats {listed(parts)}"
    sitting = [one.id for place in matching for one in place.gpu.sharers]
    return WaitReason(
        code=_code_of(cause, job, matching),
        message=message,
        numbers=numbers_of(ranks=job.replicas, gpus=len(matching), gpus_open=len(matching) - sum(counts.values())),
        holders=tuple(dict.fromkeys(sitting))[:holders]
        if cause in (SeatObstacle.SEATS, SeatObstacle.GPU_MEMORY)
        else (),
    )


def no_domain_reason(job: Job, open_gpus: int) -> WaitReason:
    """Return the reason of a gang that would fit, but not within the level that it requires."""
    message = f"{counted(open_gpus, 'GPU')} could take a rank, but no {job.within} has {job.replicas} of them"
    return WaitReason(code=WaitCode.NO_DOMAIN_FITS, message=message)


def unknown_level_reason(job: Job) -> WaitReason:
    """Return the reason of a job that requires a level which this installation does not have."""
    message = f"locality names the level {job.within!r}, which is not configured here"
    return WaitReason(code=WaitCode.UNKNOWN_LEVEL, message=message)


def too_slow_reason(sentence: str, sitting: Iterable[JobId], holders: int) -> WaitReason:
    """Return the reason of a job that would get too little of its GPUs."""
    return WaitReason(code=WaitCode.GPUS_TOO_BUSY, message=sentence, holders=tuple(dict.fromkeys(sitting))[:holders])


def _needs_text(job: Job) -> str:
    memory = (
        f"{bytes_text(job.gpu_bytes)} of its memory" if job.gpu_bytes else "nobody else on it (gpuMemory is not set)"
    )
    return f"{memory}, and {amounts_text(job.request)}"


def _code_of(cause: SeatObstacle, job: Job, matching: Sequence[Place]) -> WaitCode:
    """A node's lack has the name of what is short, if it is the same everywhere."""
    if cause is not SeatObstacle.NODE:
        return _CODES[cause]
    places = [place for place in matching if place.obstacle(job) is SeatObstacle.NODE]
    if not any(place.is_usable(job) for place in places):
        return WaitCode.NO_USABLE_NODE
    lacking = {
        frozenset(name for name in (CPU, MEMORY, PODS) if _asked(job, name) > max(0, amount_free(place.free, name)))
        for place in places
    }
    names = next(iter(lacking)) if len(lacking) == 1 else frozenset()
    return _NODE_CODES[next(iter(names))] if len(names) == 1 else _CODES[cause]


def _asked(job: Job, name: str) -> int:
    assert name != GPUS, "a job on seats asks for no GPU"
    return amount_free(job.request, name)
