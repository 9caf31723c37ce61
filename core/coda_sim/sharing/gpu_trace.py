"""The jobs of a sharing study on a cluster, generated as AntMan's trace."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from coda.errors import require
from coda.sharing.pairing import GpuProfile
from coda_sim.sharing.model_table import MIX, PROFILES

GUARANTEED_TENANT, OTHER_TENANT = "a", "b"


@dataclass(frozen=True, slots=True, kw_only=True)
class SharingJob:
    """One job. `work_s`: its run time alone on its GPUs. `tenant`: "a" has the whole quota, "b" none."""

    uid: str
    tenant: str
    gpus: int
    submit_s: float
    work_s: float
    profile: GpuProfile


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuTraceConfig:
    """The generated trace. Raises InvalidInput for values out of range.

    Run times are as in Microsoft's traces (Philly): lognormal, cut at both ends. `load`: GPU time that is asked for per
    GPU time there is while jobs come. AntMan's is not printed, and its criterion (preemptive YARN preempts 46 % of
    jobs) is met by no load here: the default makes 0.67 stops per job with seed 1."""

    jobs: int = 1000
    cluster_gpus: int = 64
    load: float = 1.3
    median_s: float = 1800.0
    sigma: float = 1.6
    shortest_s: float = 120.0
    longest_s: float = 2 * 86_400.0
    gpus: tuple[tuple[int, float], ...] = ((1, 0.56), (2, 0.16), (4, 0.21), (8, 0.07))

    def __post_init__(self) -> None:
        require(self.jobs >= 1, "jobs must be at least 1", self.jobs)
        require(self.load > 0, "load must be above 0", self.load)
        require(0 < self.shortest_s <= self.median_s <= self.longest_s, "run times out of order", self.median_s)


def generated_jobs(config: GpuTraceConfig, seed: int) -> tuple[SharingJob, ...]:
    """Return AntMan's trace: arrivals at random (Poisson), tenants and models at random. Same seed, same jobs."""
    rng = random.Random(seed)
    counts, weights = [count for count, _ in config.gpus], [weight for _, weight in config.gpus]
    drawn = []
    for at in range(config.jobs):
        run_s = min(config.longest_s, max(config.shortest_s, config.median_s * math.exp(rng.gauss(0, config.sigma))))
        gpus = rng.choices(counts, weights)[0]
        drawn.append((at, run_s, gpus, rng.choice((GUARANTEED_TENANT, OTHER_TENANT)), _model(rng)))
    span_s = sum(run_s * gpus for _, run_s, gpus, _, _ in drawn) / config.load / config.cluster_gpus
    submits = sorted(rng.uniform(0, span_s) for _ in drawn)
    return tuple(
        SharingJob(uid=f"job-{at:05}", tenant=tenant, gpus=gpus, submit_s=submit_s, work_s=run_s, profile=profile)
        for submit_s, (at, run_s, gpus, tenant, profile) in zip(submits, drawn, strict=True)
    )


def _model(rng: random.Random) -> GpuProfile:
    return PROFILES[rng.choice(rng.choice(MIX))]
