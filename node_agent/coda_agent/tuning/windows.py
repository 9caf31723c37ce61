"""Windows of the jobs whose rank 0 is here, each at a core count that does not change.

A window begins some time after the cores are as wished: earlier samples say nothing about them. It ends with what all
ranks say of it. The next core count is the core's decision (`coda.allocator.tuning`)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Final

from coda.allocator import Tuning, TuningConfig, TuningPhase, next_tuning
from coda.allocator.ranks import result_of_job
from coda.allocator.window_samples import TOO_FEW_SAMPLES, WindowResult
from coda_agent.cluster import TunedJob
from coda_agent.tuning.gang import Gang
from coda_agent.tuning.observation import RankWindow, TuningObservation

LATE_S: Final = 30.0
"""Seconds after a window for the reports of other ranks to come. Our choice: they are written within seconds; an agent
that starts again needs longer, and costs a window."""

_MEASURED = frozenset({TuningPhase.MEASURING, TuningPhase.TUNED, TuningPhase.STOPPED})
"""A tuned job is watched, and one that fell silent may work again."""


@dataclass(slots=True)
class _JobWindow:
    """`of`: the tuning that it was begun for. Its conditions: attempt, cores per rank, and container of rank 0.

    `own`: what rank 0 says, once it is over."""

    window: RankWindow
    of: object
    own: WindowResult | None = None


class Windows:
    """The windows of this node's jobs, by job uid. They are lost with the process, and begin again."""

    def __init__(self, config: TuningConfig, settle_s: float, gang: Gang, node_cores: int = 1) -> None:
        """`node_cores`: CPU use of a job that is seen from now on is told as a share of these."""
        self._config = config
        self._settle_s = settle_s
        self._gang = gang
        self.node_cores = node_cores
        self._by_job: dict[str, _JobWindow] = {}
        self._whole_by_job: dict[str, int] = {}  # what CPU use is a share of: what is compared has one whole

    def forget_all_except(self, job_uids: Collection[str]) -> None:
        """Keep only the windows of these jobs."""
        self._by_job = {uid: window for uid, window in self._by_job.items() if uid in job_uids}
        self._whole_by_job = {uid: cores for uid, cores in self._whole_by_job.items() if uid in job_uids}

    def other_cores(self, job: TunedJob) -> float | None:
        """Return the cores that the kernel allowed rank 0, if this window or the last one does not count for them."""
        known = self._by_job.get(job.uid)
        return None if known is None else known.window.last_other_cores

    def step(self, job: TunedJob, seen: TuningObservation) -> Tuning | None:
        """Return the job's tuning after this round; equal to `job.tuning` if nothing has to be written.

        `seen`: of rank 0."""
        self._whole_by_job.setdefault(job.uid, self.node_cores)
        measured = self._measured(job, seen)
        if not seen.may_step:
            return job.tuning
        tuning = next_tuning(job.tuning or job.before, job.tuning_input, measured, self._config, seen.wall_s)
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
        known, config = self._by_job.get(job.uid), self._config.tuning
        if known is None or known.window.conditions != _conditions(job, seen) or known.of != _measured_for(job):
            self._begin(job, seen)
            return None
        window, at = known.window, job.tuning_input
        window.look(seen, at.cores, config.window_s)
        over_s = seen.at_s - window.began_s - config.window_s
        if over_s < 0:
            return None
        if known.own is None:
            known.own = window.result(config)
        others, unknown = self._gang.results(job)
        if unknown and over_s < LATE_S:
            return None
        whole, ranks = self._whole_by_job[job.uid], [known.own, *others]
        return result_of_job(ranks, at.gpus * at.ranks, whole, cores=at.cores, unknown=unknown)

    def _begin(self, job: TunedJob, seen: TuningObservation) -> None:
        """Begin a window: at once if the last one had the same conditions, else after they have settled."""
        before, conditions = self._by_job.get(job.uid), _conditions(job, seen)
        if before is not None and before.window.conditions == conditions:
            window = before.window.next(seen.at_s, self._settle_s)
        else:
            changed = job.tuning_input.resize is not None
            window = RankWindow(conditions, seen.at_s + self._settle_s, changed)
        self._by_job[job.uid] = _JobWindow(window, _measured_for(job))
        self._gang.begin(job)


def _conditions(job: TunedJob, seen: TuningObservation) -> tuple[int, int, str]:
    return job.tuning_input.attempt, job.tuning_input.cores, seen.container


def _measured_for(job: TunedJob) -> object:
    """What a window's result changes: a window of before says nothing more."""
    return job.tuning and (job.tuning.found, job.tuning.watch, job.tuning.pauses)
