"""Windows of GPU utilisation, each at a core count that does not change.

A window begins some time after the cores are as wished: earlier samples say nothing about them. The next core count is
the core's decision (`coda.allocator.tuning`)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace

from coda.allocator import Tuning, TuningConfig, TuningPhase, next_tuning
from coda.allocator.curve import reading_from_samples
from coda.allocator.tuning import TOO_FEW_SAMPLES, WindowResult
from coda_agent.cluster import TunedJob

Conditions = tuple[int, int, str, object]
"""Attempt, cores per rank, container, and search result. If one of them changes, the window begins again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningObservation:
    """What one round saw of the job's GPUs. `share` None: not measured, for the reason `why_not` if it is known.

    `at_s`: on the clock that never jumps; `wall_s`: since 1970. `may_step`: the job is surely as it was read, and the
    next step can be written. If not, no step is taken and the window stays open."""

    at_s: float
    wall_s: float
    container: str  # of rank 0; another one means a restart
    share: float | None
    why_not: str | None = None
    may_step: bool = True


@dataclass(slots=True)
class _Window:
    conditions: Conditions
    began_s: float
    samples: list[tuple[float, float]] = field(default_factory=list)


class Windows:
    """The windows of this node's jobs, by job uid. They are lost with the process, and begin again."""

    def __init__(self, config: TuningConfig, settle_s: float) -> None:
        self._config = config
        self._settle_s = settle_s
        self._by_job: dict[str, _Window] = {}

    def forget_all_except(self, job_uids: Collection[str]) -> None:
        """Keep only the windows of these jobs."""
        self._by_job = {uid: window for uid, window in self._by_job.items() if uid in job_uids}

    def step(self, job: TunedJob, seen: TuningObservation) -> Tuning | None:
        """Return the job's tuning after this round; equal to `job.tuning` if nothing has to be written."""
        measured = self._measured(job, seen)
        if not seen.may_step:
            return job.tuning
        tuning = next_tuning(job.tuning, job.tuning_input, measured, self._config, seen.wall_s)
        is_unseen = tuning.phase is TuningPhase.STOPPED or tuning.reason == TOO_FEW_SAMPLES
        if is_unseen and tuning != job.tuning and seen.why_not:
            return replace(tuning, reason="NotMeasured", message=seen.why_not)
        return tuning

    def _measured(self, job: TunedJob, seen: TuningObservation) -> WindowResult | None:
        """The result of a window that is long enough; it ends with the step that follows from it."""
        if job.tuning is None or job.tuning.phase is not TuningPhase.MEASURING:
            self._by_job.pop(job.uid, None)
            return None
        conditions = (job.tuning_input.attempt, job.tuning_input.cores, seen.container, job.tuning.found)
        window = self._by_job.get(job.uid)
        if window is None or window.conditions != conditions:
            self._by_job[job.uid] = _Window(conditions, seen.at_s + self._settle_s)
            return None
        if seen.share is not None and seen.at_s >= window.began_s:
            window.samples.append((seen.at_s - window.began_s, seen.share))
        if seen.at_s - window.began_s < self._config.tuning.window_s:
            return None
        return WindowResult(reading=reading_from_samples(window.samples, self._config.tuning))
