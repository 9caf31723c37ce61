"""Jobs as pipelines: loading on cores, a queue of loaded steps, steps on GPUs, and phases in which CPUs work alone.

Here a job's speed depends on more than its cores, and its GPUs do not show at once what its cores do. A job is judged
by its steps: against the same job with the cores that it began with. One look a second; every wish is granted.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from coda.allocator import SearchResult, Tuning, TuningConfig, TuningPhase, next_tuning
from coda.allocator.ranks import result_of_job
from coda.allocator.tuning import TuningInput
from coda.allocator.window_samples import Look, WindowResult, is_at_limit, result_of_window
from tests.core.allocator.searching import RESIZE_S, SETTLE_S, granted

MOST_CORES: Final = 48
HOUR_S: Final = 3600
STARTS: Final = (1.0, 1.5, 2.0)
"""Cores that jobs begin with, relative to what their loading needs: nobody has too few."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuPhase:
    """CPU work while the GPUs show `level` of their best: rollouts, evaluation, saving. A job trains `every_s` between.

    `work_s`: its length with as many cores as it can use, `width` of what loading needs; `tail_s`: then on one core."""

    every_s: float
    work_s: float
    width: float = 1.0
    tail_s: float = 0.0
    level: float = 0.0
    jitter: float = 0.0  # of the length, relative, either way


@dataclass(frozen=True, slots=True, kw_only=True)
class Turns:
    """A factor that changes: `low` to `high` for `least_s` to `most_s`, then 1 again for as long."""

    low: float
    high: float
    least_s: float
    most_s: float
    first_s: float = 0.0  # it is in force for so long at first; 0: drawn


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineModel:
    """How the jobs of one row are made. `needs`: the range of cores that loading at full speed takes."""

    hours: float = 6
    gpus: int = 1
    needs: tuple[int, int] = (4, 16)
    queue_s: float = 0.0  # steps that are loaded ahead, as seconds of training
    ceiling: Turns | None = None  # of the speed of loading, by something that is no core
    cost: Turns | None = None  # of CPU time per step
    growth: tuple[float, float, float] | None = None  # of CPU time per step: at first, from which hour on, each hour
    phase: CpuPhase | None = None
    training: float = 1.0  # of `needs`, what loading takes where a phase takes `needs`
    noise: float = 0.02
    spinning: float = 0.0  # cores that threads use up waiting


QUEUES: Final = {f"a queue of {seconds} s": PipelineModel(queue_s=seconds) for seconds in (5, 15, 30, 60, 120, 300)}

TRIED: Final[Mapping[str, PipelineModel]] = {
    "a pipeline without a queue": PipelineModel(),
    **QUEUES,
    "8 GPUs, a queue of 120 s": PipelineModel(gpus=8, needs=(12, 30), queue_s=120),
    "slow storage for 10-30 min in turn": PipelineModel(
        hours=12, ceiling=Turns(low=0.4, high=0.75, least_s=600, most_s=1800)
    ),
    "slow storage for 30-90 min in turn": PipelineModel(
        hours=12, ceiling=Turns(low=0.4, high=0.75, least_s=1800, most_s=5400)
    ),
    "8 GPUs, slow storage for 10-30 min in turn": PipelineModel(
        hours=12, gpus=8, needs=(12, 30), ceiling=Turns(low=0.4, high=0.75, least_s=600, most_s=1800)
    ),
    "a cold first epoch of 90 min": PipelineModel(
        hours=8, ceiling=Turns(low=0.4, high=0.6, least_s=9e9, most_s=9e9, first_s=5400)
    ),
    "twice the CPU time per step for 40-80 min in turn": PipelineModel(
        hours=8, cost=Turns(low=0.5, high=0.5, least_s=2400, most_s=4800)
    ),
    "twice the CPU time per step for 10-20 min in turn": PipelineModel(
        hours=8, cost=Turns(low=0.5, high=0.5, least_s=600, most_s=1200)
    ),
    "CPU time per step grows by a tenth each hour": PipelineModel(hours=14, growth=(0.4, 7.2, 0.1)),
    "CPU time per step grows slowly from the start": PipelineModel(hours=14, growth=(0.4, 0.0, 0.05)),
    "rollouts of 60 s, training 120 s": PipelineModel(phase=CpuPhase(every_s=120, work_s=60), training=0.1),
    "rollouts of 30 s with a tail, training 90 s": PipelineModel(
        phase=CpuPhase(every_s=90, work_s=30, tail_s=60), training=0.1
    ),
    "rollouts of 240 s, training 300 s": PipelineModel(phase=CpuPhase(every_s=300, work_s=240), training=0.1),
    "rollouts of 600 s, training 600 s": PipelineModel(phase=CpuPhase(every_s=600, work_s=600), training=0.1),
    "evaluation of 120 s every 20 min": PipelineModel(phase=CpuPhase(every_s=1200, work_s=120), training=0.1),
    "evaluation of 60 s every 9 min": PipelineModel(phase=CpuPhase(every_s=540, work_s=60), training=0.5),
    "8 GPUs, evaluation of 60 s every 9 min": PipelineModel(
        gpus=8, needs=(24, 40), phase=CpuPhase(every_s=540, work_s=60), training=0.5
    ),
}
"""The rows on which the rules were made."""

UNTRIED: Final[Mapping[str, PipelineModel]] = {
    "loaders begin anew: 20 s every 6 min, a queue of 8 s": PipelineModel(
        queue_s=8, phase=CpuPhase(every_s=360, work_s=20)
    ),
    "rollouts of 45 to 135 s, training 150 s": PipelineModel(
        phase=CpuPhase(every_s=150, work_s=90, jitter=0.5), training=0.25
    ),
    "evaluation of 90 s every 10 min, GPUs at a fifth": PipelineModel(
        phase=CpuPhase(every_s=600, work_s=90, level=0.2), training=0.4
    ),
    "evaluation of 240 s every 40 min, GPUs at a third": PipelineModel(
        hours=8, phase=CpuPhase(every_s=2400, work_s=240, level=0.33), training=0.4
    ),
    "a queue of 45 s on storage that is slow for 5-60 min": PipelineModel(
        hours=10, queue_s=45, ceiling=Turns(low=0.3, high=0.95, least_s=300, most_s=3600)
    ),
    "CPU time per step half for 90-150 min in turn": PipelineModel(
        hours=12, cost=Turns(low=0.5, high=0.7, least_s=5400, most_s=9000)
    ),
    "evaluation of 300 s every 2 h": PipelineModel(
        hours=12, phase=CpuPhase(every_s=7200, work_s=300, width=1.0), training=0.5
    ),
    "packed checkpoints: 25 s on half of the cores every 15 min": PipelineModel(
        phase=CpuPhase(every_s=900, work_s=25, width=0.5)
    ),
    "8 GPUs, rollouts of 120 s, training 240 s": PipelineModel(
        gpus=8, needs=(16, 32), phase=CpuPhase(every_s=240, work_s=120), training=0.3
    ),
    "8 GPUs, a queue of 90 s, a cold first epoch of 2 h": PipelineModel(
        hours=8,
        gpus=8,
        needs=(12, 30),
        queue_s=90,
        ceiling=Turns(low=0.5, high=0.7, least_s=9e9, most_s=9e9, first_s=7200),
    ),
    "8 GPUs, half of the CPU time per step for 20-60 min in turn": PipelineModel(
        hours=8, gpus=8, needs=(12, 30), cost=Turns(low=0.5, high=0.6, least_s=1200, most_s=3600)
    ),
    "a thread spins, a queue of 20 s": PipelineModel(queue_s=20, spinning=1.0),
    "noise of 8 %, a queue of 60 s": PipelineModel(queue_s=60, noise=0.08),
}
"""Rows on which they were judged; of windows far below the answer's utilisation, the rule came after these."""

LAST: Final[Mapping[str, PipelineModel]] = {
    "evaluation of 150 s every 25 min, GPUs at half": PipelineModel(
        hours=8, phase=CpuPhase(every_s=1500, work_s=150, level=0.5), training=0.5
    ),
    "evaluation of 200 s every 30 min, GPUs at a quarter, half of the cores": PipelineModel(
        hours=8, phase=CpuPhase(every_s=1800, work_s=200, width=0.5, level=0.25), training=0.3
    ),
    "8 GPUs, a queue of 30 s on storage that is slow for 5-60 min": PipelineModel(
        hours=10, gpus=8, needs=(12, 30), queue_s=30, ceiling=Turns(low=0.3, high=0.95, least_s=300, most_s=3600)
    ),
    "rollouts of 20 s, training 60 s": PipelineModel(phase=CpuPhase(every_s=60, work_s=20), training=0.3),
    "CPU time per step a third for 3-5 h in turn": PipelineModel(
        hours=16, cost=Turns(low=0.33, high=0.4, least_s=10_800, most_s=18_000)
    ),
    "CPU time per step grows by a third each hour": PipelineModel(hours=8, growth=(0.3, 2.0, 0.33)),
    "storage that is slow for 2-6 h in turn, a queue of 120 s": PipelineModel(
        hours=16, queue_s=120, ceiling=Turns(low=0.3, high=0.8, least_s=7200, most_s=21_600)
    ),
    "4 GPUs, evaluation of 60 s every 6 min": PipelineModel(
        gpus=4, needs=(8, 20), phase=CpuPhase(every_s=360, work_s=60), training=0.6
    ),
}
"""Rows that were made once the rules stood."""


def _levels(turns: Turns | None, rng: random.Random, length_s: int) -> list[float]:
    if turns is None:
        return []
    found: list[float] = []
    changed = rng.random() < 0.5 or turns.first_s > 0
    while len(found) < length_s:
        lasts_s = rng.uniform(turns.least_s, turns.most_s)
        if not found and turns.first_s:
            lasts_s = turns.first_s
        value = rng.uniform(turns.low, turns.high) if changed else 1.0
        found += [value] * min(round(lasts_s), length_s - len(found))
        changed = not changed
    return found


@dataclass(slots=True)
class Pipeline:
    """One job, second by second. `need`: cores that its loading, or its phase, can use."""

    model: PipelineModel
    need: int
    rng: random.Random
    ceiling: list[float]
    cost: list[float]
    loaded_s: float = 0.0
    trained_s: float = 0.0  # since the last phase
    left: float = 0.0  # of a phase: core-seconds
    tail_s: float = 0.0
    steps: float = 0.0

    def second(self, at_s: int, cores: int) -> Look:
        """Go on for a second with so many cores; return what is seen."""
        model, phase = self.model, self.model.phase
        if phase is not None and self.left <= 0 and self.tail_s <= 0 and self.trained_s >= phase.every_s:
            length = phase.work_s * (1 + phase.jitter * self.rng.uniform(-1, 1))
            self.left, self.tail_s, self.trained_s = length * self.need * phase.width, phase.tail_s, 0.0
        free = max(0.01, cores - model.spinning)
        if phase is not None and (self.left > 0 or self.tail_s > 0):
            used = min(free, self.need * phase.width) if self.left > 0 else 1.0
            if self.left > 0:
                self.left -= used
            else:
                self.tail_s -= 1
            share = 0.9 * phase.level
        else:
            share, used = self._train(at_s, free)
        return self._seen(at_s, share, used + model.spinning, cores)

    def _train(self, at_s: int, free: float) -> tuple[float, float]:
        model = self.model
        cost = self.cost[at_s] if self.cost else 1.0
        if model.growth is not None:
            first, from_h, each_h = model.growth
            cost = min(1.0, first + max(0.0, at_s / HOUR_S - from_h) * each_h)
        per_step = self.need * model.training * cost
        ceiling = self.ceiling[at_s] if self.ceiling else 1.0
        fastest = ceiling if self.ceiling and ceiling < 1.0 else math.inf
        made = min(free / per_step, fastest, 1.0 + model.queue_s - self.loaded_s)
        speed = min(1.0, self.loaded_s + made)
        self.loaded_s = min(model.queue_s, self.loaded_s + made - speed)
        self.trained_s += speed
        self.steps += speed
        return 0.9 * speed, made * per_step

    def _seen(self, at_s: int, share: float, used: float, cores: int) -> Look:
        throttled = 1.0 if used > 0.97 * cores else 0.0
        share = min(1.0, max(0.0, share * (1 + self.model.noise * self.rng.gauss(0, 1))))
        used = min(float(cores), max(0.0, used * (1 + 0.02 * self.rng.gauss(0, 1))))
        return Look(float(at_s), share, is_at_limit(used, throttled, cores), used, throttled)


@dataclass(frozen=True, slots=True, kw_only=True)
class Piped:
    """What became of a job. `lost`: steps, relative to the same job with its first cores. `kept`: mean cores of those.

    `changes`: of its cores, by the hour."""

    lost: float
    kept: float
    changes: float
    outcome: str


def _pipeline(name: str, model: PipelineModel, run: int) -> tuple[Callable[[], Pipeline], int]:
    rng = random.Random(f"{name} {run}")
    need = rng.randint(*model.needs)
    length_s = round(model.hours * HOUR_S) + 600
    seed, ceiling, cost = rng.random(), _levels(model.ceiling, rng, length_s), _levels(model.cost, rng, length_s)
    start = min(MOST_CORES, max(model.gpus, round(need * STARTS[run % len(STARTS)] + model.spinning)))
    return (lambda: Pipeline(model, need, random.Random(seed), ceiling, cost)), start


def piped(name: str, model: PipelineModel, run: int, config: TuningConfig | None = None) -> Piped:
    """Tune one job, and let it run untuned."""
    make, start = _pipeline(name, model, run)
    length_s = round(model.hours * HOUR_S)
    plain = make()
    for at_s in range(length_s):
        plain.second(at_s, start)
    tuned = TunedPipeline(make(), start, length_s, config or TuningConfig())
    tuned.run()
    found, cores = tuned.tuning.found, tuned.cores_by_s
    return Piped(
        lost=1 - tuned.pipeline.steps / plain.steps,
        kept=sum(cores) / len(cores) / start,
        changes=sum(one != other for one, other in itertools.pairwise(cores)) / model.hours,
        outcome=found.outcome.value if isinstance(found, SearchResult) else "",
    )


class TunedPipeline:
    """A pipeline and its tuning."""

    def __init__(self, pipeline: Pipeline, start: int, length_s: int, config: TuningConfig) -> None:
        self.pipeline, self.config, self.length_s = pipeline, config, length_s
        self.input = TuningInput(attempt=1, cores=start, gpus=pipeline.model.gpus, most_cores=MOST_CORES)
        self.tuning: Tuning = next_tuning(None, self.input, None, config, 0.0)
        self.cores_by_s: list[int] = []
        self.windowed_cores = 0

    def run(self) -> None:
        """Until the job is over."""
        while len(self.cores_by_s) < self.length_s:
            wish = self.tuning.wish
            if self.tuning.phase is TuningPhase.WISHING and wish is not None:
                self._pass(RESIZE_S)
                self.input = granted(self.input, wish, len(self.cores_by_s))
                measured = None
            else:
                measured = self._window()
            now_s = float(len(self.cores_by_s))
            self.tuning = next_tuning(self.tuning, self.input, measured, self.config, now_s)

    def _window(self) -> WindowResult:
        changed, first = self.windowed_cores != self.input.cores, self.windowed_cores == 0
        if changed:
            self._pass(SETTLE_S)
            self.windowed_cores = self.input.cores
        looks = self._pass(round(self.config.tuning.window_s))
        looks = [look._replace(at_s=at_s + 1.0) for at_s, look in enumerate(looks)]
        own = result_of_window(looks, self.config.tuning, changed=changed and not first)
        return result_of_job([own], self.input.gpus, MOST_CORES, cores=self.input.cores)

    def _pass(self, seconds: int) -> list[Look]:
        looks = []
        for at_s in range(len(self.cores_by_s), min(self.length_s, len(self.cores_by_s) + seconds)):
            looks.append(self.pipeline.second(at_s, self.input.cores))
            self.cores_by_s.append(self.input.cores)
        return looks
