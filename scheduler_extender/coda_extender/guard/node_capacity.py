"""What the guard must know of each node before it is asked: its room and its score, kept up to date change by change.

A filter request may name 5000 nodes; nothing here is computed per request but for what changed since the last one,
which is little: beyond a hundred changes they are taken over without a request. Decides nothing.
"""

from __future__ import annotations

from typing import Final

from coda.model.capacity import withheld_shares
from coda.model.job import Job, JobId
from coda.model.resources import NOTHING, Resources
from coda.placements.guard import MAX_SCORE, foreign_score
from coda_extender.guard.capacity_index import CapacityIndex
from coda_kube.cluster_state import ClusterState

_MOST_OPEN: Final = 100  # taking over a change takes about 10 us: a request waits a millisecond at most


class NodeCapacity:
    """Per node its room, allocatable - used - withheld, and its score; `withheld_from`: the rooms beside plans, also on
    nodes that are not known, which have nothing; `best_nodes`: those of the best score; `shortages`: which rooms are
    too small for a request.

    They are as of the last `catch_up`."""

    def __init__(self, state: ClusterState) -> None:
        self.room_by_node: dict[str, Resources] = {}
        self.withheld_from: dict[str, Resources] = {}
        self.score_by_node: dict[str, int] = {}
        self.best_nodes: set[str] = set()
        self.shortages = CapacityIndex()
        self._state = state
        self._withheld_by_node: dict[str, Resources] = {}
        self._shares_by_job: dict[JobId, dict[str, Resources]] = {}
        self._seen_by_job: dict[JobId, Job] = {}
        self._open_jobs: set[JobId] = set()
        self._open_nodes: set[str] = set()

    def job_changed(self, job: JobId) -> None:
        """A job or one of its pods came, changed or went."""
        self._open_jobs.add(job)
        self._bound_what_is_open()

    def node_changed(self, name: str) -> None:
        """A node, or a pod on it, came, changed or went."""
        self._open_nodes.add(name)
        self._bound_what_is_open()

    def catch_up(self) -> None:
        """Take over every change so far."""
        while self._open_jobs:
            self._take_job(self._open_jobs.pop())
        while self._open_nodes:
            self._take_node(self._open_nodes.pop())

    def _bound_what_is_open(self) -> None:
        if len(self._open_jobs) + len(self._open_nodes) > _MOST_OPEN:
            self.catch_up()

    def _take_job(self, job_id: JobId) -> None:
        job, seen = self._state.job(job_id), self._seen_by_job.get(job_id)
        if job is None:
            self._seen_by_job.pop(job_id, None)
        else:
            if seen is not None and _withholds_alike(seen, job):
                return
            self._seen_by_job[job_id] = job
        before = self._shares_by_job.pop(job_id, {})
        after = withheld_shares(job) if job is not None else {}
        if after:
            self._shares_by_job[job_id] = after
        for node in before.keys() | after.keys():
            if before.get(node) == after.get(node):
                continue
            held = self._withheld_by_node.pop(node, NOTHING) - before.get(node, NOTHING) + after.get(node, NOTHING)
            if held.pods or held.gpus or held.cpu_m or held.memory_bytes or any(held.other.values()):
                self._withheld_by_node[node] = held
            self._open_nodes.add(node)

    def _take_node(self, name: str) -> None:
        node = self._state.node(name)
        held = self._withheld_by_node.get(name)
        if node is None:
            self._score(name, None)
            self.room_by_node.pop(name, None)
            self.withheld_from.pop(name, None)
            if held is not None:  # a plan on a node that is not known: nothing of it may be taken
                self.room_by_node[name] = self.withheld_from[name] = NOTHING - held
            self.shortages.put(name, self.room_by_node.get(name))
            return
        room = node.allocatable - self._state.used(name)
        if held is None:
            self.withheld_from.pop(name, None)
        else:
            room = self.withheld_from[name] = room - held
        self.room_by_node[name] = room
        self.shortages.put(name, room)
        self._score(name, foreign_score(room.gpus))

    def _score(self, name: str, score: int | None) -> None:
        if score is None:
            self.score_by_node.pop(name, None)
        else:
            self.score_by_node[name] = score
        if score == MAX_SCORE:
            self.best_nodes.add(name)
        else:
            self.best_nodes.discard(name)


def _withholds_alike(one: Job, two: Job) -> bool:
    return (
        one.placement == two.placement
        and one.phase is two.phase
        and one.attempt == two.attempt
        and one.generation == two.generation
        and one.bound == two.bound
        and one.unbound == two.unbound
        and one.request == two.request
        and one.cpus_per_replica == two.cpus_per_replica
        and one.resized == two.resized
        and one.pod_cpu_m == two.pod_cpu_m
    )
