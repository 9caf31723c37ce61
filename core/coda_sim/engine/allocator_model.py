"""The adaptive CPU allocator inside a simulation: what is measured, and which cores a search wants next.

Start points and search are the core's. A wanted count becomes a wish, which the planner answers. The reading of a
window is the utilisation at its end, exact unless the simulation asks for noise.
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
from coda.allocator.start_point import Experience, Tuned, add_experience, experienced_cores, start_cores
from coda_sim.engine.job_run import JobRun
from coda_sim.workload.cluster_shape import ClusterShape
from coda_sim.workload.gangs import Gang
from coda_sim.workload.inaccuracy import EXACT, Inaccuracy
from coda_sim.workload.model_profiles import ModelProfile

_KEPT_STEPS: Final = 100_000
"""Steps of searches that are kept. Our choice: the month takes far fewer, and this many take some 100 MB."""

_ADDS_EXPERIENCE: Final = frozenset({SearchOutcome.FOUND, SearchOutcome.LIMITED})  # finished searches, as the operator

_WINDOWS_OF_AN_ATTEMPT: Final = 1000  # more than any search measures: each window of a job has a number of its own


class AllocatorModel:
    """All searches of one simulation, and the experience from finished jobs."""

    def __init__(self, config: CoreSearchConfig, shape: ClusterShape, inaccuracy: Inaccuracy = EXACT) -> None:
        self._config = config
        self._inaccuracy = inaccuracy
        self._shape = shape
        self._ceiling_by_ranks: dict[tuple[int, int], int] = {}
        self._experience: Experience = {}
        self._begun: dict[tuple[int, int, int], CoreSearch] = {}  # by cores, GPUs per rank and limit
        # By the identity of a search, what was measured and the limit: that search, and what it wants next.
        self._steps: dict[tuple[int, float, int], tuple[CoreSearch, CoreSearch | SearchResult]] = {}
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
        key = (run.cores, run.gang.gpus_per_replica, most_cores)
        search = self._begun.get(key)
        if search is None:
            search = self._begun[key] = begin_search(run.cores, run.gang.gpus_per_replica, CoreLimits(most=most_cores))
        self._search_by_run[id(run)] = search
        return True

    def is_searching(self, run: JobRun) -> bool:
        """True if another window must be measured."""
        return id(run) in self._search_by_run

    def after_window(self, run: JobRun, most_cores: int) -> int:
        """Return the cores per rank that are wanted after a window. `most_cores` as for `begin`."""
        search = self._search_by_run[id(run)]
        window = run.attempt * _WINDOWS_OF_AN_ATTEMPT + sum(point.windows for point in search.curve)
        share, variance = self._inaccuracy.reading(min(1.0, run.busy_gpus / run.gpus), run.gang.row.job_id, window)
        return self._go_on(run, self._next_step(search, WindowReading(share=share, variance=variance), most_cores))

    def _next_step(self, search: CoreSearch, reading: WindowReading, most_cores: int) -> CoreSearch | SearchResult:
        """Return `next_search`. Of exact readings it is found once: many jobs train the same model on as many cores."""
        limits = CoreLimits(most=most_cores)
        if reading.variance:
            return next_search(search, reading, limits, self._config)
        key = (id(search), reading.share, most_cores)
        found = self._steps.get(key)
        if found is not None:
            return found[1]
        step = next_search(search, reading, limits, self._config)
        if len(self._steps) >= _KEPT_STEPS:
            self._steps.clear()
        self._steps[key] = (search, step)
        return step

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
        if answer.outcome in _ADDS_EXPERIENCE and not self._inaccuracy.forgets:
            tuned = Tuned(
                owner=run.gang.row.user,
                category=profile.category,
                gpus_per_replica=run.gang.gpus_per_replica,
                cores_per_replica=answer.cores,
            )
            add_experience(self._experience, tuned)
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
