"""A data-parallel job as its GPUs and CPUs show it: loaders with a prefetch queue, and a collective in every step.

Each GPU has a process with loaders that fill a queue; a step begins on a GPU once its batch is there, and ends on all
of them once the slowest has computed. A GPU that waits in the collective counts as busy. The pods' CPU use is what
loading took. A model, and no measurement: times are relative to a step's computing, which takes 1.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Final

from coda.allocator import SearchResult, TuningConfig, TuningPhase, next_tuning
from coda.allocator.ranks import result_of_job
from coda.allocator.tuning import TuningInput
from coda.allocator.window_samples import Look, WindowResult, is_at_limit, result_of_window
from tests.core.allocator.searching import granted

STEPS: Final = 600
PREFETCH: Final = 2
LOADERS: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelJob:
    """`load`: CPU time of a batch; `slow`: the factor of the last pod's; `jitter`: of each batch, log-normal.

    `others`: CPU time of a step that is no loading. `waits`: for the other pods, in every step."""

    pods: int
    gpus: int  # per pod
    load: float
    slow: float = 1.0
    jitter: float = 0.0
    others: float = 0.0
    waits: bool = True


PARALLEL_JOBS: Final[Mapping[str, tuple[ParallelJob, int]]] = {
    "2 pods x 8 GPUs, second CPU 20 % slower": (ParallelJob(pods=2, gpus=8, load=3.12, slow=1.25), 24),
    "2 pods x 4 GPUs, second CPU 30 % slower": (ParallelJob(pods=2, gpus=4, load=2.76, slow=1.43), 12),
    "2 pods x 8 GPUs, jitter 0.3": (ParallelJob(pods=2, gpus=8, load=3.5, jitter=0.3), 24),
    "1 pod x 8 GPUs, jitter 0.1": (ParallelJob(pods=1, gpus=8, load=2.9, jitter=0.1), 24),
    "1 pod x 8 GPUs, jitter 0.5": (ParallelJob(pods=1, gpus=8, load=2.9, jitter=0.5), 24),
    "1 pod x 8 GPUs, jitter 1.0": (ParallelJob(pods=1, gpus=8, load=2.9, jitter=1.0), 24),
    "1 pod x 1 GPU": (ParallelJob(pods=1, gpus=1, load=4.0), 4),
    "2 pods x 8 GPUs, far too many cores": (ParallelJob(pods=2, gpus=8, load=1.5, slow=1.25), 40),
    "4 pods x 4 GPUs, polling besides": (ParallelJob(pods=4, gpus=4, load=2.0, jitter=0.2, others=0.5), 6),
    "2 pods x 2 GPUs, each for itself, second hungrier": (
        ParallelJob(pods=2, gpus=2, load=1.5, slow=2.4, waits=False),
        6,
    ),
    "2 pods x 2 GPUs, each for itself, too many cores": (
        ParallelJob(pods=2, gpus=2, load=1.5, slow=2.4, waits=False),
        12,
    ),
}
"""Jobs of several ranks, and the cores per pod that they start with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """`speed`: steps per time, 1 at most. By pod: the least busy GPU, CPU use in cores, share of throttled periods."""

    speed: float
    busy: tuple[float, ...]
    cpu_cores: tuple[float, ...]
    throttled: tuple[float, ...]


@cache
def shown(job: ParallelJob, cores: int) -> Shown:
    """What the job shows with so many cores per pod; the same draws for every count. O(steps x GPUs)."""
    if not job.waits:
        loads = [job.load * (job.slow if pod == job.pods - 1 else 1.0) for pod in range(job.pods)]
        pods = [shown(replace(job, pods=1, load=load, slow=1.0, waits=True), cores) for load in loads]
        return Shown(
            speed=min(pod.speed for pod in pods),
            busy=tuple(pod.busy[0] for pod in pods),
            cpu_cores=tuple(pod.cpu_cores[0] for pod in pods),
            throttled=tuple(pod.throttled[0] for pod in pods),
        )
    rng = random.Random(f"{job.pods} {job.gpus} {job.jitter}")
    processes = [(pod, gpu) for pod in range(job.pods) for gpu in range(job.gpus)]
    speed_of_one = min(LOADERS, cores / job.gpus)
    ready = dict.fromkeys(processes, 0.0)  # when the last batch was loaded
    began: list[float] = []
    waited = dict.fromkeys(processes, 0.0)
    used = [0.0] * job.pods
    end = 0.0
    for step in range(STEPS):
        freed = began[step - PREFETCH - 1] if step > PREFETCH else 0.0
        starts = []
        for process in processes:
            cost = job.load * (job.slow if process[0] == job.pods - 1 else 1.0)
            cost *= rng.lognormvariate(-(job.jitter**2) / 2, job.jitter) if job.jitter else 1.0
            ready[process] = max(ready[process], freed) + cost / speed_of_one
            used[process[0]] += cost + job.others
            starts.append(max(end, ready[process]))
            waited[process] += starts[-1] - end
        end = max(starts) + 1.0
        began.append(max(starts))
    return Shown(
        speed=STEPS / end,
        busy=tuple(
            min(1 - waited[process] / end for process in processes if process[0] == pod) for pod in range(job.pods)
        ),
        cpu_cores=tuple(min(float(cores), one / end) for one in used),
        throttled=tuple(1.0 if one / end > 0.97 * cores else 0.0 for one in used),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """What became of a job. Speeds relative to the best of all counts. `least`: the fewest cores that it had."""

    start: float
    speed: float
    cores: int
    least: int
    outcome: str


def tuned_together(
    job: ParallelJob,
    start: int,
    *,
    most: int = 48,
    noise: float = 0.02,
    known: int | None = None,
    hidden: int = 0,
    seed: str = "tuned",
) -> Tuned:
    """Tune the job for two hours by the windows of its first `known` pods; None: of all. Every wish is granted.

    `hidden`: so many of the last pods do not show their CPU use."""
    rng, config, least = random.Random(seed), TuningConfig(), start
    here = TuningInput(attempt=1, cores=start, gpus=job.gpus, ranks=job.pods, most_cores=most)
    tuning = next_tuning(None, here, None, config, 0.0)
    for window in range(72):
        while tuning.phase is TuningPhase.WISHING and tuning.wish is not None:
            here = granted(here, tuning.wish, window * 100)
            tuning = next_tuning(tuning, here, None, config, window * 100.0)
            least = min(least, here.cores)
        ranks = [_window(shown(job, here.cores), pod, here.cores, noise, rng) for pod in range(known or job.pods)]
        ranks = [replace(rank, work=None) if pod >= job.pods - hidden else rank for pod, rank in enumerate(ranks)]
        result = result_of_job(ranks, job.gpus * job.pods, most)
        tuning = next_tuning(tuning, here, result, config, window * 100.0)
    best = max(shown(job, cores).speed for cores in range(1, most + 1))
    cores = tuning.best_cores or here.cores
    outcome = tuning.found.outcome.value if isinstance(tuning.found, SearchResult) else ""
    return Tuned(
        start=shown(job, start).speed / best,
        speed=shown(job, cores).speed / best,
        cores=cores,
        least=least,
        outcome=outcome,
    )


def _window(seen: Shown, pod: int, cores: int, noise: float, rng: random.Random) -> WindowResult:
    looks = []
    for at_s in range(91):
        used = min(float(cores), seen.cpu_cores[pod] * (1 + noise * rng.gauss(0, 1)))
        share = min(1.0, seen.busy[pod] * (1 + noise * rng.gauss(0, 1)))
        throttled = seen.throttled[pod]
        looks.append(Look(float(at_s), share, is_at_limit(used, throttled, cores), used, throttled))
    return result_of_window(looks, TuningConfig().tuning)
