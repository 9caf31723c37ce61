"""Ranks that passed the filter and are not bound yet. kube-scheduler may bind them whatever becomes of their job.

The placement withholds what they will take. Once it does not any more (the job failed, is suspended, was edited), they
are in flight like foreign pods, until they are bound or gone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from coda.model import JobId
from coda.placements import InFlight
from coda_extender.guard.in_flight import Clock, InFlightPods
from coda_kube.objects.json_types import Json
from coda_kube.objects.read import Pod


@dataclass(frozen=True, slots=True, kw_only=True)
class PassedRank:
    """A rank, the node it may take, and its resourceVersion when it was filtered."""

    pod: Pod
    node: str
    version: int

    @property
    def in_flight(self) -> InFlight:
        """The rank as a pod in flight to its node."""
        return InFlight(uid=self.pod.uid, request=self.pod.request, nodes=(self.node,))


class PassedRanks:
    """They are forgotten once they are bound, ended, gone or given up, and after a limit."""

    def __init__(self, clock: Clock) -> None:
        self._open = InFlightPods(clock, on_settled=lambda: None)
        self._ranks_by_job: dict[JobId, dict[str, PassedRank]] = {}

    def add(self, rank: PassedRank, job: JobId, *, limit_s: float) -> None:
        """It passed the filter now."""
        self._open.add(rank.in_flight, version=rank.version, limit_s=limit_s)
        self._ranks_by_job.setdefault(job, {})[rank.pod.uid] = rank

    def observe(self, before: Pod | None, after: Pod | None, old: Json | None, new: Json | None) -> None:
        """Its pod came, changed or went."""
        self._open.observe(before, after, old, new)

    def take_unplanned(self, job: JobId, is_planned: Callable[[PassedRank], bool]) -> list[PassedRank]:
        """Hand over the ranks of this job that its placement does not count any more."""
        ranks = self._ranks_by_job.pop(job, None)
        if ranks is None:
            return []
        still_open = {pod.uid for pod in self._open.pods()}
        left = {uid: rank for uid, rank in ranks.items() if uid in still_open}
        unplanned = [rank for rank in left.values() if not is_planned(rank)]
        for rank in unplanned:
            self._open.settle(rank.pod.uid)
            del left[rank.pod.uid]
        if left:
            self._ranks_by_job[job] = left
        return unplanned

    def clear(self) -> None:
        """Forget all ranks."""
        self._open.clear()
        self._ranks_by_job.clear()
