"""The multi-array scheduler's rules: which array a job enters, what belongs to it, who gives back what. What must not
live here: what is remembered between rounds (`lending`), and the order inside an array (`fairness`).

The CPU array and the GPU array share every node: so many cores per GPU are the GPU array's reserve. The GPU array has
two sub-arrays of whole nodes, for large jobs (four GPUs or more in all) and for small ones. Each may use what another
does not need, and gives it back. Source: CODA (ICDCS 2020), multi-array scheduler.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum
from math import ceil
from typing import Final, NamedTuple

from coda.model.decision import StopCause
from coda.model.job import Job, Phase
from coda.model.resources import NOTHING, Resources
from coda.model.world import Node

LARGE_GPUS: Final = 4
"""Jobs of so many GPUs in all are large. Source: CODA's 4-GPU sub-array."""

RUNNING: Final = frozenset({Phase.LAUNCHED, Phase.STARTING, Phase.RUNNING})
"""Phases in which a job can be stopped for another, unless a pod of it is still on its way to a node."""


class Array(Enum):
    """Where a job waits, in the order in which they are served."""

    __hash__ = object.__hash__  # asked for with every look at a sub-array

    LARGE = 0
    SMALL = 1
    CPU = 2


_RANK_BY_ARRAY: Final = {array: rank for rank, array in enumerate(Array)}  # faster than the enum's own value


def array_of(job: Job) -> Array:
    """By its request alone."""
    if not job.request.gpus:
        return Array.CPU
    return Array.LARGE if job.request.gpus * job.replicas >= LARGE_GPUS else Array.SMALL


def rank_of_array(job: Job) -> int:
    """The job's array as an account of shares: large jobs go first, so that they get their own nodes back."""
    return _RANK_BY_ARRAY[array_of(job)]


def large_nodes(nodes: Iterable[Node], gpus: int) -> frozenset[str]:
    """The names of the large sub-array's nodes: the fewest that have so many GPUs. Largest first, then by name."""
    chosen: list[str] = []
    for node in sorted(nodes, key=lambda node: (-node.allocatable.gpus, node.name)):
        if gpus <= 0 or not node.allocatable.gpus:
            break
        chosen.append(node.name)
        gpus -= node.allocatable.gpus
    return frozenset(chosen)


def reserved_cpu_m(size: Resources, cores_per_gpu: float) -> int:
    """Millicores of a node that belong to the GPU array: whole cores, rounded down, at most all."""
    return min(size.cpu_m, int(cores_per_gpu * size.gpus) * 1000)


def reserve_from_history(cores_in_use: Sequence[float], gpus: int, percentile: float) -> float:
    """Cores per GPU to reserve: what tuned GPU jobs used at once, at that percentile (0..1), over all `gpus`.

    Nearest rank; 0 without history or GPUs. Source: "historical statistics" (CODA); the percentile is our choice."""
    if not cores_in_use or gpus < 1:
        return 0.0
    ranked = sorted(cores_in_use)
    return ranked[max(0, ceil(percentile * len(ranked)) - 1)] / gpus


class Held(NamedTuple):
    """What one job holds of one node; made by `held_by`."""

    job: Job
    amount: Resources  # of all its ranks there
    is_borrower: bool  # a CPU job on the GPU array's cores that can be stopped
    may_move: bool  # a guest that can be stopped

    @property
    def since_s(self) -> float:
        """When it started."""
        return self.job.placement.committed_s if self.job.placement is not None else 0.0


def held_by(job: Job, ranks: int, *, is_guest: bool) -> Held:
    """What so many ranks of a job hold. `is_guest`: a small job, all of it on nodes of the large sub-array.

    A gang that is partly at home cannot be moved: that would leave room where nobody asked for it."""
    placement, request = job.placement, job.request
    may_stop = placement is not None and not job.unbound and (job.phase is Phase.RUNNING or job.phase in RUNNING)
    return Held(
        job,
        request if ranks == 1 else request * ranks,
        placement is not None and placement.borrows and may_stop and not request.gpus,
        may_stop and is_guest,
    )


class Claims(NamedTuple):
    """What all jobs on a node hold together, as far as the arrays ask."""

    gpu_jobs_cpu_m: int = 0  # held by GPU jobs
    borrowed: Resources = NOTHING  # that borrowers give back: what stops for small GPU jobs free
    movable: Resources = NOTHING  # that, and what guests hold: what stops for large ones free


NO_CLAIMS: Final = Claims()


def claims_of(held: Iterable[Held]) -> Claims:
    """Their sums."""
    cpu_m, borrowed, moved = 0, NOTHING, NOTHING
    for job, amount, is_borrower, may_move in held:
        if job.request.gpus:
            cpu_m += amount.cpu_m
        if is_borrower:
            borrowed = borrowed + amount if borrowed is not NOTHING else amount
        elif may_move:
            moved = moved + amount if moved is not NOTHING else amount
    return Claims(cpu_m, borrowed, borrowed if moved is NOTHING else borrowed + moved)


def claims_with(claims: Claims, before: Held | None, after: Held | None) -> Claims | None:
    """The sums once a job holds `after` there instead of `before`; None where they must be found anew."""
    if before is not None and after is not None and before[1:] == after[1:]:
        return claims
    cpu_m = 0
    for held, sign in ((before, -1), (after, 1)):
        if held is None:
            continue
        if held.is_borrower or held.may_move:
            return None
        if held.amount.gpus:
            cpu_m += sign * held.amount.cpu_m
    return claims._replace(gpu_jobs_cpu_m=claims.gpu_jobs_cpu_m + cpu_m) if cpu_m else claims


Victim = tuple[Held, StopCause]


def cpu_jobs_room(free: Resources, gpu_jobs_cpu_m: int, reserve_cpu_m: int) -> Resources:
    """What CPU jobs may take without borrowing: what is free, less the reserve that GPU jobs do not use."""
    unused = reserve_cpu_m - gpu_jobs_cpu_m
    return free.with_cpu(free.cpu_m - unused) if unused > 0 else free


def gpu_jobs_room(free: Resources, gpu_jobs_cpu_m: int, reserve_cpu_m: int) -> Resources:
    """What GPU jobs may take without borrowing: what is free, and of the cores no more than their reserve."""
    beyond = free.cpu_m - max(0, reserve_cpu_m - gpu_jobs_cpu_m)
    return free.with_cpu(free.cpu_m - beyond) if beyond > 0 else free


def victims(held: Iterable[Held], wanted: Resources, free: Resources, *, small_too: bool) -> list[Victim]:
    """Who on a node must stop so that `wanted` fits; nobody where it fits, and all that may where even that is too few.

    Guests for GPUs first, then borrowing CPU jobs, the newest first (ties: by id); then those are spared without whom
    it fits all the same, largest first. Source: CODA aborts borrowers; newest first and sparing are our choice."""
    chosen: list[Victim] = []
    guests = [(one, StopCause.MIGRATE) for one in held if small_too and one.may_move]
    borrowers = [(one, StopCause.RECLAIM) for one in held if one.is_borrower]
    for one, cause in [*sorted(guests, key=_newest), *sorted(borrowers, key=_newest)]:
        if not wanted.fits_in(free) and _helps(one.amount, wanted, free):
            chosen.append((one, cause))
            free = free + one.amount
    for one, cause in sorted(chosen, key=lambda pair: (pair[0].amount.gpus, pair[0].amount.cpu_m), reverse=True):
        if wanted.fits_in(free - one.amount):
            chosen.remove((one, cause))
            free = free - one.amount
    return chosen


def _newest(pair: Victim) -> tuple[float, str]:
    return (-pair[0].since_s, pair[0].job.id)


def _helps(amount: Resources, wanted: Resources, free: Resources) -> bool:
    """True when it has something of what is short."""
    return bool(
        (wanted.gpus > free.gpus and amount.gpus)
        or (wanted.cpu_m > free.cpu_m and amount.cpu_m)
        or (wanted.memory_bytes > free.memory_bytes and amount.memory_bytes)
        or (wanted.pods > free.pods and amount.pods)
        or any(count > free.other.get(name, 0) and amount.other.get(name) for name, count in wanted.other.items())
    )
