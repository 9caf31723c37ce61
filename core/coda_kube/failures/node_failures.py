"""The failures of nodes' GPUs that the jobs of a cluster show, as the API server has them.

As with the failed jobs of a user, nothing else is stored: after a restart the list of jobs tells the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from coda.correlation.suspect_nodes import OF_THE_GPU, WINDOW_S, Cordon, NodeFailure
from coda.diagnosis import Retry
from coda_kube.failures.owners import owner_from_json
from coda_kube.objects.quantities import seconds_from_time

Item = Mapping[str, Any]

MOST: Final = 2000
"""Failures that are remembered, the newest. Our choice: a cluster with more has another trouble."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspicion:
    """What follows for the jobs that wait. `until_s`: of the cordoned nodes; `ended`: see `ended_cordons`."""

    cordons: Mapping[str, Cordon] = field(default_factory=dict)  # by node
    until_s: Mapping[str, float] = field(default_factory=dict)
    ended: Mapping[str, frozenset[float]] = field(default_factory=dict)


class NodeFailures:
    """What was seen, by job. Seeing a job twice changes nothing."""

    def __init__(self) -> None:
        self._failure_by_uid: dict[str, NodeFailure] = {}

    def see(self, job: Item, now_s: float) -> None:
        """Remember on which node the job's last failure was, if that may be the node's fault."""
        failure = node_failure_from_json(job)
        self._failure_by_uid.pop(job["metadata"]["uid"], None)
        if failure is None or now_s - failure.time_s >= WINDOW_S:
            return
        self._failure_by_uid[failure.uid] = failure
        if len(self._failure_by_uid) > MOST:
            oldest = min(self._failure_by_uid.values(), key=lambda one: (one.time_s, one.uid))
            del self._failure_by_uid[oldest.uid]

    def forget(self, uid: str) -> None:
        """Forget a job that is gone."""
        self._failure_by_uid.pop(uid, None)

    def forget_all(self) -> None:
        """Forget every job: they are listed again."""
        self._failure_by_uid.clear()

    def all(self) -> Iterable[NodeFailure]:
        """Return everything that is remembered."""
        return tuple(self._failure_by_uid.values())


def node_failure_from_json(job: Item) -> NodeFailure | None:
    """Return the failure of a node's GPU that a job shows; None if it shows none, or its evidence names no cause."""
    failure = (job.get("status") or {}).get("failure") or {}
    node, failed_s = failure.get("node"), seconds_from_time(failure.get("time"))
    is_of_node = failure.get("retry") == Retry.OTHER_NODE.value and failure.get("reason") in OF_THE_GPU
    if not node or not failed_s or not is_of_node or not failure.get("explicit"):
        return None
    is_person, name = owner_from_json(job["metadata"])
    return NodeFailure(
        uid=job["metadata"]["uid"],
        owner=name if is_person else f"namespace {name}",
        node=node,
        reason=failure["reason"],
        time_s=failed_s,
    )
