"""What was used in a span of time, by owner and shape: what reports, and the division of a cluster, read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from coda.history.record import FinishedJob


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """The use of one owner's finished jobs of one shape (`replicas` x `gpus_per_replica`) within a span."""

    owner: str
    replicas: int
    gpus_per_replica: int
    jobs: int  # that ended within the span
    gpu_s: float  # GPU-seconds held within it
    idle_gpu_s: float  # of these, of jobs whose GPUs were measured
    core_s: float  # core-seconds held with the cores that each job had at its end
    wait_s: float  # seconds that the jobs which ended within it waited in all


def accounts(jobs: Iterable[FinishedJob], from_s: float, to_s: float) -> tuple[Account, ...]:
    """Return the use within [from_s, to_s), by owner and shape, in their order.

    A job counts as if it had held its GPUs without a break until its end: exact for jobs of one attempt. Jobs that
    neither held anything within the span nor ended in it make no account. O(jobs log shapes)."""
    found: dict[tuple[str, int, int], Account] = {}
    for job in jobs:
        ended_within = from_s <= job.ended_s < to_s
        held_s = _held_within_s(job, from_s, to_s)
        if not ended_within and held_s == 0.0:
            continue
        shape = (job.owner, job.replicas, job.gpus_per_replica)
        share = share_within(job, from_s, to_s)
        before = found.get(shape)
        found[shape] = Account(
            owner=job.owner,
            replicas=job.replicas,
            gpus_per_replica=job.gpus_per_replica,
            jobs=(before.jobs if before else 0) + ended_within,
            gpu_s=(before.gpu_s if before else 0.0) + job.held_gpu_s * share,
            idle_gpu_s=(before.idle_gpu_s if before else 0.0) + (job.idle_gpu_s or 0.0) * share,
            core_s=(before.core_s if before else 0.0) + held_s * job.replicas * job.cores_given,
            wait_s=(before.wait_s if before else 0.0) + (job.wait_s if ended_within else 0.0),
        )
    return tuple(found[shape] for shape in sorted(found))


def share_within(job: FinishedJob, from_s: float, to_s: float) -> float:
    """Return how much of what the job held lies within [from_s, to_s), in 0..1, as `accounts` counts it.

    Of a job that only held GPUs while its pods ended, all of it lies at its end."""
    if job.held_s:
        return _held_within_s(job, from_s, to_s) / job.held_s
    return 1.0 if from_s <= job.ended_s < to_s else 0.0


def _held_within_s(job: FinishedJob, from_s: float, to_s: float) -> float:
    return max(0.0, min(job.ended_s, to_s) - max(job.ended_s - job.held_s, from_s))
