"""The rules of the multi-array scheduler: which array a job is in, what belongs to it, and who must give back what.

The CPU array and the GPU array share every node: a number of cores per GPU is the reserve of the GPU array. The GPU
array has two sub-arrays of whole nodes: one for large jobs (four GPUs or more in all), one for small jobs. Each array
may use what another does not need, and gives it back. Source: CODA (ICDCS 2020), multi-array scheduler.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from enum import Enum
from math import inf
from typing import Final, NamedTuple

from coda.model.decision import StopCause
from coda.model.gpu_products import products_of
from coda.model.job import LARGE_GPUS, Job, Phase
from coda.model.live_placement import kept_cores
from coda.model.resources import NOTHING, Resources
from coda.model.world import Node

RUNNING: Final = frozenset({Phase.LAUNCHED, Phase.STARTING, Phase.RUNNING})
"""Phases in which a job can be stopped for another; see `can_stop`."""


class Array(Enum):
    """The arrays, in the order in which they are served."""

    __hash__ = object.__hash__  # faster than the enum's own: arrays are keys in hot loops

    LARGE = 0
    SMALL = 1
    CPU = 2


GPU_ARRAYS: Final = (Array.LARGE, Array.SMALL)

_RANK_BY_ARRAY: Final = {array: rank for rank, array in enumerate(Array)}  # faster than the enum's own value


def array_of(job: Job) -> Array:
    """Return the job's array; only its request and replicas count."""
    if not job.request.gpus:
        return Array.CPU
    return Array.LARGE if job.request.gpus * job.replicas >= LARGE_GPUS else Array.SMALL


def rank_of_array(job: Job) -> int:
    """Return the job's array as an account of shares: large jobs go first, so that they get their nodes back."""
    return _RANK_BY_ARRAY[array_of(job)]


def large_nodes(nodes: Iterable[Node], gpus: int) -> frozenset[str]:
    """Return the names of the large sub-array's nodes: the fewest with `gpus` in all, largest first.

    Of nodes with as many GPUs each GPU product gives its part, first by name: names never decide which product large
    jobs get, and which one small jobs fill. Our choice."""
    ordered = sorted(nodes, key=lambda node: (-node.allocatable.gpus, node.name))
    products = products_of(ordered)
    if products is not None:
        kinds = [(node.allocatable.gpus, product) for node, product in zip(ordered, products, strict=True)]
        ordered = _in_turn(ordered, kinds)
    chosen: list[str] = []
    for node in ordered:
        if gpus <= 0 or not node.allocatable.gpus:
            break
        chosen.append(node.name)
        gpus -= node.allocatable.gpus
    return frozenset(chosen)


def _in_turn(ordered: list[Node], kinds: list[tuple[int, str]]) -> list[Node]:
    """Mix nodes of different kinds evenly, where they have as many GPUs; each kind keeps its order."""
    nodes_by_kind, before = Counter(kinds), Counter[tuple[int, str]]()
    keyed: list[tuple[int, float, int]] = []
    for place, kind in enumerate(kinds):
        keyed.append((-kind[0], (before[kind] + 0.5) / nodes_by_kind[kind], place))
        before[kind] += 1
    return [ordered[place] for _, _, place in sorted(keyed)]


def reserved_cpu_m(size: Resources, cores_per_gpu: float) -> int:
    """Return the millicores of a node that belong to the GPU array: whole cores, rounded down, at most all."""
    return min(size.cpu_m, int(cores_per_gpu * size.gpus) * 1000)


def can_stop(job: Job) -> bool:
    """True if a job with a live placement can be told to stop, or to give cores back: each of its pods is seen bound.

    Pods are seen later than their job. Of a pod that is not seen nobody knows that it leaves: its capacity would count
    as free from the order on, until the pod is seen there, and then another job would be stopped."""
    is_running = job.phase is Phase.RUNNING or job.phase in RUNNING
    return is_running and not job.unwritable and len(job.bound) >= job.replicas


class Held(NamedTuple):
    """What one job holds of one node; made by `held_by`."""

    job: Job
    amount: Resources  # of all its ranks there
    is_borrower: bool  # a CPU job on the GPU array's cores, and it can be stopped
    may_move: bool  # a guest, and it can be stopped
    kept_until_s: float = -inf  # a borrower gives nothing back before this time
    ranks: int = 1  # there
    spare: int = 0  # whole cores per rank that it can give back
    kept_cpu_m: int = 0  # of a GPU job: what its search tries without there, in all; it is not in `amount`

    @property
    def since_s(self) -> float:
        """When the job started."""
        return self.job.placement.committed_s if self.job.placement is not None else 0.0


def held_by(job: Job, ranks: int, *, is_guest: bool, kept_until_s: float = -inf, spare: int = 0) -> Held:
    """Return what `ranks` ranks of a job hold. `is_guest`: a small job, wholly on nodes of the large sub-array.
    `kept_until_s`: see `policy.reclaim`; `spare`: as in `Held`.

    A gang that is partly on its own nodes cannot be moved: that would free capacity where nobody needs it. Nor is a
    guest that does not resume: what it has done would be lost for another job's sake."""
    placement, request = job.placement, job.request
    may_stop = placement is not None and can_stop(job)
    kept = max(0, kept_cores(job) - job.cpus_per_replica) if job.held_cores and request.gpus else 0
    return Held(
        job,
        request if ranks == 1 else request * ranks,
        placement is not None and placement.borrows and may_stop and not request.gpus,
        may_stop and is_guest and job.resumable,
        kept_until_s,
        ranks,
        spare,
        ranks * kept * 1000,
    )


class Claims(NamedTuple):
    """What the jobs on a node hold together, as far as the arrays need it."""

    gpu_jobs_cpu_m: int = 0  # held by GPU jobs, or withheld for what they search
    borrowed: Resources = NOTHING  # held by borrowers: what stops for small GPU jobs free
    movable: Resources = NOTHING  # the same plus what guests hold: what stops for large GPU jobs free
    cpu_jobs_cpu_m: int = 0  # held by CPU jobs that do not give it back
    spare_cpu_m: int = 0  # of what GPU jobs hold, what they can give back
    gpus: int = 0  # held by GPU jobs


NO_CLAIMS: Final = Claims()


def claims_of(held: Iterable[Held]) -> Claims:
    """Return the sums."""
    cpu_m, own_m, spare_m, gpus, borrowed, moved = 0, 0, 0, 0, NOTHING, NOTHING
    for job, amount, is_borrower, may_move, _, ranks, spare, kept_m in held:
        if job.request.gpus:
            cpu_m += amount.cpu_m + kept_m
            spare_m += ranks * spare * 1000
            gpus += amount.gpus
        elif not is_borrower:
            own_m += amount.cpu_m
        if is_borrower:
            borrowed = borrowed + amount if borrowed is not NOTHING else amount
        elif may_move:
            moved = moved + amount if moved is not NOTHING else amount
    return Claims(cpu_m, borrowed, borrowed if moved is NOTHING else borrowed + moved, own_m, spare_m, gpus)


def claims_with(claims: Claims, before: Held | None, after: Held | None) -> Claims | None:
    """Return the sums after a job holds `after` instead of `before`; None if they must be computed again."""
    if before is not None and after is not None and before[1:] == after[1:]:
        return claims
    cpu_m = own_m = spare_m = gpus = 0
    for held, sign in ((before, -1), (after, 1)):
        if held is None:
            continue
        if held.is_borrower or held.may_move:
            return None
        if held.amount.gpus:
            cpu_m += sign * (held.amount.cpu_m + held.kept_cpu_m)
            spare_m += sign * held.ranks * held.spare * 1000
            gpus += sign * held.amount.gpus
        else:
            own_m += sign * held.amount.cpu_m
    if not cpu_m and not own_m and not spare_m and not gpus:
        return claims
    return Claims(
        claims.gpu_jobs_cpu_m + cpu_m,
        claims.borrowed,
        claims.movable,
        claims.cpu_jobs_cpu_m + own_m,
        claims.spare_cpu_m + spare_m,
        claims.gpus + gpus,
    )


def others_reserve_m(size: Resources, untaken: Resources, claims: Claims, reserve_cpu_m: int) -> int:
    """Return the millicores of the reserve that GPU pods of others use: pods outside Coda, or of attempts that ended.

    `untaken`: allocatable - used - withheld. What is in flight or held back for a moment is nobody's yet.
    All that others hold, up to their GPUs' part of the reserve: whose cores they are is not known, and those of pods
    without GPUs count first. It never exceeds what others hold. So CPU jobs never own more than the division says, and
    the whole reserve is there again when these pods have ended. Our choice: the rest of their part stays reserved, as
    beside a training job that does with fewer cores."""
    gpus = size.gpus - untaken.gpus - claims.gpus
    if gpus <= 0 or not size.gpus:
        return 0
    held_m = claims.gpu_jobs_cpu_m + claims.cpu_jobs_cpu_m + claims.borrowed.cpu_m
    part_m = reserve_cpu_m * min(gpus, size.gpus) // size.gpus
    return max(0, min(part_m, size.cpu_m - untaken.cpu_m - held_m))


Victim = tuple[Held, StopCause]


def cpu_jobs_capacity(free: Resources, gpu_jobs_cpu_m: int, reserve_cpu_m: int) -> Resources:
    """Return what CPU jobs may take without borrowing: what is free, less the reserve that GPU jobs do not use.

    Here and below `gpu_jobs_cpu_m` is with `others_reserve_m`."""
    unused = reserve_cpu_m - gpu_jobs_cpu_m
    return free.with_cpu(free.cpu_m - unused) if unused > 0 else free


def returnable_cpu_m(gpu_jobs_cpu_m: int, spare_cpu_m: int, reserve_cpu_m: int) -> int:
    """Return what GPU jobs can give back to the CPU array: what they hold beyond their reserve, as far as they can."""
    return max(0, min(gpu_jobs_cpu_m - reserve_cpu_m, spare_cpu_m))


def gpu_jobs_capacity(free: Resources, gpu_jobs_cpu_m: int, reserve_cpu_m: int) -> Resources:
    """Return what GPU jobs may take without borrowing: what is free, with no more cores than their reserve."""
    beyond = free.cpu_m - max(0, reserve_cpu_m - gpu_jobs_cpu_m)
    return free.with_cpu(free.cpu_m - beyond) if beyond > 0 else free


def victims(held: Iterable[Held], wanted: Resources, free: Resources, *, small_too: bool, now_s: float) -> list[Victim]:
    """Return who on a node must stop so that `wanted` fits: nobody if it fits, and everybody who may if nothing helps.

    Guests for GPUs first, then borrowing CPU jobs; the newest first (ties: by id). Borrowers that keep their cores for
    a while come last, the shortest while first: see `stopped_at_s`. Then jobs that need not stop are spared: these
    first, then the largest. Source: CODA aborts borrowers; newest first and sparing are our choice."""
    chosen: list[Victim] = []
    guests = [(one, StopCause.MIGRATE) for one in held if small_too and one.may_move]
    borrowers = [(one, StopCause.RECLAIM) for one in held if one.is_borrower]
    later = [pair for pair in borrowers if pair[0].kept_until_s > now_s]
    if later:
        borrowers = [pair for pair in borrowers if pair[0].kept_until_s <= now_s]
        later.sort(key=lambda pair: (pair[0].kept_until_s, _newest(pair)))
    for one, cause in [*sorted(guests, key=_newest), *sorted(borrowers, key=_newest), *later]:
        if not wanted.fits_in(free) and one.amount.helps(wanted, free):
            chosen.append((one, cause))
            free = free + one.amount
    for one, _ in sorted(chosen, key=lambda pair: _sparing(pair, now_s), reverse=True):
        if wanted.fits_in(free - one.amount):
            chosen = [pair for pair in chosen if pair[0] is not one]
            free = free - one.amount
    return chosen


def stopped_at_s(found: Iterable[Victim]) -> float:
    """Return when all of these may be stopped; minus infinity if they may be at any time."""
    return max((one.kept_until_s for one, cause in found if cause is StopCause.RECLAIM), default=-inf)


def _sparing(pair: Victim, now_s: float) -> tuple[float, int, int]:
    return (max(0.0, pair[0].kept_until_s - now_s), pair[0].amount.gpus, pair[0].amount.cpu_m)


def _newest(pair: Victim) -> tuple[float, str]:
    return (-pair[0].since_s, pair[0].job.id)
