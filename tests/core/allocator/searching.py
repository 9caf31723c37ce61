"""A job tuned over hours in a moment: the core's `next_tuning` on readings made as the agent makes them.

The planner grants every wish at once and a resize takes 3 s. Windows begin 10 s after a change.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Final

from coda.allocator import SearchResult, Tuning, TuningConfig, TuningPhase, next_tuning
from coda.allocator.resize import Resize, ResizeState
from coda.allocator.tuning import TuningInput
from coda.allocator.window_samples import Look, WindowResult, result_of_window
from coda.model.job import Wish, WishAnswer
from tests.core.allocator.signals import MOST_CORES, Signal, SignalModel, plateau_job

JOB_S: Final = 4 * 3600
RESIZE_S: Final = 3
SETTLE_S: Final = 10
COST_STEP_S: Final = 5  # how often what is lost is looked at


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchedJob:
    """What became of one job. `off`: at the end, cores from the fewest within 1 % of the best, of a
    core per GPU and more."""

    off: int
    lost: float
    lost_untuned: float
    cannot_tell: bool
    answered_s: float
    windows: int
    reopened: int


class Search:
    """One job, its signal and its tuning."""

    def __init__(self, model: SignalModel, gpus: int, seed: str, config: TuningConfig) -> None:
        rng = random.Random(seed)
        self.job = plateau_job(rng, gpus)
        self.signal = Signal(model, self.job, rng, JOB_S)
        self.config = config
        self.input = TuningInput(attempt=1, cores=self.job.start, gpus=gpus, most_cores=MOST_CORES)
        self.tuning: Tuning = next_tuning(None, self.input, None, config, 0.0)
        self.now_s = 0
        self.cores_by_step: list[int] = []
        self.answered_s: int | None = None
        self.windows = self.reopened = 0
        self.windowed_cores = 0  # the cores of the last window: another count settles first

    def run(self) -> None:
        """Until the job is over."""
        while self.now_s < JOB_S:
            before = self.tuning.phase
            self._grant() if before is TuningPhase.WISHING else self._measure()
            if self.tuning.phase is TuningPhase.TUNED and self.answered_s is None:
                self.answered_s = self.now_s
            was_tuned = before is TuningPhase.TUNED
            self.reopened += was_tuned and self.tuning.phase is not TuningPhase.TUNED

    def _pass(self, seconds: int) -> None:
        self.now_s += seconds
        self.cores_by_step += [self.input.cores] * (min(self.now_s, JOB_S) // COST_STEP_S - len(self.cores_by_step))

    def _grant(self) -> None:
        wish = self.tuning.wish
        assert wish is not None
        self._pass(RESIZE_S)
        self.input = granted(self.input, wish, self.now_s)
        self._step(None)

    def _measure(self) -> None:
        changed = self.windowed_cores != self.input.cores
        if changed:
            self._pass(SETTLE_S)
            self.windowed_cores = self.input.cores
        first = self.now_s <= SETTLE_S
        window_s = int(self.config.tuning.window_s)
        began_s = self.now_s
        self._pass(window_s)
        shares = self.signal.samples(self.input.cores, began_s, self.now_s)
        full = self.signal.uses_all_cores(self.input.cores, began_s, self.now_s)
        samples = [Look(float(at_s), share, full[at_s - 1]) for at_s, share in enumerate(shares, 1)]
        self.windows += self.answered_s is None
        self._step(result_of_window(samples, self.config.tuning, changed=changed and not first))

    def _step(self, measured: WindowResult | None) -> None:
        self.tuning = next_tuning(self.forgotten(), self.input, measured, self.config, float(self.now_s))

    def forgotten(self) -> Tuning:
        """What is known at the next step: all of it."""
        return self.tuning


def granted(job: TuningInput, wish: Wish, now_s: float) -> TuningInput:
    """The job once its wish was granted and every rank has the cores."""
    answer = WishAnswer(
        sequence=wish.sequence, granted=True, cores=wish.cores, answered_s=now_s, deadline_s=wish.deadline_s
    )
    resize = Resize(
        attempt=job.attempt,
        sequence=wish.sequence,
        state=ResizeState.DONE,
        wanted=wish.cores,
        cores=wish.cores,
        since_s=now_s,
    )
    return replace(job, cores=wish.cores, answer=answer, resize=resize)


def searched(model: SignalModel, gpus: int, seed: str, config: TuningConfig | None = None) -> SearchedJob:
    """Tune one job for four hours."""
    search = Search(model, gpus, seed, config or TuningConfig())
    search.run()
    cost = untuned = total = 0.0
    for step, cores in enumerate(search.cores_by_step):
        at_s = step * COST_STEP_S
        weight, curve = search.signal.weight(at_s), search.signal.curve_at(at_s)
        best = max(curve)
        cost += weight * (best - curve[cores])
        untuned += weight * (best - curve[search.job.start])
        total += weight * best
    curve = search.signal.curve_at(JOB_S)
    floor = search.input.gpus  # a core per GPU
    fewest = next(cores for cores in range(floor, MOST_CORES + 1) if curve[cores] >= max(curve[floor:]) * 0.99)
    found = search.tuning.found
    outcome = found.outcome.value if isinstance(found, SearchResult) else ""
    return SearchedJob(
        off=(search.tuning.best_cores or search.input.cores) - fewest,
        lost=cost / total,
        lost_untuned=untuned / total,
        cannot_tell=outcome == "TooNoisy",
        answered_s=JOB_S if search.answered_s is None else search.answered_s,
        windows=search.windows,
        reopened=search.reopened,
    )
