"""What the guard must know of each node before it is asked: its free capacity and its score.

A filter request may name 5000 nodes. So both are updated when a node changes, not when a request comes. A request only
takes over the last few changes; a hundred of them are taken over without a request.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from coda.model import NOTHING, Job, JobId, Resources
from coda.model.capacity import withheld_shares
from coda.placements.filter_rules import MAX_SCORE, foreign_score, without_ports
from coda_extender.guard.capacity_index import CapacityIndex
from coda_extender.guard.cluster_use import ClusterUse
from coda_kube.cluster_state import ClusterState

_MOST_CHANGES: Final = 100  # taking one over takes about 10 us: a request waits a millisecond at most
_ANY_GPUS: Final = 2**40
"""Free on a node that lists no GPUs. A pod may get some there by a DRA driver (`extendedResourceName`), and only
kube-scheduler knows how many are left."""


class NodeCapacity:
    """Capacity and scores of nodes as of the last `catch_up`.

    `free_by_node`: allocatable - used - withheld. A node that is not known has nothing, less what is withheld there.
    GPUs are not judged where a node lists none. `room_by_node`: the same, but of host ports only those withheld.
    `withholding_nodes`: the nodes where placements withhold capacity. `best_nodes`: those with the best score.
    `use`: the sums over all nodes."""

    def __init__(self, state: ClusterState) -> None:
        self.free_by_node: dict[str, Resources] = {}
        self.room_by_node: dict[str, Resources] = {}
        self.withholding_nodes: set[str] = set()
        self.score_by_node: dict[str, int] = {}
        self.best_nodes: set[str] = set()
        self.index = CapacityIndex()  # of `room_by_node`
        self.use = ClusterUse()
        self._state = state
        self._withheld_by_node: dict[str, Resources] = {}
        self._shares_by_job: dict[JobId, dict[str, Resources]] = {}
        self._seen_by_job: dict[JobId, Job] = {}
        self._changed_jobs: set[JobId] = set()
        self._changed_nodes: set[str] = set()

    def job_changed(self, job: JobId) -> None:
        """A job or one of its pods came, changed or went."""
        self._changed_jobs.add(job)
        self._limit_changes()

    def node_changed(self, name: str) -> None:
        """A node, or a pod on it, came, changed or went."""
        self._changed_nodes.add(name)
        self._limit_changes()

    def catch_up(self) -> None:
        """Take over every change so far."""
        while self._changed_jobs:
            self._update_job(self._changed_jobs.pop())
        while self._changed_nodes:
            self._update_node(self._changed_nodes.pop())

    def _limit_changes(self) -> None:
        if len(self._changed_jobs) + len(self._changed_nodes) > _MOST_CHANGES:
            self.catch_up()

    def _update_job(self, job_id: JobId) -> None:
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
            withheld = self._withheld_by_node.pop(node, NOTHING) - before.get(node, NOTHING) + after.get(node, NOTHING)
            if _is_nonzero(withheld):
                self._withheld_by_node[node] = withheld
            self._changed_nodes.add(node)

    def _update_node(self, name: str) -> None:
        node = self._state.node(name)
        withheld = self._withheld_by_node.get(name)
        if withheld is None:
            self.withholding_nodes.discard(name)
        else:
            self.withholding_nodes.add(name)
        if node is not None:
            missing = self._state.short_nodes.missing_by_name.get(name, NOTHING)
            free = node.allocatable - missing - self._state.use.of(name)
            free = free if withheld is None else free - withheld
            self._set_score(name, foreign_score(free.gpus))
            if not node.allocatable.gpus and not (withheld is not None and withheld.gpus):
                free = replace(free, gpus=_ANY_GPUS)
            self.free_by_node[name] = free
        else:
            self._set_score(name, None)
            self.free_by_node.pop(name, None)
            if withheld is not None:  # a placement on a node that is not known: nothing of it may be taken
                self.free_by_node[name] = NOTHING - withheld
        self._set_room(name, self.free_by_node.get(name), withheld)
        self.use.set_node(name, node, self.free_by_node.get(name, NOTHING))

    def _set_room(self, name: str, free: Resources | None, withheld: Resources | None) -> None:
        if free is None:
            self.room_by_node.pop(name, None)
        else:
            room = without_ports(free)
            if withheld is not None and withheld is not (others := without_ports(withheld)):
                room = room - (withheld - others)
            free = self.room_by_node[name] = room
        self.index.set_free(name, free)

    def _set_score(self, name: str, score: int | None) -> None:
        if score is None:
            self.score_by_node.pop(name, None)
        else:
            self.score_by_node[name] = score
        if score == MAX_SCORE:
            self.best_nodes.add(name)
        else:
            self.best_nodes.discard(name)


def _is_nonzero(amount: Resources) -> bool:
    return bool(amount.pods or amount.gpus or amount.cpu_m or amount.memory_bytes or any(amount.other.values()))


def _withholds_alike(one: Job, two: Job) -> bool:
    return (
        one.placement == two.placement
        and one.phase is two.phase
        and one.attempt == two.attempt
        and one.generation == two.generation
        and one.bound == two.bound
        and one.unbound == two.unbound
        and one.gone == two.gone
        and one.request == two.request
        and one.cpus_per_replica == two.cpus_per_replica
        and one.resized == two.resized
        and one.held_cores == two.held_cores
        and one.pod_cpu_m == two.pod_cpu_m
    )
