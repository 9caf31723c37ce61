"""Whether opportunistic jobs may have taken GPU memory from a job with GPUs of its own."""

from __future__ import annotations

from coda_operator.view import ClusterView, JobRecord


def had_guests(cluster: ClusterView, job: JobRecord) -> bool:
    """True if a job with seats has a pod on a node of this one, which has GPUs of its own.

    Nobody tells the operator on which GPU. O(pods of these nodes)."""
    placement = job.placement
    if placement is None or placement.gpus or not job.gpus:
        return False
    others = [(other, node) for node in sorted(set(placement.nodes)) for other in cluster.jobs_on(node)]
    return any(
        other.placement is not None and bool(other.placement.gpus) and node in other.placement.nodes
        for other, node in others
        if other.key != job.key
    )
