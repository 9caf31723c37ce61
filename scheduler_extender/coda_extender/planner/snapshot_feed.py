"""What the planner process must be told so that its copy of the cluster is as the caches are now.

The cost is that of the changes: nodes, their use, jobs and all quotas have logs of changes. What is in flight,
held back, leaving or evicted lately is small, and is compared with what was told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from coda.cycle import Part
from coda.model import Job, JobId, Resources
from coda_extender.guard.in_flight import InFlightPods
from coda_extender.planner_process import Values, values_in_messages
from coda_kube.cluster_state import ClusterState

_LOGGED: Final = (Part.NODES, Part.USED, Part.JOBS, Part.QUOTAS, Part.TENANTS, Part.ARRAYS)


class SnapshotFeed:
    """Knows what one planner process was told. A new process needs a new feed.

    `job_by_id`: the unfinished jobs as it knows them."""

    def __init__(
        self,
        state: ClusterState,
        in_flight: InFlightPods,
        held_back: Callable[[], Mapping[str, Resources]],
        reclaimed_s: Callable[[], Mapping[str, float]] = dict,
    ) -> None:
        self.job_by_id: dict[JobId, Job] = {}
        self._state = state
        self._in_flight = in_flight
        self._held_back = held_back
        self._reclaimed_s = reclaimed_s
        self._places: dict[Part, int] = {}  # in the logs of changes
        self._told: dict[Part, dict[str, Any]] = {}

    def changes(self) -> Iterator[Values]:
        """Return what changed since the last call, all as of this call, in messages of bounded size."""
        state = self._state
        state.read_outdated_ranks()
        state.tenants.note_losses()
        found: list[tuple[Part, Sequence[tuple[str, Any]], bool]] = [self._logged(part) for part in _LOGGED]
        found.append((Part.HELD_BACK, self._compared(Part.HELD_BACK, dict(self._held_back())), False))
        found.append((Part.LEAVING, self._compared(Part.LEAVING, state.leaving()), False))
        found.append((Part.GPUS, self._compared(Part.GPUS, state.gpus.uses()), False))
        pods = {pod.uid: pod for pod in self._in_flight.pods()}
        found.append((Part.FOREIGN, self._compared(Part.FOREIGN, pods), False))
        found.append((Part.RECLAIMED, self._compared(Part.RECLAIMED, dict(self._reclaimed_s())), False))
        return _messages(found)

    def _logged(self, part: Part) -> tuple[Part, Sequence[tuple[str, Any]], bool]:
        state, log, place = self._state, self._state.changes[part], self._places.get(part)
        keys = None if place is None else log.since(place)
        self._places[part] = log.end
        is_whole = keys is None
        items = state.items(part) if keys is None else [(key, state.value(part, key)) for key in dict.fromkeys(keys)]
        if part is Part.JOBS:
            self._keep_jobs(items, is_whole=is_whole)
        return part, items, is_whole

    def _keep_jobs(self, items: Sequence[tuple[str, Any]], *, is_whole: bool) -> None:
        if is_whole:
            self.job_by_id = {}
        for key, job in items:
            if job is None:
                self.job_by_id.pop(JobId(key), None)
            else:
                self.job_by_id[JobId(key)] = job

    def _compared(self, part: Part, now: dict[str, Any]) -> list[tuple[str, Any]]:
        told = self._told.get(part, {})
        self._told[part] = now
        known = told.get
        items: list[tuple[str, Any]] = [
            (key, value) for key, value in now.items() if (before := known(key)) is not value and before != value
        ]
        return items + [(key, None) for key in told if key not in now]


def _messages(found: list[tuple[Part, Sequence[tuple[str, Any]], bool]]) -> Iterator[Values]:
    for part, items, is_whole in found:
        yield from values_in_messages(part, items, is_whole=is_whole)
