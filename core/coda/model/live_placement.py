"""Questions about one job: which placement is live, and what it withholds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from coda.model.job import FINISHED, TAKEN_BACK, Job, Phase, Placement, Wish, WishAnswer

_HOLDING: Final = frozenset({Phase.QUEUED, Phase.LAUNCHED, Phase.STARTING, Phase.RUNNING})
_GROWS: Final = frozenset({Phase.RUNNING, Phase.RESTARTING, Phase.SUSPENDED})


def live_placement(job: Job) -> Placement | None:
    """Return the placement that counts for the job's current attempt, or None.

    A placement ends with its attempt, and when the job is suspended, finished or ordered to stop. An edit ends the
    placement of a queued job only: edits of a launched job never change its shape."""
    placement = job.placement
    if placement is None or placement.attempt != job.attempt or placement.stop is not None:
        return None
    if job.phase is Phase.QUEUED:
        return placement if placement.generation == job.generation else None
    return None if job.phase is Phase.SUSPENDED or job.phase in FINISHED else placement


def is_waiting(job: Job) -> bool:
    """True for a queued job without a live placement."""
    return job.phase is Phase.QUEUED and (job.placement is None or live_placement(job) is None)


def withheld_ranks(job: Job) -> Iterator[tuple[int, str]]:
    """Yield the ranks whose capacity is withheld (no bound pod uses it), each with its node name.

    Until the attempt ends: every rank without a bound pod. The job and its pods are watched apart, so a job may be seen
    running before its pods are. Afterwards, and without a live placement: every live pod that is not bound yet, on the
    node it is pinned to."""
    if may_lack_pods(job):
        placement = live_placement(job)
        if placement is not None:
            for rank, node in enumerate(placement.nodes):
                if rank not in job.bound:
                    yield rank, job.unbound.get(rank, node)
            return
    yield from job.unbound.items()


def may_lack_pods(job: Job) -> bool:
    """True if pods of the attempt may not exist yet, or are not seen yet."""
    return job.phase in _HOLDING and len(job.bound) < job.replicas


def is_resizing(job: Job) -> bool:
    """True while a granted wish is being carried out."""
    placement = live_placement(job) if job.phase is Phase.RUNNING else None
    answer = placement.answer if placement is not None else None
    return answer is not None and answer.granted and answer.sequence > job.resized


def open_wish(job: Job) -> Wish | None:
    """Return the unanswered wish of a running job, or None; None too while an earlier one is being carried out, and
    while no answer can be written."""
    wish = job.wish
    if wish is None or job.phase is not Phase.RUNNING or job.unwritable or is_resizing(job):
        return None
    placement = live_placement(job)
    if placement is None or (placement.answer is not None and placement.answer.sequence >= wish.sequence):
        return None
    return wish


def growth_by_node(job: Job, cores: int) -> dict[str, int]:
    """Return, by node name, the millicores to withhold besides, so that each rank may have `cores`; other nodes are
    absent. What a pod has already, or what is withheld for it, is not counted. Ranks that have ended do not grow."""
    return _lacks(job, live_placement(job), cores, job.cpus_per_replica)


def held_growth(job: Job) -> dict[str, int]:
    """Return, by node name, the millicores that its search tries without. They are withheld for it alone."""
    return growth_by_node(job, kept_cores(job))


def kept_cores(job: Job) -> int:
    """Return the cores per rank that its search may go back to; 0 without one.

    Never more than its placement gave it: the agent that says so is not believed to have more to give up."""
    held = job.held_cores if job.phase is Phase.RUNNING and job.placement is not None else 0
    return min(held, job.placement.cpus_per_replica) if held and job.placement is not None else 0


def withheld_growth(job: Job) -> dict[str, int]:
    """Return, by node name, the millicores that were granted and that no pod is seen to have yet, those that its search
    tries without, and what a shrink frees until all ranks have shrunk: if one cannot, the others get theirs back. Not
    while a CPU job waits for them.

    A resize that has ended may be seen before its pods: what they lack of it stays withheld. Pods of a job that was
    suspended or restarts may still get what was granted. Those ordered to stop count as gone (decision 0137)."""
    placement, answer = job.placement, job.placement.answer if job.placement is not None else None
    if placement is None or placement.attempt != job.attempt or placement.stop is not None or job.phase not in _GROWS:
        return {}
    held = kept_cores(job)
    if answer is not None and answer.granted and answer.sequence > job.resized:
        kept = job.cpus_per_replica if _is_shrinking(job, placement, answer) else 0
        return _lacks(job, placement, max(answer.cores, kept, held), 0)
    may_lack = job.pod_cpu_m or held > job.cpus_per_replica
    return _lacks(job, placement, max(job.cpus_per_replica, held), 0) if may_lack else {}


def _is_shrinking(job: Job, placement: Placement, answer: WishAnswer) -> bool:
    """True while some rank has more cores than a wish was granted. Not of cores that a CPU job waits for."""
    left_m = job.request.cpu_m + (answer.cores - job.cpus_per_replica) * 1000
    ranks = [rank for rank in range(len(placement.nodes)) if rank not in job.gone]
    return answer.code != TAKEN_BACK and any(job.pod_cpu_m.get(rank, job.request.cpu_m) > left_m for rank in ranks)


def _lacks(job: Job, placement: Placement | None, cores: int, counted: int) -> dict[str, int]:
    """What the pods lack of `cores` per rank, by node. `counted`: cores that each of them counts with at least."""
    asked_m, counted_m = [job.request.cpu_m + (count - job.cpus_per_replica) * 1000 for count in (cores, counted)]
    lacks: dict[str, int] = {}
    for rank, node in enumerate(placement.nodes if placement is not None else ()):
        if rank in job.gone or (rank not in job.bound and job.phase is not Phase.RUNNING):
            continue
        lacking_m = asked_m - max(job.pod_cpu_m.get(rank, job.request.cpu_m), counted_m)
        if lacking_m > 0:
            lacks[node] = lacks.get(node, 0) + lacking_m
    return lacks


def is_giving_back(job: Job) -> bool:
    """True while an order to give cores back is being carried out."""
    answer = job.placement.answer if job.placement is not None else None
    return answer is not None and answer.code == TAKEN_BACK and is_resizing(job)


def returning_by_node(job: Job, now_s: float) -> dict[str, int]:
    """Return, by node name, the millicores that a job which `is_giving_back` will soon free.

    Nothing after the deadline: then nobody waits for them any more."""
    placement = live_placement(job)
    if placement is None or placement.answer is None or now_s > placement.answer.deadline_s:
        return {}
    left_m = job.request.cpu_m + (placement.answer.cores - job.cpus_per_replica) * 1000
    returning: dict[str, int] = {}
    for rank, node in enumerate(placement.nodes):
        surplus_m = job.pod_cpu_m.get(rank, job.request.cpu_m) - left_m
        if surplus_m > 0 and rank in job.bound and rank not in job.gone:
            returning[node] = returning.get(node, 0) + surplus_m
    return returning
