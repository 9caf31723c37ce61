"""GPU utilisation as real jobs show it: pauses, warm-up, correlated noise, drift, phases. Seeded, one sample a second.

A signal says what a job with a given curve shows from second to second. `weight` is its noiseless part, for what a
wrong core count costs; `samples` are what the agent sees.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Final

from tests.core.allocator.curves import Curve, linear_then_drop

MOST_CORES: Final = 48


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """Seconds in which the job does not train: its GPUs show `level` of its best utilisation, whatever its cores."""

    every_s: float
    length_s: float
    level: float = 0.0
    jitter: float = 0.0  # of the time between two, relative, either way
    full: bool = False  # it uses all cores


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalModel:
    """How the signals of one row are made. Noise is relative to the utilisation; `ar`: deviation and correlation."""

    white: float = 0.03
    ar: tuple[float, float] | None = None  # standard deviation, seconds
    log_normal: float = 0.0
    pauses: tuple[Pause, ...] = ()
    ramp: tuple[float, float] | None = None  # seconds, share of the final utilisation at the beginning
    drift_per_h: float = 0.0
    sinus: tuple[float, float] | None = None  # seconds of one turn, amplitude
    saw: tuple[float, float] | None = None  # seconds of one tooth, its depth
    steps: tuple[float, float] | None = None  # mean seconds between two, largest change
    phase: tuple[float, float] | None = None  # second, factor of the optimum from then on
    loud: tuple[float, float, float] | None = None  # so many seconds of every so many: deviation, with 20 s as in `ar`


ROWS: Final[Mapping[str, SignalModel]] = {
    "white 3 %": SignalModel(),
    "white 5 %": SignalModel(white=0.05),
    "evaluation 60 s every 10 min at 0 %": SignalModel(pauses=(Pause(every_s=600, length_s=60),)),
    "evaluation 60 s every 10 min at 20 %": SignalModel(pauses=(Pause(every_s=600, length_s=60, level=0.2),)),
    "evaluation 90 s every 10 min at 20 %": SignalModel(pauses=(Pause(every_s=600, length_s=90, level=0.2),)),
    "evaluation 30 s every 10 min at 20 %": SignalModel(pauses=(Pause(every_s=600, length_s=30, level=0.2),)),
    "evaluation 60 s every 10 min at 60 %": SignalModel(pauses=(Pause(every_s=600, length_s=60, level=0.6),)),
    "checkpoint 10 s every 5 min at 0 %": SignalModel(pauses=(Pause(every_s=300, length_s=10),)),
    "ramp of 15 min from 50 %": SignalModel(ramp=(900, 0.5)),
    "ramp of 15 min from 80 %": SignalModel(ramp=(900, 0.8)),
    "ramp of 5 min from 50 %": SignalModel(ramp=(300, 0.5)),
    "AR(1) 5 %, 10 s": SignalModel(white=0, ar=(0.05, 10)),
    "AR(1) 5 %, 60 s": SignalModel(white=0, ar=(0.05, 60)),
    "AR(1) 5 %, 300 s": SignalModel(white=0, ar=(0.05, 300)),
    "AR(1) 2 %, 60 s": SignalModel(white=0, ar=(0.02, 60)),
    "drift -10 % per hour": SignalModel(drift_per_h=-0.1),
    "optimum doubles after 60 min": SignalModel(phase=(3600, 2.0)),
    "optimum halves after 60 min": SignalModel(phase=(3600, 0.5)),
    "optimum doubles after 4 min": SignalModel(phase=(240, 2.0)),
    "loud: AR(1) 50 %, 20 s for the first 5 min": SignalModel(loud=(300, math.inf, 0.5)),
    "loud: AR(1) 50 %, 20 s for 20 min of each hour": SignalModel(loud=(1200, 3600, 0.5)),
}
"""The rows on which the search was tuned."""

UNSEEN: Final[Mapping[str, SignalModel]] = {
    "evaluation 45 s every 7 min +-40 % at 35 %": SignalModel(
        pauses=(Pause(every_s=420, length_s=45, level=0.35, jitter=0.4),)
    ),
    "evaluation 120 s every 15 min at 75 %": SignalModel(pauses=(Pause(every_s=900, length_s=120, level=0.75),)),
    "evaluation 60 s every 10 min at 20 %, CPU-bound": SignalModel(
        pauses=(Pause(every_s=600, length_s=60, level=0.2, full=True),)
    ),
    "evaluation and checkpoints, white 5 %": SignalModel(
        white=0.05, pauses=(Pause(every_s=700, length_s=75, level=0.1), Pause(every_s=240, length_s=6))
    ),
    "stalls of 5 s every 40 s": SignalModel(pauses=(Pause(every_s=40, length_s=5),)),
    "log-normal noise 10 %": SignalModel(white=0, log_normal=0.1),
    "saw of 5 min, 10 %": SignalModel(saw=(300, 0.1)),
    "slow sinus of 40 min, 8 %": SignalModel(sinus=(2400, 0.08)),
    "fast sinus of 3 min, 5 %": SignalModel(sinus=(180, 0.05)),
    "steps of up to 10 % every 30 min": SignalModel(steps=(1800, 0.1)),
    "white 3 % and AR(1) 3 %, 30 s": SignalModel(ar=(0.03, 30)),
    "ramp of 8 min from 30 %, pauses": SignalModel(ramp=(480, 0.3), pauses=(Pause(every_s=500, length_s=40),)),
    "drift +8 % per hour": SignalModel(drift_per_h=0.08),
    "optimum times 1.5 after 90 min, pauses": SignalModel(
        phase=(5400, 1.5), pauses=(Pause(every_s=600, length_s=60, level=0.2),)
    ),
    "optimum doubles after 60 min, AR(1) 3 %, 20 s": SignalModel(white=0.01, ar=(0.03, 20), phase=(3600, 2.0)),
    "loud: AR(1) 80 %, 20 s for the first 10 min, pauses": SignalModel(
        loud=(600, math.inf, 0.8), pauses=(Pause(every_s=600, length_s=60, level=0.2),)
    ),
    "loud: AR(1) 30 %, 20 s for 10 min of each 40": SignalModel(loud=(600, 2400, 0.3)),
}
"""Rows on which it was only judged."""


@cache
def _normals() -> tuple[float, ...]:
    rng = random.Random("normals")
    return tuple(rng.gauss(0, 1) for _ in range(1 << 16))


@dataclass(frozen=True, slots=True, kw_only=True)
class PlateauJob:
    """A job on a linear curve with a plateau that drops slightly. `start`: 0.5 to 2 times its optimum."""

    optimum: int
    foot: float
    best: float
    start: int

    def curve(self, factor: float = 1.0) -> Curve:
        """Return cores -> utilisation while the optimum is `factor` times the first one."""
        return linear_then_drop(max(1, round(self.optimum * factor)), self.best, foot=self.foot)


def plateau_job(rng: random.Random, gpus: int) -> PlateauJob:
    """Draw one: optimum 2 to 12 cores with one GPU, 6 to 40 with eight."""
    optimum = rng.randint(2, 12) if gpus == 1 else rng.randint(6, 40)
    factor = rng.choice((0.5, 0.75, 1.0, 1.5, 2.0))
    return PlateauJob(
        optimum=optimum,
        foot=rng.uniform(0.05, 0.45),
        best=rng.uniform(0.4, 0.95),
        start=max(1, min(MOST_CORES, round(optimum * factor))),
    )


class Signal:
    """One job's utilisation over time. Samples are drawn in order of time, each second once."""

    def __init__(self, model: SignalModel, job: PlateauJob, rng: random.Random, length_s: int) -> None:
        self._model, self._job, self._rng = model, job, rng
        self._drawn_s = 0
        self._ar = rng.gauss(0, 1)
        self._paused = self._pauses(length_s)
        self._offset_s = rng.uniform(0, 10_000)
        self._steps = self._levels(length_s)
        self._loud = self._loudness(length_s)
        self._curves: dict[float, list[float]] = {}
        moves = (model.ramp, model.drift_per_h, model.sinus, model.saw, model.steps)
        self._is_moved = any(moves)  # its level changes without a pause

    def curve_at(self, at_s: float) -> list[float]:
        """Return the utilisation by cores (index; 0 is unused) without noise or pauses."""
        phase = self._model.phase
        factor = phase[1] if phase is not None and at_s >= phase[0] else 1.0
        if factor not in self._curves:
            curve = self._job.curve(factor)
            self._curves[factor] = [0.0, *(curve(cores) for cores in range(1, MOST_CORES + 1))]
        return self._curves[factor]

    def weight(self, at_s: int) -> float:
        """Return the part of its utilisation that a training job shows then without noise; 0 in a pause."""
        return 0.0 if at_s in self._paused else self._level(at_s)

    def samples(self, cores: int, from_s: int, to_s: int) -> list[float]:
        """Return one sample for each second. What was not drawn before is passed over, as time passes."""
        noise = self._noise(to_s - self._drawn_s)[from_s - self._drawn_s :]
        self._drawn_s = to_s
        own, paused = self.curve_at(from_s)[cores], self._paused
        levels = [own * self._level(at_s) for at_s in range(from_s, to_s)] if self._is_moved else [own] * len(noise)
        if self._loud:
            levels = [level * self._loud[at_s] for level, at_s in zip(levels, range(from_s, to_s), strict=True)]
        for at_s in paused.keys() & range(from_s, to_s) if paused else ():
            levels[at_s - from_s] = paused[at_s] * self._job.best
        found = [level * factor for level, factor in zip(levels, noise, strict=True)]
        return found if min(found) >= 0 and max(found) <= 1 else [min(1.0, max(0.0, share)) for share in found]

    def uses_all_cores(self, cores: int, from_s: int, to_s: int) -> list[bool]:
        """Return for each second whether all cores are used: by loading that cannot keep up, or by such a pause."""
        curve = self.curve_at(from_s)
        starved = curve[cores] < max(curve) and cores < curve.index(max(curve))
        full = any(pause.full for pause in self._model.pauses)
        if not self._paused:
            return [starved] * (to_s - from_s)
        return [full if at_s in self._paused else starved for at_s in range(from_s, to_s)]

    def _level(self, at_s: int) -> float:
        model, level = self._model, 1.0
        if model.ramp is not None and at_s < model.ramp[0]:
            level *= model.ramp[1] + (1 - model.ramp[1]) * at_s / model.ramp[0]
        if model.drift_per_h:
            level *= max(0.1, 1 + model.drift_per_h * (at_s - 7200 * (model.drift_per_h > 0)) / 3600)
        if model.sinus is not None:
            level *= 1 - model.sinus[1] / 2 * (1 + math.sin(2 * math.pi * (at_s + self._offset_s) / model.sinus[0]))
        if model.saw is not None:
            level *= 1 - model.saw[1] * ((at_s + self._offset_s) % model.saw[0]) / model.saw[0]
        if self._steps:
            level *= self._steps[at_s]
        return level

    def _noise(self, count: int) -> list[float]:
        model, normals = self._model, _normals()
        first = self._rng.randrange(len(normals) - count)
        draws = normals[first : first + count]
        factors = [1 + model.white * draw for draw in draws]
        if model.log_normal:
            factors = [math.exp(model.log_normal * draw - model.log_normal**2 / 2) for draw in draws]
        if model.ar is None:
            return factors
        deviation, rho, found = model.ar[0], math.exp(-1 / model.ar[1]), []
        fresh, last = math.sqrt(1 - rho * rho), self._ar
        first = self._rng.randrange(len(normals) - count)
        for factor, draw in zip(factors, normals[first : first + count], strict=True):
            last = rho * last + fresh * draw
            found.append(factor + deviation * last)
        self._ar = last
        return found

    def _pauses(self, length_s: int) -> dict[int, float]:
        paused: dict[int, float] = {}
        for pause in self._model.pauses:
            begins_s = self._rng.uniform(0, pause.every_s)
            while begins_s < length_s:
                for at_s in range(round(begins_s), round(begins_s + pause.length_s)):
                    paused[at_s] = pause.level
                begins_s += pause.every_s * (1 + pause.jitter * self._rng.uniform(-1, 1))
        return paused

    def _levels(self, length_s: int) -> list[float]:
        if self._model.steps is None:
            return []
        mean_s, largest = self._model.steps
        levels, level = [], 1.0
        for _ in range(length_s + 1000):
            if self._rng.random() < 1 / mean_s:
                level = 1 - largest * self._rng.random()
            levels.append(level)
        return levels

    def _loudness(self, length_s: int) -> list[float]:
        if self._model.loud is None:
            return []
        loud_s, every_s, deviation = self._model.loud
        found, last, rho = [], self._rng.gauss(0, 1), math.exp(-1 / 20)
        for at_s in range(length_s + 1000):
            last = rho * last + math.sqrt(1 - rho * rho) * self._rng.gauss(0, 1)
            found.append(max(0.0, 1 + deviation * last) if at_s % every_s < loud_s else 1.0)
        return found
