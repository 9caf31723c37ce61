"""Curves cores -> GPU utilisation for the allocator's tests: the golden models, Synergy's, and seeded random ones.

The golden optima are chosen so that the unit-step search gives CODA's Table II; they are no measurements.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from coda.allocator import CoreSearchConfig, SearchResult
from coda.allocator.core_search import CoreLimits, begin_search, next_search
from coda.allocator.curve import WindowReading

Curve = Callable[[int], float]

SAMPLES_PER_WINDOW = 45  # 1 s apart, in the half of 90 s that counts


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    name: str
    start: int  # by category and hints, one GPU
    optimum: int  # one GPU
    slope: float  # cores per further GPU
    utilisation: float  # at the optimum
    steps: int  # CODA, Table II


MODELS = (
    Model(name="Alexnet", start=3, optimum=4, slope=3.5, utilisation=0.68, steps=4),
    Model(name="VGG16", start=2, optimum=3, slope=2.5, utilisation=0.95, steps=4),
    Model(name="InceptionV3", start=3, optimum=3, slope=2.5, utilisation=0.89, steps=3),
    Model(name="Resnet-50", start=3, optimum=3, slope=2.5, utilisation=0.86, steps=3),
    Model(name="Bi-att-Flow", start=5, optimum=6, slope=3.5, utilisation=0.58, steps=4),
    Model(name="Transformer", start=3, optimum=2, slope=2, utilisation=0.79, steps=3),
    Model(name="Wavenet", start=5, optimum=5, slope=3, utilisation=0.68, steps=3),
    Model(name="DeepSpeech", start=5, optimum=4, slope=2.5, utilisation=0.71, steps=3),
)

SYNERGY = {  # relative speed on a V100, as published by Synergy (OSDI 2022); between the counts it is interpolated
    "Alexnet": {1: 0.10, 2: 0.22, 3: 0.34, 4: 0.43, 6: 0.60, 9: 0.68, 12: 1.0},
    "Resnet-50": {1: 0.35, 2: 0.64, 3: 0.87, 4: 1.0},
    "Transformer": {1: 1.0},
    "DeepSpeech": {1: 0.30, 2: 0.66, 3: 1.0},
}


def model_curve(model: Model, gpus: int = 1) -> Curve:
    return linear_then_drop(model_optimum(model, gpus), model.utilisation)


def model_optimum(model: Model, gpus: int = 1) -> int:
    return round(model.optimum + model.slope * (gpus - 1))


def linear_then_drop(optimum: int, best: float, *, foot: float = 0.25, drop: float = 0.004) -> Curve:
    def curve(cores: int) -> float:
        if cores <= optimum:
            return best * (foot + (1 - foot) * cores / optimum)
        return best * (1 - drop * min(cores - optimum, 10))

    return curve


def interpolated(points: dict[int, float]) -> Curve:
    def curve(cores: int) -> float:
        below = max(count for count in points if count <= cores)
        above = min((count for count in points if count >= cores), default=below)
        part = (cores - below) / (above - below) if above > below else 0.0
        return points[below] + (points[above] - points[below]) * part

    return curve


def random_plateau(rng: random.Random) -> Curve:
    return linear_then_drop(rng.randint(1, 24), rng.uniform(0.3, 1.0), foot=rng.uniform(0.05, 0.45), drop=0.0)


def random_monotone(rng: random.Random, most: int = 28) -> Curve:
    """Diminishing, uneven gains to the last core: no flat top, and pieces with almost no gain."""
    reach = rng.uniform(2, 10)
    gains = [rng.random() * 2 ** (-cores / reach) for cores in range(most)]
    top = rng.uniform(0.3, 1.0) / sum(gains)
    return lambda cores: top * sum(gains[:cores])


def fewest_best(curve: Curve, most: int, margin: float) -> int:
    """By trying them all: the fewest cores within `margin` of the best utilisation."""
    best = max(curve(cores) for cores in range(1, most + 1))
    return next(cores for cores in range(1, most + 1) if curve(cores) >= best * (1 - margin))


def measured(curve: Curve, cores: int, noise: float, rng: random.Random) -> WindowReading:
    """One window: the mean of its samples and the spread that these samples would show."""
    spread = noise * curve(cores) / SAMPLES_PER_WINDOW**0.5
    return WindowReading(share=min(1.0, max(0.0, rng.gauss(curve(cores), spread))), variance=spread**2)


def tuned(
    curve: Curve,
    start: int,
    *,
    gpus: int = 1,
    most: int = 28,
    noise: float = 0.0,
    seed: str = "",
    config: CoreSearchConfig | None = None,
) -> SearchResult:
    limits, rng, config = CoreLimits(most=most), random.Random(seed), config or CoreSearchConfig()
    search = begin_search(start, gpus, limits)
    while True:
        step = next_search(search, measured(curve, search.trying, noise, rng), limits, config)
        if isinstance(step, SearchResult):
            return step
        search = step
