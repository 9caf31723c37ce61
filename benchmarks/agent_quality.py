"""How far the whole agent's answer is from trying every core count, and how long it takes: emulated node, fake time.

Eight jobs at a time on one node: utilisation is sampled through NVML, windows are measured, the tuning is written,
wishes are granted and resized, and the limit in the job's cgroup is what its GPUs answer to. Curves: CODA's eight
models, Synergy's published ones, 50 random plateau and 50 random monotone ones. Noise: relative standard deviation of
one 1-s sample. Time: from the job's start to its last resize, settling and resizing included.
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import statistics
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from zlib import crc32

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # the curves are the tests'

from coda.allocator import CoreSearchConfig
from coda.allocator.core_search import SearchResult as Found
from coda.errors import InvalidInput
from coda_lab.emulators.agent_rig import Rig
from coda_lab.emulators.cluster_rig import EmulatedCluster
from coda_lab.emulators.load import Curved
from coda_lab.emulators.node import EmulatedNode
from coda_lab.emulators.nvml.library import build, load_here
from coda_lab.emulators.nvml.state import STATE_VARIABLE
from coda_lab.host.paths import Settings
from rig.asking import ask, positive, tell
from rig.results import Answer, Row
from tests.core.allocator.curves import (
    MODELS,
    SYNERGY,
    Curve,
    fewest_best,
    interpolated,
    model_curve,
    random_monotone,
    random_plateau,
)

RUNS, RANDOM_RUNS = 200, 4
NOISES: Final = (0.0, 0.01, 0.03)
MOST: Final = 28  # cores a job may have: one of CODA's nodes
JOBS: Final = 8  # on one node at a time, each with a GPU
LONGEST_S: Final = 4 * 3600  # of fake time, for a tuning to end


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A job to be tuned. `steps`: CODA's own count, where there is one."""

    name: str
    curve: Curve
    start: int
    steps: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What became of it. `distance`: cores from the brute-force optimum; `lost`: relative, of the best utilisation;
    `limited`: whether the job's cgroup has what was found."""

    name: str
    cores: int
    distance: int
    lost: float
    steps: int
    as_published: bool
    seconds: float
    limited: bool


async def answer(options: argparse.Namespace) -> Answer:
    """One node after the other, in this process: so is NVML."""
    load_here(build(Settings.from_environ().cache))
    gc.disable()  # between nodes is often enough
    runs, random_runs = (1, 1) if options.quick else (options.runs or RUNS, options.random_runs or RANDOM_RUNS)
    rows: list[Row] = []
    detail: dict[str, object] = {}
    for label, cases in groups(options.quick):
        if options.only and not label.startswith(tuple(options.only)):
            continue
        for noise in NOISES:
            repeats = (random_runs if label.startswith("50") else runs) if noise else 1
            trials = await trials_of([(case, run) for run in range(repeats) for case in cases], noise)
            key = f"tuned by the agent, {label}, noise {noise:.0%}"
            judged = noise > 0 and not label.startswith("50")
            rows += rows_of(key, trials, judged=judged)
            detail[key] = by_name(trials)
            tell(line_of(label, noise, trials))
    return Answer(question="agent_quality", rows=tuple(rows), detail=detail)


def groups(quick: bool) -> Iterator[tuple[str, list[Case]]]:
    """The jobs, by where their curves come from."""
    start_by_model = {model.name: model.start for model in MODELS}
    yield (
        "Table II",
        [Case(name=model.name, curve=model_curve(model), start=model.start, steps=model.steps) for model in MODELS],
    )
    yield (
        "Synergy",
        [Case(name=name, curve=interpolated(points), start=start_by_model[name]) for name, points in SYNERGY.items()],
    )
    for label, make in (("50 plateau", random_plateau), ("50 monotone", random_monotone)):
        rng = random.Random(label)
        cases = [Case(name=f"{label} {number}", curve=make(rng), start=rng.randint(1, 24)) for number in range(50)]
        yield label, cases[:JOBS] if quick else cases


async def trials_of(jobs: Sequence[tuple[Case, int]], noise: float) -> list[Trial]:
    """Each job with the number of its run, eight on a node."""
    trials: list[Trial] = []
    for first in range(0, len(jobs), JOBS):
        trials += await on_one_node(jobs[first : first + JOBS], noise)
    return trials


async def on_one_node(jobs: Sequence[tuple[Case, int]], noise: float) -> list[Trial]:
    """Submit them together, and wait until the agent has tuned them all."""
    with tempfile.TemporaryDirectory(prefix="coda-quality-", dir=_fast_folder()) as name, rig_in(Path(name)) as rig:
        cluster = EmulatedCluster(rig, most=MOST)
        for place, (case, run) in enumerate(jobs):
            seed = crc32(f"{case.name} {run} {noise}".encode())
            cluster.submit(f"job-{place}", start=case.start, trainer=Curved(curve=case.curve, noise=noise), seed=seed)
        return [trial async for trial in ends_of(cluster, [case for case, _run in jobs])]


async def ends_of(cluster: EmulatedCluster, cases: Sequence[Case]) -> AsyncIterator[Trial]:
    """What became of each job, in the order of their ends; a job is over once it is tuned."""
    for _ in range(LONGEST_S):
        for name in [name for name, job in cluster.jobs.items() if job.done_s is not None]:
            yield trial_of(cases[int(name.removeprefix("job-"))], cluster, name)
            cluster.end(name)
        if not cluster.jobs:
            return
        await cluster.run(1)
    raise InvalidInput(f"not tuned within {LONGEST_S} s: {', '.join(cluster.jobs)}")


@contextmanager
def rig_in(folder: Path) -> Iterator[Rig]:
    """The agent on a node of two sockets, with cores for eight jobs of 28."""
    node = EmulatedNode(folder, profile="intel", cores=JOBS * MOST)
    os.environ[STATE_VARIABLE] = str(node.state.path)
    for device in node.state.devices:
        device.buffered = 30  # the agent looks every second, and the file is read at every call
    rig = Rig(node, folder)
    try:
        yield rig
    finally:
        rig.kill()
        gc.collect()


def trial_of(case: Case, cluster: EmulatedCluster, name: str) -> Trial:
    """What the job's status and its cgroup say."""
    job, found = cluster.jobs[name], cluster.tuning(name).found
    assert isinstance(found, Found)
    assert job.done_s is not None
    best = max(case.curve(cores) for cores in range(1, MOST + 1))
    return Trial(
        name=case.name,
        cores=found.cores,
        distance=abs(found.cores - fewest_best(case.curve, MOST, CoreSearchConfig().noise_margin)),
        lost=1 - case.curve(found.cores) / best,
        steps=found.windows,
        as_published=case.steps in (None, found.windows),
        seconds=job.done_s - job.began_s,
        limited=cluster.rig.node.limit_of(job.work) == found.cores,
    )


def rows_of(key: str, trials: Sequence[Trial], *, judged: bool) -> list[Row]:
    """For the table."""
    near, distance, lost, steps, seconds = means_of(trials)
    return [
        Row(name=f"{key}: within one core", value=near, unit="of jobs", budget=">= 0.95" if judged else ""),
        Row(name=f"{key}: distance", value=distance, unit="cores"),
        Row(name=f"{key}: utilisation lost", value=lost, unit="of the best"),
        Row(name=f"{key}: windows", value=steps, unit=""),
        Row(name=f"{key}: time", value=seconds / 60, unit="min"),
    ]


def means_of(trials: Sequence[Trial]) -> tuple[float, float, float, float, float]:
    """Share within one core, distance, loss, windows, seconds."""
    return (
        statistics.fmean(trial.distance <= 1 for trial in trials),
        statistics.fmean(trial.distance for trial in trials),
        statistics.fmean(trial.lost for trial in trials),
        statistics.fmean(trial.steps for trial in trials),
        statistics.fmean(trial.seconds for trial in trials),
    )


def by_name(trials: Sequence[Trial]) -> dict[str, object]:
    """For those who want to know which."""
    return {
        name: {
            "cores": sorted(trial.cores for trial in trials if trial.name == name),
            "within_one": statistics.fmean(trial.distance <= 1 for trial in trials if trial.name == name),
            "steps": statistics.fmean(trial.steps for trial in trials if trial.name == name),
            "as_published": all(trial.as_published for trial in trials if trial.name == name),
            "limited": all(trial.limited for trial in trials if trial.name == name),
        }
        for name in dict.fromkeys(trial.name for trial in trials)
    }


def line_of(label: str, noise: float, trials: Sequence[Trial]) -> str:
    """One line of the terminal's table."""
    near, distance, lost, steps, seconds = means_of(trials)
    return (
        f"{label:<12}noise {noise:>3.0%} {len(trials):>5} jobs: within one core {near:>6.1%}, "
        f"distance {distance:>5.2f}, lost {lost:>6.2%}, windows {steps:>5.1f}, {seconds:>5.0f} s, "
        f"cgroup differs {sum(not trial.limited for trial in trials)}"
    )


def _fast_folder() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


def _more(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--runs", type=positive, help=f"seeds for each published curve and noise (default {RUNS})")
    parser.add_argument("--only", action="append", help="curves whose name begins so; may be given several times")
    parser.add_argument("--random-runs", type=positive, help=f"the same for random curves (default {RANDOM_RUNS})")


if __name__ == "__main__":
    sys.exit(ask(__doc__, answer, more=_more))
