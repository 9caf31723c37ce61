"""A second copy of what a cycle sees, kept by changes: a planner in a process of its own decides on it.

What did not change stays the same object from one snapshot to the next. The caches of the core find changes that way.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum, auto
from typing import Any

from coda.cycle.planner_cycle import CycleSnapshot
from coda.model.job import Job, JobId
from coda.model.world import Node, World
from coda.snapshots import VersionedMap


class Part(Enum):
    """The parts of a snapshot; each has values by key."""

    NODES = auto()  # by name
    USED = auto()  # by name of the node
    HELD_BACK = auto()  # `world.in_flight` of the snapshot, by name of the node
    LEAVING = auto()  # by name of the node
    JOBS = auto()  # by id
    QUOTAS = auto()  # by namespace/name
    TENANTS = auto()  # virtual clusters, by name
    ARRAYS = auto()  # array quotas, by name
    FOREIGN = auto()  # pods in flight, by uid
    GPUS = auto()  # who has which GPU whole, by name of the node
    RECLAIMED = auto()  # when CPU jobs were evicted lately, by uid


class SnapshotReplica:
    """Starts empty. With all changes of a snapshot set, it gives an equal one."""

    def __init__(self) -> None:
        self._values: dict[Part, dict[str, Any]] = {part: {} for part in Part}
        self._jobs: VersionedMap[JobId, Job] = VersionedMap()
        self._nodes: tuple[Node, ...] | None = ()  # None: not known since the last change

    def clear(self, part: Part) -> None:
        """Forget all values of a part."""
        if part is Part.JOBS:
            self._jobs = VersionedMap()
        else:
            self._values[part] = {}
        self._nodes = None

    def change(self, part: Part, items: Iterable[tuple[str, Any]]) -> None:
        """Set these values of a part by key; None removes one. Cost: O(items)."""
        if part is Part.JOBS:
            for key, job in items:
                self._set_job(JobId(key), job)
            return
        values = self._values[part] = self._values[part].copy() if part is not Part.NODES else self._values[part]
        for key, value in items:
            if value is None:
                values.pop(key, None)
            elif values.get(key) != value:  # one that changed and changed back stays the same object
                values[key] = value
        if part is Part.NODES:
            self._nodes = None

    def snapshot(self, *, epoch: int, now_s: float) -> CycleSnapshot:
        """Return what a cycle sees now. It shares every value that did not change with the one before."""
        values = self._values
        if self._nodes is None:
            self._nodes = tuple(values[Part.NODES].values())
        world = World(
            nodes=self._nodes,
            used=values[Part.USED],
            in_flight=values[Part.HELD_BACK],
            leaving=values[Part.LEAVING],
            jobs=self._jobs.roster(),
            quotas=tuple(values[Part.QUOTAS].values()),
            virtual_clusters=tuple(values[Part.TENANTS].values()),
            array_quotas=tuple(values[Part.ARRAYS].values()),
            reclaimed=values[Part.RECLAIMED],
            gpu_uses=values[Part.GPUS],
        )
        return CycleSnapshot(world=world, foreign=tuple(values[Part.FOREIGN].values()), epoch=epoch, now_s=now_s)

    def _set_job(self, job_id: JobId, job: Job | None) -> None:
        if job is not None:
            if self._jobs.get(job_id) != job:
                self._jobs.put(job_id, job)
        elif job_id in self._jobs:
            self._jobs.drop(job_id)
