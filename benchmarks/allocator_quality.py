"""How far the allocator's answer is from trying every core count, and how long it takes: pure, seeded, no cluster.

Golden models (the paper's eight, on 1, 4 and 8 GPUs), Synergy's published curves, 50 random plateau and 50 random
monotone curves; noise is the relative standard deviation of one 1-s sample. Configurations: `paper` (one core per
step, nothing repeated, no faint gains), `default`, `patient` (default, and one more move past a flat piece).
Usage: python benchmarks/allocator_quality.py > allocator.json    (a table goes to stderr)
"""

from __future__ import annotations

import json
import random
import statistics
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # the curves are the tests'

from coda.allocator import CoreSearchConfig
from coda.allocator.config import Stride
from tests.core.allocator.curves import (
    MODELS,
    SYNERGY,
    Curve,
    fewest_best,
    interpolated,
    model_curve,
    random_monotone,
    random_plateau,
    tuned,
)

CONFIGS = {
    "paper": CoreSearchConfig(
        stride=Stride.UNIT, faint_moves=0, certainty=0.0, extra_windows=0, sight=0.0, begins_again=0
    ),
    "default": CoreSearchConfig(),
    "patient": CoreSearchConfig(patience=1),
}
NOISES = (0.0, 0.01, 0.03)
RUNS = 200
RANDOM_RUNS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    name: str
    curve: Curve
    start: int
    gpus: int
    most: int
    runs: int


def cases() -> Iterator[tuple[str, list[Case]]]:
    for gpus in (1, 4, 8):
        yield (
            f"Table II models, {gpus} GPU",
            [
                Case(
                    name=f"{model.name} {gpus}",
                    curve=model_curve(model, gpus),
                    start=model.start * gpus,
                    gpus=gpus,
                    most=48,
                    runs=RUNS,
                )
                for model in MODELS
            ],
        )
    starts = {model.name: model.start for model in MODELS}
    yield (
        "Synergy",
        [
            Case(name=name, curve=interpolated(points), start=starts[name], gpus=1, most=28, runs=RUNS)
            for name, points in SYNERGY.items()
        ],
    )
    for label, make in (("50 plateau", random_plateau), ("50 monotone", random_monotone)):
        rng = random.Random(label)
        yield (
            label,
            [
                Case(
                    name=f"{label} {number}",
                    curve=make(rng),
                    start=rng.randint(1, 24),
                    gpus=1,
                    most=28,
                    runs=RANDOM_RUNS,
                )
                for number in range(50)
            ],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    distance: int  # cores from the brute-force optimum
    lost: float  # utilisation against the best, relative
    seconds: float


def trial(case: Case, config: CoreSearchConfig, noise: float, run: int) -> Trial:
    best_cores = fewest_best(case.curve, case.most, config.noise_margin)
    best = max(case.curve(cores) for cores in range(1, case.most + 1))
    answer = tuned(
        case.curve,
        case.start,
        gpus=case.gpus,
        most=case.most,
        noise=noise,
        seed=f"{case.name} {run}",
        config=config,
    )
    return Trial(
        distance=abs(answer.cores - best_cores),
        lost=1 - case.curve(answer.cores) / best,
        seconds=answer.windows * config.window_s,
    )


def main() -> None:
    rows: list[dict[str, object]] = []
    heading = f"{'curves':<24}{'config':<9}{'noise':>6}{'<=1 core':>10}{'distance':>10}{'lost':>8}{'time':>10}"
    print(heading, file=sys.stderr)
    for label, group in cases():
        for name, config in CONFIGS.items():
            for noise in NOISES:
                trials = [trial(c, config, noise, run) for c in group for run in range(c.runs if noise else 1)]
                near = statistics.fmean(t.distance <= 1 for t in trials)
                distance = statistics.fmean(t.distance for t in trials)
                lost, seconds = statistics.fmean(t.lost for t in trials), statistics.fmean(t.seconds for t in trials)
                print(
                    f"{label:<24}{name:<9}{noise:>6.0%}{near:>10.1%}{distance:>10.2f}{lost:>8.2%}{seconds:>9.0f}s",
                    file=sys.stderr,
                )
                key = f"allocator/{label}/{name}/noise {noise:.0%}"
                judged = label.startswith(("Table", "Synergy")) and name == "default"
                rows += [
                    {
                        "name": f"{key}/within one core",
                        "value": near,
                        "unit": "share",
                        "budget": ">= 0.95" if judged else "",
                        "aim": ">= 1",
                    },
                    {"name": f"{key}/distance", "value": distance, "unit": "cores", "budget": "", "aim": ""},
                    {"name": f"{key}/lost", "value": lost, "unit": "share", "budget": "", "aim": ""},
                    {"name": f"{key}/time", "value": seconds, "unit": "s", "budget": "", "aim": ""},
                ]
    question = "How far is the allocator from trying every core count, and how long does it take?"
    json.dump({"question": question, "rows": rows}, sys.stdout, indent=1)


if __name__ == "__main__":
    main()
