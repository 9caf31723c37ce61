"""The adaptive CPU allocator inside a simulation: what is measured, and which cores a search wants next.

Start points and search are the core's. A wanted count becomes a wish, which the planner answers. The reading of a
window is the exact utilisation at its end: a simulation has no noise.
"""

from __future__ import annotations

from typing import Final

from coda.allocator.config import CoreSearchConfig
from coda.allocator.core_search import (
    CoreLimits,
    CoreSearch,
    SearchOutcome,
    SearchResult,
    abandon,
    begin_search,
    next_search,
    refuse,
)
from coda.allocator.curve import WindowReading
from coda.allocator.start_point import NO_EXPERIENCE, Experience, Tuned, experience_with, experienced_cores, start_cores
from coda_sim.engine.job_run import JobRun
from coda_sim.workload.cluster_shape import ClusterShape
from coda_sim.workload.gangs import Gang
from coda_sim.workload.model_profiles import ModelProfile

_ADDS_EXPERIENCE: Final = frozenset({SearchOutcome.FOUND, SearchOutcome.LIMITED})  # finished searches, as the operator


class AllocatorModel:
    """All searches of one simulation, and the experience from finished jobs."""

    def __init__(self, config: CoreSearchConfig, shape: ClusterShape) -> None:
        self._config = config
        self._shape = shape
        self._ceiling_by_ranks: dict[tuple[int, int], int] = {}
        self._experience: Experience = NO_EXPERIENCE
        self._search_by_run: dict[int, CoreSearch] = {}
        self._answered: dict[int, SearchResult] = {}

    def proposed_cores(self, gang: Gang, profile: ModelProfile) -> int:
        """Return the cores per rank to start with: from the owner's finished jobs, else from category and hints."""
        gpus, ceiling_cores = gang.gpus_per_replica, self._ceiling_cores(gang)
        known = experienced_cores(self._experience, gang.row.user, profile.category, gpus, ceiling_cores)
        if known is not None:
            return known
        return start_cores(profile.category, profile.hints, gpus, ceiling_cores)

    def begin(self, run: JobRun, most_cores: int) -> bool:
        """Begin the search of a running job at the cores it has; False if an earlier search of it has ended.

        `most_cores`: per rank, what its nodes have."""
        answer = self._answered.get(id(run))
        if answer is not None and answer.outcome is not SearchOutcome.ABANDONED:
            return False
        self._search_by_run[id(run)] = begin_search(run.cores, run.gang.gpus_per_replica, CoreLimits(most=most_cores))
        return True

    def is_searching(self, run: JobRun) -> bool:
        """True if another window must be measured."""
        return id(run) in self._search_by_run

    def after_window(self, run: JobRun, most_cores: int) -> int:
        """Return the cores per rank that are wanted after a window. `most_cores` as for `begin`."""
        reading = WindowReading(share=min(1.0, run.busy_gpus / run.gpus))
        step = next_search(self._search_by_run[id(run)], reading, CoreLimits(most=most_cores), self._config)
        return self._go_on(run, step)

    def after_denial(self, run: JobRun, most_cores: int) -> int:
        """Return the cores per rank that are wanted instead, if no more than `most_cores` are available."""
        search = self._search_by_run.get(id(run))
        if search is None:
            return most_cores
        limits = CoreLimits(most=most_cores)
        step = refuse(search, limits, self._config)
        while isinstance(step, CoreSearch) and step.trying > most_cores:
            step = refuse(step, limits, self._config)
        return min(most_cores, self._go_on(run, step))

    def _go_on(self, run: JobRun, step: CoreSearch | SearchResult) -> int:
        if isinstance(step, SearchResult):
            return self._answer(run, step)
        self._search_by_run[id(run)] = step
        return step.trying

    def end_attempt(self, run: JobRun) -> int:
        """End the search of a job that was stopped; return the cores per rank with which its next attempt starts."""
        search = self._search_by_run.get(id(run))
        return run.cores if search is None else self._answer(run, abandon(search))

    def end_job(self, run: JobRun, profile: ModelProfile) -> int:
        """Add what the search of a finished job found to the experience; return the number of measured windows."""
        self.end_attempt(run)
        answer = self._answered.pop(id(run), None)
        if answer is None:
            return 0
        if answer.outcome in _ADDS_EXPERIENCE:
            tuned = Tuned(
                owner=run.gang.row.user,
                category=profile.category,
                gpus_per_replica=run.gang.gpus_per_replica,
                cores_per_replica=answer.cores,
            )
            self._experience = experience_with(self._experience, tuned)
        return answer.windows

    def _ceiling_cores(self, gang: Gang) -> int:
        """The most cores per rank with which the empty cluster holds the gang, at least 1."""
        key = (gang.gpus_per_replica, gang.replicas)
        if key not in self._ceiling_by_ranks:
            most = max(group.cores for group in self._shape.groups)
            fits = (cores for cores in range(most, 0, -1) if self._shape.ranks(key[0], cores) >= gang.replicas)
            self._ceiling_by_ranks[key] = next(fits, 1)
        return self._ceiling_by_ranks[key]

    def _answer(self, run: JobRun, answer: SearchResult) -> int:
        del self._search_by_run[id(run)]
        self._answered[id(run)] = answer
        return answer.cores
