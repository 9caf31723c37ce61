"""Whether opportunistic jobs may have taken GPU memory from a job with GPUs of its own."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import Final

from coda.lifecycle import PodState, RankPod
from coda.sharing.job_classes import SharingClass
from coda_operator.view import ClusterView, JobRecord

ENDED_WITHIN_S: Final = 60.0
"""A guest that ended so long before a rank had failed may have had the memory. Our choice: a gang takes a moment to
fail, and to be seen."""


def had_guests(cluster: ClusterView, job: JobRecord, pods: Iterable[RankPod]) -> bool:
    """True if a job with seats has a pod on a node of this one, which has GPUs of its own.

    `pods`: of this attempt. A guest that has finished counts if it had not when the first of them failed, or a moment
    before. Nobody tells the operator on which GPU. O(pods of these nodes)."""
    placement = job.placement
    if placement is None or placement.gpus or not job.gpus:
        return False
    ends_s = [pod.ended_s for pod in pods if pod.state is PodState.FAILED and pod.ended_s]
    since_s = min(ends_s, default=inf) - ENDED_WITHIN_S
    others = [(other, node) for node in sorted(set(placement.nodes)) for other in cluster.jobs_on(node)]
    return any(_is_guest(other, node, since_s) for other, node in others if other.key != job.key)


def _is_guest(job: JobRecord, node: str, since_s: float) -> bool:
    """Of a finished job no placement is kept; its pod is on the node."""
    if job.placement is not None:
        return bool(job.placement.gpus) and node in job.placement.nodes
    shares = (job.json.get("status") or {}).get("sharing") or {}
    return shares.get("class") == SharingClass.OPPORTUNISTIC.value and job.progress.completion_s >= since_s
