"""How well the eliminator protects training jobs as they are, and whom it throttles for nothing: pure and seeded.

The closed loop is the tests' (`tests/core/contention/real_jobs.py`). Protected: share of a job's running time in which
it loses at most 5 % to contention. For nothing: share of time in which a pod is throttled though no job loses anything.
Usage: python benchmarks/eliminator_quality.py [--seeds 10] [--first-seed 100] [--only TEXT]
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # the world is the tests'

from coda.contention import EliminatorState
from coda.contention.reference import lasting
from tests.core.contention.real_jobs import Burst, Pauses, RealJob, node_of

HOUR: Final = 3600.0
JOB: Final = RealJob(job="a/train")
HOG: Final = Burst(uid="hog", gb_per_s=120)
STEADY: Final = Burst(uid="steady", gb_per_s=72)
BESIDE: Final = replace(JOB, loss=0.0, gb_per_s=1.0, noise=0.03)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One row: a run of one seed gives one value. `aim`: what the mean over seeds should reach."""

    name: str
    run: Callable[[int], float]
    aim: str


def protected(name: str, job: RealJob, loads: tuple[Burst, ...], hours: float = 2.0, since_s: float = 30.0) -> Scenario:
    """How long the job is protected."""

    def run(seed: int) -> float:
        until_s = hours * HOUR
        node = node_of(job, loads=loads, seed=seed, until_s=until_s).go(until_s)
        return 100 * node.protected(max(since_s, job.from_s))

    return Scenario(name=f"protected, %: {name}", run=run, aim=">= 90")


def found(name: str, job: RealJob, loads: tuple[Burst, ...], at_s: float) -> Scenario:
    """How many seconds after `at_s` the job is protected for the first time."""

    def run(seed: int) -> float:
        node = node_of(job, loads=loads, seed=seed, until_s=at_s + 1200).go(at_s + 1200)
        return min(1200.0, node.unprotected_until(at_s))

    return Scenario(name=f"found after, s: {name}", run=run, aim="<= 60")


def in_vain(name: str, jobs: tuple[RealJob, ...], loads: tuple[Burst, ...], hours: float = 4.0) -> Scenario:
    """How long pods are throttled for nothing."""

    def run(seed: int) -> float:
        node = node_of(*jobs, loads=loads, seed=seed, until_s=hours * HOUR).go(hours * HOUR)
        return 100 * node.throttled()

    return Scenario(name=f"in vain, %: {name}", run=run, aim="<= 1")


def paused(every_s: float, for_s: float, level: float = 0.0, jitter: float = 0.3) -> RealJob:
    """The usual job, with pauses."""
    return replace(JOB, pauses=Pauses(every_s=every_s, for_s=for_s, level=level, first_s=every_s / 2, jitter=jitter))


def several(count: int, job: RealJob) -> tuple[RealJob, ...]:
    """So many of them."""
    return tuple(replace(job, job=f"a/{number}") for number in range(count))


def restarted(*, every_s: float, hours: float = 2.0) -> Scenario:
    """The agent starts again under standing contention."""

    def run(seed: int) -> float:
        node = node_of(JOB, loads=(HOG,), seed=seed, until_s=hours * HOUR)
        node.restart = remembering
        for number in range(1, int(hours * HOUR / every_s) + 1):
            node.go(number * every_s).restart_agent()
        return 100 * node.protected(30.0)

    return Scenario(name=f"protected, %: agent restarts every {every_s / 60:.0f} min", run=run, aim=">= 90")


def slow_rounds(round_s: float) -> Scenario:
    """Seconds from the end of the load to the end of its throttle, with rounds that take long."""

    def run(seed: int) -> float:
        load = replace(HOG, until_s=600.0)
        node = node_of(replace(JOB, gb_per_s=5.0), loads=(load,), seed=seed, until_s=4 * HOUR).go(600.0)
        if not node.state.throttles:
            return float("nan")
        node.round_s = round_s
        while node.state.throttles and node.now_s < 600 + HOUR:
            node.go(node.now_s + round_s)
        return node.now_s - 600.0

    return Scenario(name=f"released after, s: rounds of {round_s:g} s", run=run, aim="<= 300")


def remembering(state: EliminatorState) -> EliminatorState:
    """What an agent knows after a restart."""

    return EliminatorState(references=lasting(state.references))


def scenarios() -> Iterator[Scenario]:
    yield protected("no pauses", JOB, (HOG,))
    for every_s, for_s in ((600, 60), (300, 10), (120, 20)):
        for level in (0.0, 0.2, 0.6):
            yield protected(f"{for_s} s at {level:.0%} every {every_s} s", paused(every_s, for_s, level), (HOG,))
    for percent in (5, 8, 10, 20, 70):
        yield protected(f"a job that loses {percent + 2} %", replace(JOB, loss=percent / 100 + 0.02), (HOG,))
    yield protected("drift -10 % an hour", replace(JOB, drift_per_h=-0.1), (HOG,))
    yield protected("AR(1) 5 %, 10 s", replace(JOB, noise=0.05, correlation_s=10), (HOG,))
    yield protected("AR(1) 5 %, 60 s", replace(JOB, noise=0.05, correlation_s=60), (HOG,))
    yield protected("ramp of 5 min, aggressor first", replace(JOB, from_s=300.0, ramp_s=300.0), (HOG,))
    yield protected("bursts of 20 s in 30 s", JOB, (replace(HOG, on_s=20, every_s=30),))
    yield protected("bursts of 2 min in 5 min", JOB, (replace(HOG, on_s=120, every_s=300),))
    yield protected("two aggressors", JOB, (replace(HOG, gb_per_s=70), replace(HOG, uid="two", gb_per_s=60)))
    yield protected(
        "two aggressors, one an hour later",
        JOB,
        (replace(HOG, gb_per_s=70), replace(HOG, uid="two", gb_per_s=60, from_s=HOUR)),
    )
    resized = tuple((31.0 + 600 * number, 4 + number % 2) for number in range(12))
    yield protected("resized every 10 min", replace(JOB, cores_by_s=((0.0, 4), *resized)), (HOG,))
    yield restarted(every_s=1200)
    late = replace(JOB, from_s=300.0)
    yield found("aggressor 5 min before the job", late, (HOG,), 300.0)
    yield found("aggressor 5 min before a job with pauses", replace(late, pauses=paused(120, 20).pauses), (HOG,), 300.0)
    yield found("aggressor 8 s after the job", JOB, (replace(HOG, from_s=8.0),), 8.0)
    yield found("aggressor 120 s after the job", JOB, (replace(HOG, from_s=120.0),), 120.0)
    yield found("resize 1 s after the aggressor", replace(JOB, cores_by_s=((0.0, 4), (31.0, 5))), (HOG,), 30.0)
    for noise in (0.03, 0.05):
        for count in (1, 8):
            jobs = several(count, replace(BESIDE, noise=noise))
            yield in_vain(f"{count} jobs, noise {noise:.0%}", jobs, (replace(STEADY, gb_per_s=80),))
            first = several(count, replace(BESIDE, noise=noise, from_s=60.0))
            yield in_vain(f"{count} jobs, noise {noise:.0%}, load first", first, (replace(STEADY, gb_per_s=80),))
    yield in_vain("8 jobs, noise 3 %, load at 120 %", several(8, BESIDE), (HOG,))
    yield in_vain("AR(1) 5 %, 10 s, 8 jobs", several(8, replace(BESIDE, noise=0.05, correlation_s=10)), (HOG,))
    yield in_vain("AR(1) 5 %, 60 s, 8 jobs", several(8, replace(BESIDE, noise=0.05, correlation_s=60)), (HOG,))
    yield in_vain("drift -10 % an hour, 8 jobs", several(8, replace(BESIDE, drift_per_h=-0.1)), (HOG,))
    yield in_vain(
        "pauses 60 s at 60 %, 8 jobs", several(8, replace(BESIDE, pauses=paused(600, 60, 0.6).pauses)), (HOG,)
    )
    yield in_vain(
        "pauses 20 s at 60 %, 8 jobs", several(8, replace(BESIDE, pauses=paused(120, 20, 0.6).pauses)), (HOG,)
    )
    inference = Pauses(every_s=10, for_s=7, level=0.0, jitter=0.0)
    yield in_vain("3 s on, 7 s off", (replace(BESIDE, pauses=inference),), (replace(STEADY, gb_per_s=80),))
    for round_s in (1.0, 5.5, 11.0):
        yield slow_rounds(round_s)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first-seed", type=int, default=100)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    print("| scenario | mean | worst | aim |\n|---|---|---|---|")
    for scenario in scenarios():
        if options.only in scenario.name:
            values = [scenario.run(seed) for seed in range(options.first_seed, options.first_seed + options.seeds)]
            worst = min(values) if scenario.aim.startswith(">=") else max(values)
            print(f"| {scenario.name} | {statistics.mean(values):.1f} | {worst:.1f} | {scenario.aim} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
