"""Whether others on its GPUs may have left a job too little GPU memory: guests, or for a guest anybody."""

from __future__ import annotations

from collections.abc import Iterable, Set
from math import inf
from typing import Final

from coda.lifecycle import PodState, RankPod
from coda.sharing.job_classes import SharingClass
from coda_operator.view import ClusterView, JobRecord

ENDED_WITHIN_S: Final = 60.0
"""Who ended so long before a rank had failed may have had the memory. Our choice: a gang takes a moment to fail, and
to be seen; and a guest's limit stays a minute after the need for it."""


def had_others(cluster: ClusterView, job: JobRecord, pods: Iterable[RankPod]) -> bool:
    """True if others may have had memory of the GPUs of a job.

    Of GPUs of its own: a job with seats has a pod on one of its nodes. Of a seat: a job has a seat on the same GPU, or
    GPUs of its own on the node. `pods`: of this attempt. Others that have finished count if they had not when the first
    of them failed, or a moment before. Nobody tells the operator on which GPU. O(pods of these nodes)."""
    placement = job.placement
    if placement is None or not job.gpus:
        return False
    ends_s = [pod.ended_s for pod in pods if pod.state is PodState.FAILED and pod.ended_s]
    since_s = min(ends_s, default=inf) - ENDED_WITHIN_S
    seats = set(zip(placement.nodes, placement.gpus, strict=True)) if placement.gpus else None
    others = [(other, node) for node in sorted(set(placement.nodes)) for other in cluster.jobs_on(node)]
    return any(_shares(other, node, since_s, seats) for other, node in others if other.key != job.key)


def _shares(job: JobRecord, node: str, since_s: float, seats: Set[tuple[str, int]] | None) -> bool:
    """`seats`: node and GPU of each rank of the job that failed; None: it has GPUs of its own.

    Of a finished job no placement is kept; its pod is on the node."""
    if job.placement is not None:
        there = [(at, gpu) for at, gpu in zip(job.placement.nodes, job.placement.gpus, strict=False) if at == node]
        if seats is None:
            return bool(there)
        is_owner = not job.placement.gpus and bool(job.gpus) and node in job.placement.nodes
        return is_owner or not seats.isdisjoint(there)
    shares = (job.json.get("status") or {}).get("sharing") or {}
    was_guest = shares.get("class") == SharingClass.OPPORTUNISTIC.value
    return (was_guest or (seats is not None and bool(job.gpus))) and job.progress.completion_s >= since_s
