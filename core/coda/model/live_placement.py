"""Questions about one job: which placement holds for it, and what that placement withholds."""

from __future__ import annotations

from collections.abc import Iterator

from coda.model.job import FINISHED, Job, Phase, Placement, Wish


def live_placement(job: Job) -> Placement | None:
    """The plan that holds for the job's current attempt, or None.

    A plan dies with its attempt, when the job is suspended, finished or ordered to stop, and when a queued job was
    edited after it was made; edits of a launched job never touch its shape."""
    placement = job.placement
    if placement is None or placement.attempt != job.attempt or placement.stop is not None:
        return None
    if job.phase is Phase.QUEUED:
        return placement if placement.generation == job.generation else None
    return None if job.phase is Phase.SUSPENDED or job.phase in FINISHED else placement


def is_waiting(job: Job) -> bool:
    """True for a queued job that no live plan starts."""
    return job.phase is Phase.QUEUED and (job.placement is None or live_placement(job) is None)


def withheld_ranks(job: Job) -> Iterator[tuple[int, str]]:
    """The ranks whose share of a node is taken though no bound pod uses it, with that node's name.

    Until all pods are known to exist (queued, launched) that is every rank without a bound pod; afterwards, and
    whatever became of the plan, every live pod that has no node yet, where it is pinned."""
    if _may_lack_pods(job):
        placement = live_placement(job)
        if placement is not None:
            for rank, node in enumerate(placement.nodes):
                if rank not in job.bound:
                    yield rank, job.unbound.get(rank, node)
            return
    yield from job.unbound.items()


def _may_lack_pods(job: Job) -> bool:
    return job.phase is Phase.QUEUED or job.phase is Phase.LAUNCHED


def is_resizing(job: Job) -> bool:
    """True while a wish that was granted is being carried out."""
    placement = live_placement(job) if job.phase is Phase.RUNNING else None
    answer = placement.answer if placement is not None else None
    return answer is not None and answer.granted and answer.sequence > job.resized


def open_wish(job: Job) -> Wish | None:
    """The wish of a running job that awaits an answer: the last one, unless the one before is still carried out."""
    wish = job.wish
    if wish is None or job.phase is not Phase.RUNNING or is_resizing(job):
        return None
    placement = live_placement(job)
    if placement is None or (placement.answer is not None and placement.answer.sequence >= wish.sequence):
        return None
    return wish


def growth_by_node(job: Job, cores: int) -> dict[str, int]:
    """Per node, the millicores that the pods of a placed job lack for so many cores per rank, where they lack any."""
    placement = live_placement(job)
    asked_m = job.request.cpu_m + (cores - job.cpus_per_replica) * 1000
    growth: dict[str, int] = {}
    for rank, node in enumerate(placement.nodes if placement is not None else ()):
        lacking_m = asked_m - job.pod_cpu_m.get(rank, job.request.cpu_m)
        if lacking_m > 0:
            growth[node] = growth.get(node, 0) + lacking_m
    return growth
