"""The failures of nodes' GPUs that the jobs of a cluster show, and the runs that succeeded, as the API server has them.

As with the failed jobs of a user, nothing else is stored: after a restart the list of jobs tells the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from coda.correlation.suspect_nodes import WINDOW_S, Cordon, NodeFailure, NodeRun, is_of_node, telling_runs
from coda.diagnosis import Retry
from coda.diagnosis.xids import XidKind, kind_of
from coda.errors import InvalidInput
from coda.history.time_spent import Doing
from coda.model import Phase
from coda_kube.failures.owners import owner_from_json
from coda_kube.objects.quantities import seconds_from_time

Item = Mapping[str, Any]

MOST: Final = 2000
"""Failures that are remembered, the newest. Our choice: a cluster with more has another trouble."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspicion:
    """What follows for the jobs that wait. `until_s`: of the cordoned nodes; the others: see `NodeVerdict`."""

    cordons: Mapping[str, Cordon] = field(default_factory=dict)  # by node
    until_s: Mapping[str, float] = field(default_factory=dict)
    ended: Mapping[str, frozenset[float]] = field(default_factory=dict)
    probation: frozenset[str] = frozenset()


class NodeFailures:
    """What was seen, by job. Seeing a job twice changes nothing."""

    def __init__(self) -> None:
        self._failure_by_uid: dict[str, NodeFailure] = {}
        self._ahead_by_uid: dict[str, tuple[float, float]] = {}  # of failures from the future: as written, as it counts
        self._runs_by_node: dict[str, tuple[NodeRun, ...]] = {}  # a later one may be too short to prove anything

    def see(self, job: Item, now_s: float) -> None:
        """Remember on which node the job's last failure was, if that may be the node's fault; or where it succeeded."""
        for run in node_runs_from_json(job):
            self._see_run(run, now_s)
        failure = node_failure_from_json(job)
        self._failure_by_uid.pop(job["metadata"]["uid"], None)
        if failure is None:
            self._ahead_by_uid.pop(job["metadata"]["uid"], None)
            return
        time_s = self._counts_from_s(failure, now_s)
        if now_s - time_s >= WINDOW_S:
            return
        self._failure_by_uid[failure.uid] = replace(failure, time_s=time_s)
        if len(self._failure_by_uid) > MOST:
            oldest = min(self._failure_by_uid.values(), key=lambda one: (one.time_s, one.uid))
            del self._failure_by_uid[oldest.uid]
            self._ahead_by_uid.pop(oldest.uid, None)

    def _counts_from_s(self, failure: NodeFailure, now_s: float) -> float:
        """One that an operator with a fast clock stamped happened when it is first seen, at the latest."""
        written_s, known = failure.time_s, self._ahead_by_uid.get(failure.uid)
        if known is not None and known[0] == written_s:
            return known[1]
        if written_s <= now_s:
            self._ahead_by_uid.pop(failure.uid, None)
            return written_s
        self._ahead_by_uid[failure.uid] = written_s, now_s
        return now_s

    def _see_run(self, run: NodeRun, now_s: float) -> None:
        """Nodes are kept in the order in which a run was seen last, so that the first are forgotten first."""
        known = self._runs_by_node.pop(run.node, ())
        kept = tuple(one for one in telling_runs(known, run) if now_s - one.ended_s < WINDOW_S)
        if kept:
            self._runs_by_node[run.node] = kept
        while self._runs_by_node:
            node = next(iter(self._runs_by_node))
            if any(now_s - one.ended_s < WINDOW_S for one in self._runs_by_node[node]):
                return
            del self._runs_by_node[node]

    def forget(self, uid: str) -> None:
        """Forget a job that is gone."""
        self._failure_by_uid.pop(uid, None)
        self._ahead_by_uid.pop(uid, None)

    def forget_all(self) -> None:
        """Forget every job: they are listed again."""
        self._failure_by_uid.clear()
        self._ahead_by_uid.clear()
        self._runs_by_node.clear()

    def all(self) -> Iterable[NodeFailure]:
        """Return every failure that is remembered."""
        return tuple(self._failure_by_uid.values())

    def runs(self) -> Iterable[NodeRun]:
        """Return of each node the runs that succeeded and may prove something. A deleted job's still count."""
        return tuple(run for runs in self._runs_by_node.values() for run in runs)


def node_failure_from_json(job: Item) -> NodeFailure | None:
    """Return the failure of a node's GPU that a job shows; None if it shows none, or its evidence names no cause."""
    failure = (job.get("status") or {}).get("failure") or {}
    node, failed_s, xid = failure.get("node"), seconds_from_time(failure.get("time")), failure.get("xid")
    is_blamed = failure.get("retry") == Retry.OTHER_NODE.value or _may_be_the_programs(xid)
    if not node or not failed_s or not is_blamed or not failure.get("explicit"):
        return None
    if not is_of_node(failure.get("reason", ""), xid):
        return None
    is_person, name = owner_from_json(job["metadata"])
    return NodeFailure(
        uid=job["metadata"]["uid"],
        owner=name if is_person else f"namespace {name}",
        node=node,
        reason=failure["reason"],
        time_s=failed_s,
        xid=xid,
    )


def node_runs_from_json(job: Item) -> tuple[NodeRun, ...]:
    """Return the nodes on which a job with GPUs ran when it succeeded; none if it did not.

    Nor if rank 0 ended the job before all ranks had ever started: some nodes have shown nothing."""
    spec, status = job.get("spec") or {}, job.get("status") or {}
    if status.get("phase") != Phase.SUCCEEDED.value or not spec.get("gpusPerReplica"):
        return ()
    if spec.get("successPolicy") == "RankZero" and not status.get("startTime"):
        return ()
    placement = status.get("placement") or {}
    try:
        began_s, ended_s = seconds_from_time(status.get("launchTime")), _ended_s(status)
    except InvalidInput:
        return ()
    if not began_s or placement.get("attempt") != status.get("attempt"):
        return ()
    nodes = sorted({str(node) for node in placement.get("nodes") or ()})
    return tuple(NodeRun(node=node, began_s=began_s, ended_s=ended_s) for node in nodes)


def _ended_s(status: Item) -> float:
    """When a job ended: its completion was perhaps seen long after, as its account says."""
    seen_s, account = seconds_from_time(status.get("completionTime")), status.get("delays") or {}
    if account.get("doing") != Doing.ENDED.value:
        return seen_s
    return min(seen_s, max(seconds_from_time(account.get("since")), seconds_from_time(status.get("launchTime"))))


def _may_be_the_programs(xid: int | None) -> bool:
    """Such a failure is tried again on any node, but three users of one node may show that it is the node's."""
    return xid is not None and kind_of(xid) is XidKind.PROGRAM
