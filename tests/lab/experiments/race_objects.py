"""Pods as the watch brings them, for the tests of the race."""

from __future__ import annotations

from typing import Any

from coda_kube.objects.names import LABEL_ATTEMPT, LABEL_JOB, LABEL_RANK


def pod(
    name: str, *, node: str | None = None, phase: str = "Pending", reason: str = "", deleting: bool = False
) -> dict[str, Any]:
    """A foreign pod."""
    metadata: dict[str, Any] = {"name": name, "namespace": "default", "labels": {}}
    if deleting:
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    spec = {"nodeName": node} if node else {}
    return {"metadata": metadata, "spec": spec, "status": {"phase": phase} | ({"reason": reason} if reason else {})}


def rank_pod(rank: int, *, attempt: int = 1, job: str = "j", **rest: Any) -> dict[str, Any]:
    """A pod of a gang."""
    made = pod(f"{job}-{attempt}-{rank}", **rest)
    made["metadata"]["labels"] = {LABEL_JOB: job, LABEL_ATTEMPT: str(attempt), LABEL_RANK: str(rank)}
    return made
