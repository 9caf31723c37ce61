"""How long waiting jobs are expected to run, fixed when each is first asked about: its place in the queue follows.

And which of a waiting and a running job should run now, by how long jobs like them ran.
"""

from __future__ import annotations

from collections.abc import Collection
from math import floor, inf, log2
from typing import Final, NamedTuple

from coda.history.run_times import RunTimes
from coda.model.job import Job, JobId
from coda.model.live_placement import live_placement

LEAST_RUNS: Final = 20
"""Finished jobs that prove something. Our choice."""
TERM_S: Final = 600.0
"""How long a Gittins index counts. Our choice: time alone changes what is decided no more often than that."""
_STEPS: Final = 16  # of ages that have one index, per doubling
_INDEX_STEPS: Final = 4  # of indices that are about equal, per doubling. Our choice
_ON_ITS_WAY: Final = 2.0 ** (1.0 / _INDEX_STEPS)  # how much more an index counts that has not fallen since the start
_NEVER: Final = -1000  # the step of an index of 0
_FEW: Final = 64  # more known jobs than this, and than twice the waiting ones, are looked through


class _Kind(NamedTuple):
    """What the expectation depends on."""

    user: str
    category: str
    gpus: int  # of the whole gang


class GittinsIndices:
    """The Gittins indices of jobs, each as of the term of `TERM_S` in which it was first asked for."""

    def __init__(self, run_times: RunTimes) -> None:
        self._run_times = run_times
        self._index_by_kind: dict[tuple[_Kind, int], float] = {}
        self._index_by_run: dict[tuple[JobId, str, int], float] = {}  # of running jobs, by their attempts
        self._bar_by_priority: dict[int, float] = {}  # the lowest index of those that were tried in this cycle
        self.term_s = 0.0  # when the present term began
        self._spared = False  # in the present cycle, somebody was

    def begin(self, now_s: float) -> None:
        """A cycle begins, perhaps in another term."""
        self._spared = False
        self._bar_by_priority.clear()
        term_s = now_s // TERM_S * TERM_S
        if term_s != self.term_s:
            self.term_s = term_s
            self._index_by_kind.clear()
            self._index_by_run.clear()

    def bar_of(self, job: Job) -> float:
        """Return below which index running jobs of the waiting job's priority may stop for it: its own, or a lower one
        of a job that was tried before it in this cycle (`lower_bar`). O(1), and a Gittins index for each kind and age
        in each term."""
        return min(self._index(job, job.resumed_s), self._bar_by_priority.get(job.priority, inf))

    def is_lowest(self, job: Job) -> bool:
        """True if the job's index is below those of all that lowered the bar of its priority. Costs as `bar_of`."""
        return self._index(job, job.resumed_s) < self._bar_by_priority.get(job.priority, inf)

    def lower_bar(self, job: Job) -> None:
        """The job was tried, and would start if nobody were spared: its index holds for those after it.

        So who stops for them would stop for it, too, and it takes nothing that was freed for somebody else."""
        self._bar_by_priority[job.priority] = self.bar_of(job)

    def index_of(self, runner: Job) -> float:
        """Return the index of a running job. Costs as `bar_of`.

        It counts a quarter of a doubling more unless it has fallen since the job began: two kinds differ by as much by
        chance, and where run times are alike a stop for nothing makes the stopped job late (docs/decisions/0150)."""
        key = (runner.id, runner.uid, runner.attempt)
        index = self._index_by_run.get(key)
        if index is None:
            placement = live_placement(runner)
            ran_s = 0.0 if placement is None else max(0.0, self.term_s - placement.committed_s)
            index = self._index(runner, runner.resumed_s + ran_s)
            if index >= self._index(runner, 0.0):
                index *= _ON_ITS_WAY
            self._index_by_run[key] = index
        return index

    def step_of(self, runner: Job) -> int:
        """Return the index of a running job in steps: those of one step are about as likely to end soon. Costs as
        `bar_of`."""
        index = self.index_of(runner)
        return floor(_INDEX_STEPS * log2(index)) if index > 0.0 else _NEVER

    def spares(self, index: float, bar: float) -> bool:
        """True if who has this index runs on: it is as likely to end soon as the bar says."""
        if index < bar:
            return False
        self._spared = True
        return True

    @property
    def wake_s(self) -> float | None:
        """When somebody who is spared now may not be any more; None: nobody was spared in this cycle."""
        return self.term_s + TERM_S if self._spared else None

    def _index(self, job: Job, age_s: float) -> float:
        kind = _kind_of(job)
        step = round(_STEPS * log2(max(1.0, age_s)))
        index = self._index_by_kind.get((kind, step))
        if index is None:
            index = self._run_times.gittins_index(kind.user, kind.category, kind.gpus, 2.0 ** (step / _STEPS))
            self._index_by_kind[kind, step] = index
        return index


class ExpectedRuns:
    """The expected run times of waiting jobs, by the mean of those of finished jobs."""

    def __init__(self, run_times: RunTimes) -> None:
        self._run_times = run_times
        self._known: dict[JobId, tuple[_Kind, float, float]] = {}  # with the trust in it
        self.indices = GittinsIndices(run_times)

    def run_s(self, job: Job) -> float:
        """Return how long the job is expected to run in all, at most up to its limit; 0 if nobody knows. O(1).

        The answer stays until the owner, the category or the GPUs of the job change."""
        return self._estimate(job)[0]

    def trusted_run_s(self, job: Job) -> float:
        """As `run_s`, but only as far as such estimates have put finished jobs into their order: 0 if they have not."""
        run_s, trust = self._estimate(job)
        return run_s * trust

    def _estimate(self, job: Job) -> tuple[float, float]:
        kind = _kind_of(job)
        known = self._known.get(job.id)
        if known is None or known[0] != kind:
            mean_s = self._run_times.mean_s(kind.user, kind.category, kind.gpus)
            known = self._known[job.id] = (kind, mean_s, self._run_times.skill_of(kind.gpus).trust)
        _, run_s, trust = known
        return run_s if job.run_limit_s is None else min(run_s, job.run_limit_s), trust

    def proven_run_s(self, job: Job) -> float:
        """As `run_s`, but until `LEAST_RUNS` jobs have finished, only the job's limit says how long it runs. O(1).

        The seconds of a smoke test prove nothing of the training that follows."""
        return self.run_s(job) if self._run_times.finished >= LEAST_RUNS else job.run_limit_s or 0.0

    def forget_all_but(self, waiting: Collection[JobId]) -> None:
        """Forget the jobs that wait no more, once most of the known ones are such. O(1) on the mean."""
        if len(self._known) > 2 * len(waiting) + _FEW:
            self._known = {job: known for job, known in self._known.items() if job in waiting}


def _kind_of(job: Job) -> _Kind:
    return _Kind(job.user, job.category, job.replicas * job.request.gpus)
