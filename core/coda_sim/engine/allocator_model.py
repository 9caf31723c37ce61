"""The adaptive CPU allocator inside a simulation: what is measured, and what a search wants next.

The start points and the search are the core's; here they meet jobs. What is wanted becomes a wish that the planner
answers. What must not live here: granting cores, and time.
A window's reading is the utilisation at its end, exact: nothing in a simulation is noise.
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

_TAUGHT: Final = frozenset(
    {SearchOutcome.FOUND, SearchOutcome.LIMITED}
)  # as in the operator: only a finished search teaches


class AllocatorModel:
    """All searches of one simulation, and what finished jobs taught."""

    def __init__(self, config: CoreSearchConfig, shape: ClusterShape) -> None:
        self._config = config
        self._shape = shape
        self._ceiling_by_ranks: dict[tuple[int, int], int] = {}
        self._experience: Experience = NO_EXPERIENCE
        self._search_by_run: dict[int, CoreSearch] = {}
        self._answered: dict[int, SearchResult] = {}

    def proposed_cores(self, gang: Gang, profile: ModelProfile) -> int:
        """Cores per rank to begin with: from the owner's finished jobs, else from category and hints."""
        gpus, ceiling_cores = gang.gpus_per_replica, self._ceiling_cores(gang)
        known = experienced_cores(self._experience, gang.row.user, profile.category, gpus, ceiling_cores)
        if known is not None:
            return known
        return start_cores(profile.category, profile.hints, gpus, ceiling_cores)

    def begin(self, run: JobRun, most_cores: int) -> bool:
        """The job runs: the cores it has are measured first; False where a search of it came to its end before.
        `most_cores`: per rank, what its nodes have."""
        answer = self._answered.get(id(run))
        if answer is not None and answer.outcome is not SearchOutcome.ABANDONED:
            return False
        self._search_by_run[id(run)] = begin_search(run.cores, run.gang.gpus_per_replica, CoreLimits(most=most_cores))
        return True

    def is_searching(self, run: JobRun) -> bool:
        """Whether another window is to be measured."""
        return id(run) in self._search_by_run

    def measured(self, run: JobRun, most_cores: int) -> int:
        """One window is over: the cores per rank that are wanted now. `most_cores` as for `begin`."""
        reading = WindowReading(share=min(1.0, run.busy_gpus / run.gpus))
        step = next_search(self._search_by_run[id(run)], reading, CoreLimits(most=most_cores), self._config)
        return self._go_on(run, step)

    def refused(self, run: JobRun, most_cores: int) -> int:
        """What was wanted cannot be had, but so much: the cores per rank that are wanted instead."""
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

    def stopped(self, run: JobRun) -> int:
        """The job's nodes were taken away: what it found so far is what it begins with again, cores per rank."""
        search = self._search_by_run.get(id(run))
        return run.cores if search is None else self._answer(run, abandon(search))

    def ended(self, run: JobRun, profile: ModelProfile) -> int:
        """The job is over: later ones learn what its search found. Returns the windows that were measured."""
        self.stopped(run)
        answer = self._answered.pop(id(run), None)
        if answer is None:
            return 0
        if answer.outcome in _TAUGHT:
            tuned = Tuned(
                owner=run.gang.row.user,
                category=profile.category,
                gpus_per_replica=run.gang.gpus_per_replica,
                cores_per_replica=answer.cores,
            )
            self._experience = experience_with(self._experience, tuned)
        return answer.windows

    def _ceiling_cores(self, gang: Gang) -> int:
        """The most cores per rank with which the empty cluster holds the gang; asked cores always are."""
        key = (gang.gpus_per_replica, gang.replicas)
        if key not in self._ceiling_by_ranks:
            most = max(group.cores for group in self._shape.groups)
            fits = (cores for cores in range(most, 0, -1) if self._shape.holds(key[0], cores) >= gang.replicas)
            self._ceiling_by_ranks[key] = next(fits, 1)
        return self._ceiling_by_ranks[key]

    def _answer(self, run: JobRun, answer: SearchResult) -> int:
        del self._search_by_run[id(run)]
        self._answered[id(run)] = answer
        return answer.cores
