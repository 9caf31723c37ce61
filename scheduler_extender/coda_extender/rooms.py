"""What the guard must know of each node before it is asked: its room and its score, kept up to date change by change.

A filter request may name 5000 nodes; nothing here is computed per request. Decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

from coda.guarding import foreign_score
from coda.model import NOTHING, Job, JobId, Resources
from coda.world import withheld_ranks
from coda_kube.state import ClusterState


class Rooms:
    """Per node its room, allocatable - used - withheld, and its score; `withheld_from`: the rooms beside plans."""

    def __init__(self, state: ClusterState) -> None:
        self.room_by_node: dict[str, Resources] = {}
        self.withheld_from: dict[str, Resources] = {}
        self.score_by_node: dict[str, int] = {}
        self._state = state
        self._withheld_by_node: dict[str, Resources] = {}
        self._shares_by_job: dict[JobId, dict[str, Resources]] = {}
        self._seen_by_job: dict[JobId, Job] = {}

    def job_changed(self, job_id: JobId) -> None:
        """Take over what the job's plan withholds now."""
        job, seen = self._state.job(job_id), self._seen_by_job.get(job_id)
        if job is None:
            self._seen_by_job.pop(job_id, None)
        else:
            if seen is not None and _withholds_alike(seen, job):
                return
            self._seen_by_job[job_id] = job
        before = self._shares_by_job.pop(job_id, {})
        after = _shares(job)
        if after:
            self._shares_by_job[job_id] = after
        for node in before.keys() | after.keys():
            if before.get(node) == after.get(node):
                continue
            held = self._withheld_by_node.pop(node, NOTHING) - before.get(node, NOTHING) + after.get(node, NOTHING)
            if held.pods or held.gpus or held.cpu_m or held.memory_bytes or any(held.other.values()):
                self._withheld_by_node[node] = held
            self.node_changed(node)

    def nodes_changed(self, names: Iterable[str | None]) -> None:
        """Look at these nodes again: a pod came or went."""
        for name in names:
            if name is not None:
                self.node_changed(name)

    def node_changed(self, name: str) -> None:
        """Look at this node again."""
        node = self._state.node(name)
        held = self._withheld_by_node.get(name)
        if node is None:
            self.score_by_node.pop(name, None)
            self.room_by_node.pop(name, None)
            self.withheld_from.pop(name, None)
            if held is not None:  # a plan on a node that is not known: nothing of it may be taken
                self.withheld_from[name] = NOTHING - held
            return
        room = node.allocatable - self._state.used(name)
        if held is None:
            self.withheld_from.pop(name, None)
        else:
            room = self.withheld_from[name] = room - held
        self.room_by_node[name] = room
        self.score_by_node[name] = foreign_score(room.gpus)


def _withholds_alike(one: Job, two: Job) -> bool:
    return (
        one.placement == two.placement
        and one.phase is two.phase
        and one.attempt == two.attempt
        and one.generation == two.generation
        and one.bound == two.bound
        and one.unbound == two.unbound
        and one.request == two.request
    )


def _shares(job: Job | None) -> dict[str, Resources]:
    if job is None:
        return {}
    ranks_by_node: dict[str, int] = {}
    for _, node in withheld_ranks(job):
        ranks_by_node[node] = ranks_by_node.get(node, 0) + 1
    return {node: job.request * ranks for node, ranks in ranks_by_node.items()}
