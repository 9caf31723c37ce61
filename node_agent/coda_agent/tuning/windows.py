"""Windows of GPU utilisation, each at a core count that does not change.

A window begins some time after the cores are as wished: earlier samples say nothing about them. The next core count is
the core's decision (`coda.allocator.tuning`)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace

from coda.allocator import Tuning, TuningConfig, TuningPhase, next_tuning
from coda.allocator.ranks import result_of_job
from coda.allocator.tuning import TOO_FEW_SAMPLES
from coda.allocator.window_samples import Look, WindowResult, is_at_limit, result_of_window
from coda_agent.cluster import TunedJob

Conditions = tuple[int, int, str]
"""Attempt, cores per rank, and container. If one of them changes, the next window waits until that has settled."""

_MEASURED = frozenset({TuningPhase.MEASURING, TuningPhase.TUNED, TuningPhase.STOPPED})
"""A tuned job is watched, and one that fell silent may work again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningObservation:
    """What one round saw of the job's GPUs. `share` None: not measured, for the reason `why_not` if it is known.

    `at_s`: on the clock that never jumps; `wall_s`: since 1970. `may_step`: the job is surely as it was read, and the
    next step can be written. If not, no step is taken and the window stays open."""

    at_s: float
    wall_s: float
    container: str  # of rank 0; another one means a restart
    share: float | None
    cpu_cores: float | None = None  # that the pod used; None: not measured
    throttled_share: float = 0.0  # of its CPU periods
    why_not: str | None = None
    may_step: bool = True


@dataclass(slots=True)
class _Window:
    """`of`: the tuning that it was begun for. `changed`: the cores changed before it."""

    conditions: Conditions
    of: object
    began_s: float
    changed: bool
    looks: list[Look] = field(default_factory=list)


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
        if measured is not None and tuning == job.tuning:  # nothing to write, so nothing else would end the window
            self._begin(job, seen)
        is_unseen = tuning.phase is TuningPhase.STOPPED or tuning.reason == TOO_FEW_SAMPLES
        if is_unseen and tuning != job.tuning and seen.why_not:
            return replace(tuning, reason="NotMeasured", message=seen.why_not)
        return tuning

    def _measured(self, job: TunedJob, seen: TuningObservation) -> WindowResult | None:
        """The result of a window that is long enough; it ends with the step that follows from it."""
        if job.tuning is None or job.tuning.phase not in _MEASURED:
            self._by_job.pop(job.uid, None)
            return None
        window = self._by_job.get(job.uid)
        if window is None or window.conditions != _conditions(job, seen) or window.of != _measured_for(job):
            self._begin(job, seen)
            return None
        is_over = seen.at_s - window.began_s > self._config.tuning.window_s  # and the step cannot be taken yet
        if seen.share is not None and seen.at_s >= window.began_s and not is_over:
            window.looks.append(_look(seen, window.began_s, job.tuning_input.cores))
        if seen.at_s - window.began_s < self._config.tuning.window_s:
            return None
        rank = result_of_window(window.looks, self._config.tuning, changed=window.changed)
        at = job.tuning_input
        return result_of_job([rank], at.gpus * at.ranks, at.most_cores)

    def _begin(self, job: TunedJob, seen: TuningObservation) -> None:
        """Begin a window: at once if the last one had the same conditions, else after they have settled."""
        before, conditions = self._by_job.get(job.uid), _conditions(job, seen)
        same = before is not None and before.conditions == conditions
        began_s = seen.at_s if same else seen.at_s + self._settle_s
        changed = not same and job.tuning_input.resize is not None
        self._by_job[job.uid] = _Window(conditions, _measured_for(job), began_s, changed)


def _conditions(job: TunedJob, seen: TuningObservation) -> Conditions:
    return job.tuning_input.attempt, job.tuning_input.cores, seen.container


def _look(seen: TuningObservation, began_s: float, cores: int) -> Look:
    assert seen.share is not None
    used, throttled = seen.cpu_cores, seen.throttled_share
    full = None if used is None else is_at_limit(used, throttled, cores)
    return Look(seen.at_s - began_s, seen.share, full, used, throttled)


def _measured_for(job: TunedJob) -> object:
    """What a window's result changes: a window of before says nothing more."""
    return job.tuning and (job.tuning.found, job.tuning.watch)
