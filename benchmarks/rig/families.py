"""Families of small traces that were made to hurt Coda's policies, one function each; `FAMILIES` has all by name.

The first line of a family says what is hard about it. Submissions are drawn from 0 to 1 where the family has a load,
and stretched until the work of all jobs is so large a part of the cluster. The same seed gives the same trace.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from types import MappingProxyType
from typing import Final

from coda_sim.traces.trace import COLUMNS
from coda_sim.workload.tenant_tree import SHARES

DAY_S: Final = 86_400
HOUR_S: Final = 3_600


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A row of a trace. `gpus` and `cores` are of all its nodes together; no GPUs: a CPU job."""

    submit_s: float
    user: str
    run_s: float
    gpus: int
    cores: int
    nodes: int

    @property
    def gpu_s(self) -> float:
        return self.run_s * self.gpus


def _users(count: int, before: str = "u", after: str = "") -> Callable[[Random], str]:
    return lambda draw: f"{before}{draw.randrange(count)}{after}"


def _lognormal(median_s: float, sigma: float, most_s: float = 5 * DAY_S) -> Callable[[Random], float]:
    return lambda draw: min(most_s, draw.lognormvariate(math.log(median_s), sigma))


def _between(low_s: float, high_s: float, unit_s: float = 1) -> Callable[[Random], float]:
    return lambda draw: draw.uniform(low_s, high_s) * unit_s


def _each(cores: int) -> Callable[[Random, int], int]:
    return lambda _draw, gpus: cores * gpus


def _alike(cores: int) -> Callable[[Random, int], int]:
    return lambda _draw, _gpus: cores


def _one_of(*cores: int) -> Callable[[Random, int], int]:
    return lambda draw, _gpus: draw.choice(cores)


@dataclass(frozen=True, slots=True, kw_only=True)
class Crowd:
    """Jobs with the same distributions. Of each job, all is drawn in this order; cores and nodes know its GPUs."""

    jobs: int
    submit_s: Callable[[Random], float] = Random.random
    user: Callable[[Random], str] = field(default_factory=lambda: _users(8))
    run_s: Callable[[Random], float]
    gpus: tuple[int, ...] = (0,)  # each as likely as the others
    cores: Callable[[Random, int], int]
    nodes: Callable[[int], int] = lambda _gpus: 1

    def drawn(self, draw: Random) -> list[Job]:
        """Return the jobs."""
        return [self._job(draw) for _ in range(self.jobs)]

    def _job(self, draw: Random) -> Job:
        submit_s, user, run_s = self.submit_s(draw), self.user(draw), self.run_s(draw)
        gpus = draw.choice(self.gpus) if len(self.gpus) > 1 else self.gpus[0]
        cores = self.cores(draw, gpus)
        return Job(submit_s=submit_s, user=user, run_s=run_s, gpus=gpus, cores=cores, nodes=self.nodes(gpus))


def _loaded(jobs: list[Job], gpus: int, load: float) -> list[Job]:
    """Stretch the submissions so that the work of all jobs is `load` times what so many GPUs do meanwhile."""
    span_s = sum(job.gpu_s for job in jobs) / (gpus * load)
    last = max(job.submit_s for job in jobs)
    return [replace(job, submit_s=job.submit_s * span_s / last) for job in jobs]


def burst(draw: Random) -> list[Job]:
    """After four quiet days 300 jobs come within hours: whoever slices time then keeps all of them waiting."""
    quiet = Crowd(
        jobs=250, submit_s=_between(0, 4 * DAY_S), run_s=_lognormal(1800, 1.5), gpus=(1, 1, 1, 2, 4), cores=_alike(4)
    )
    crowd = Crowd(
        jobs=300,
        submit_s=lambda draw: 4 * DAY_S + draw.expovariate(1 / 7200),
        user=_users(14),
        run_s=_lognormal(5400, 1.2),
        gpus=(1, 1, 2, 4, 8),
        cores=_one_of(4, 8),
    )
    return quiet.drawn(draw) + crowd.drawn(draw)


def debuggangs(draw: Random) -> list[Job]:
    """Gangs of two and four whole nodes among hundreds of jobs of minutes, each of which breaks a node up."""
    short = Crowd(jobs=700, run_s=_between(20, 600), gpus=(1,), cores=_alike(2))
    pairs = Crowd(
        jobs=30,
        user=_users(4, after="g"),
        run_s=_between(6, 48, HOUR_S),
        gpus=(16,),
        cores=_alike(64),
        nodes=lambda _gpus: 2,
    )
    fours = Crowd(
        jobs=6,
        user=lambda _draw: "u9g",
        run_s=_between(6, 30, HOUR_S),
        gpus=(32,),
        cores=_alike(128),
        nodes=lambda _gpus: 4,
    )
    return _loaded(short.drawn(draw) + pairs.drawn(draw) + fours.drawn(draw), gpus=64, load=0.9)


def odd8(draw: Random) -> list[Job]:
    """Jobs of 3, 5, 6 and 7 GPUs on nodes with 8: what is left of a node fits few others."""
    jobs = Crowd(jobs=500, run_s=_lognormal(3600, 1.4), gpus=(3, 3, 5, 6, 7, 1, 2), cores=_each(3))
    return _loaded(jobs.drawn(draw), gpus=48, load=0.9)


def odd4(draw: Random) -> list[Job]:
    """Odd sizes on nodes with 4 GPUs, and gangs with one GPU on each of 5 or 7 nodes."""
    small = Crowd(jobs=400, run_s=_lognormal(3600, 1.4), gpus=(3, 3, 1, 2, 4, 1), cores=_each(3))
    large = Crowd(
        jobs=120,
        run_s=_lognormal(3600, 1.4),
        gpus=(5, 6, 7, 12),
        cores=_each(2),
        nodes=lambda gpus: gpus if gpus in (5, 7) else gpus // 3,
    )
    return _loaded(small.drawn(draw) + large.drawn(draw), gpus=48, load=0.9)


def four(draw: Random) -> list[Job]:
    """Four nodes at full load, and neither user nor size says anything about a run time: estimates are noise."""
    jobs = Crowd(jobs=500, run_s=_lognormal(2400, 1.6), gpus=(1, 1, 1, 2, 2, 4, 8), cores=_one_of(2, 4, 8))
    return _loaded(jobs.drawn(draw), gpus=32, load=1.0)


def onebig(draw: Random) -> list[Job]:
    """Jobs of 10 to 16 GPUs that one node alone can hold, which small jobs fill as well."""
    small = Crowd(jobs=400, run_s=_lognormal(2400, 1.6), gpus=(1, 1, 1, 2, 2, 4, 4, 8), cores=_each(3))
    large = Crowd(jobs=30, user=lambda _draw: "big", run_s=_lognormal(7200, 1.0), gpus=(12, 16, 10), cores=_each(4))
    return _loaded(small.drawn(draw) + large.drawn(draw), gpus=40, load=0.9)


def allcpu(draw: Random) -> list[Job]:
    """CPU jobs alone: most of them can only borrow, and no training job ever comes."""
    jobs = Crowd(jobs=900, run_s=_lognormal(2400, 1.4, DAY_S), cores=_one_of(1, 2, 4, 8, 16)).drawn(draw)
    span_s = sum(job.run_s * job.cores for job in jobs) / (288 * 0.95)
    return [replace(job, submit_s=job.submit_s * span_s) for job in jobs]


def cpuwhole(draw: Random) -> list[Job]:
    """CPU jobs that ask for all cores of a node, beside training that uses 60 % of the GPUs."""
    training = Crowd(jobs=350, run_s=_lognormal(3600, 1.3), gpus=(1, 1, 2, 4), cores=_alike(4))
    jobs = _loaded(training.drawn(draw), gpus=48, load=0.6)
    span_s = max(job.submit_s for job in jobs)
    whole_nodes = Crowd(
        jobs=int(span_s * 6 * 0.25 / (3000 * 1.65)),
        submit_s=_between(0, span_s),
        user=_users(3, "cu"),
        run_s=_lognormal(3000, 1.0),
        cores=_alike(48),
    )
    small = replace(whole_nodes, jobs=100, run_s=_lognormal(1200, 1.0), cores=_alike(4))
    return jobs + whole_nodes.drawn(draw) + small.drawn(draw)


def sweep(draw: Random) -> list[Job]:
    """Four users submit 200 nearly equal jobs at once, each for all GPUs many times over."""
    jobs = []
    for number in range(4):
        first_s, run_s = draw.uniform(0, DAY_S * 2), draw.choice((1200, 3000, 5400, 9000))
        jobs += [
            Job(
                submit_s=first_s + nth * 2,
                user=f"s{number}",
                run_s=run_s * draw.uniform(0.95, 1.05),
                gpus=1,
                cores=4,
                nodes=1,
            )
            for nth in range(200)
        ]
    others = Crowd(
        jobs=120, submit_s=_between(0, DAY_S * 2.2), run_s=_lognormal(2400, 1.3), gpus=(1, 2, 4, 8), cores=_alike(8)
    )
    return jobs + others.drawn(draw)


def whole(draw: Random) -> list[Job]:
    """Each morning a gang wants five of the six nodes whole, while small jobs fill 60 % of them."""
    small = Crowd(
        jobs=700, submit_s=_between(0, 7 * DAY_S), run_s=_lognormal(3600, 1.5), gpus=(1, 1, 2, 4), cores=_alike(4)
    ).drawn(draw)
    stretch = sum(job.gpu_s for job in small) / (48 * 7 * DAY_S) / 0.6
    jobs = [replace(job, submit_s=job.submit_s * stretch) for job in small]
    for day in range(7):
        submit_s = stretch * DAY_S * day + 9 * HOUR_S * draw.random()
        run_s = draw.uniform(1, 3) * HOUR_S
        jobs.append(Job(submit_s=submit_s, user="giant", run_s=run_s, gpus=40, cores=160, nodes=5))
    return jobs


def cores(draw: Random) -> list[Job]:
    """Jobs with one GPU that ask for 16 to 32 cores, as many as their node has: GPUs stay idle for lack of cores."""
    jobs = Crowd(
        jobs=500,
        run_s=_lognormal(3600, 1.3),
        gpus=(1, 1, 2, 4),
        cores=lambda draw, gpus: draw.choice((1, 1, gpus, 24, 32, 16)),
    )
    return _loaded(jobs.drawn(draw), gpus=48, load=0.8)


def flood(draw: Random) -> list[Job]:
    """One virtual cluster submits two thirds of all jobs, and four others want their turn."""
    many = Crowd(jobs=400, user=lambda _draw: "vc-flood", run_s=_lognormal(3600, 1.0), gpus=(1, 1, 2), cores=_alike(4))
    others = Crowd(jobs=200, user=_users(4, "vc-"), run_s=_lognormal(3600, 1.5), gpus=(1, 1, 2, 4, 8), cores=_alike(4))
    return _loaded(many.drawn(draw) + others.drawn(draw), gpus=48, load=1.0)


def week(draw: Random) -> list[Job]:
    """Two weeks of working hours: queues by day, empty nights and week-ends, and long jobs that stay over both."""
    alike = Crowd(
        jobs=1,
        submit_s=lambda _draw: 0.0,
        user=_users(12),
        run_s=_lognormal(3000, 1.7, 3 * DAY_S),
        gpus=(1, 1, 1, 2, 4, 8),
        cores=_each(3),
    )
    jobs: list[Job] = []
    while len(jobs) < 900:
        submit_s = draw.uniform(0, 14 * DAY_S)
        hour, day = submit_s / HOUR_S % 24, int(submit_s // DAY_S) % 7
        by_day = math.sin((hour - 8) / 12 * math.pi) if 8 < hour < 20 else 0.02
        if draw.random() < (0.15 if day > 4 else 1) * max(0.02, by_day):
            jobs += [replace(job, submit_s=submit_s) for job in alike.drawn(draw)]
    return jobs


def heavytail(draw: Random) -> list[Job]:
    """Run times follow a power law without a mean: the longer a job has run, the longer it goes on."""
    jobs = Crowd(
        jobs=900,
        user=_users(3),
        run_s=lambda draw: min(4 * DAY_S, 60 * (draw.random() ** (-1 / 0.6))),
        gpus=(1, 1, 2, 4, 8),
        cores=_each(4),
    )
    return _loaded(jobs.drawn(draw), gpus=48, load=0.9)


def mid12(draw: Random) -> list[Job]:
    """All jobs run for 0.6 to 2.5 hours, at a load of 1.2: each stop for a shorter job makes both late."""
    jobs = Crowd(jobs=400, user=_users(4), run_s=_between(0.6, 2.5, HOUR_S), gpus=(1, 2, 4, 8), cores=_each(4))
    return _loaded(jobs.drawn(draw), gpus=32, load=1.2)


def tenmin(draw: Random) -> list[Job]:
    """4 and 8 GPUs for 20 to 70 minutes: the slice ends early, and whoever stops then is late for nothing."""
    jobs = Crowd(jobs=600, user=_users(6), run_s=_between(1200, 4200), gpus=(4, 8), cores=_each(4))
    return _loaded(jobs.drawn(draw), gpus=48, load=1.0)


def equal(draw: Random) -> list[Job]:
    """All jobs run for an hour and a half: arrival order is best, and any stop is for nothing."""
    jobs = Crowd(jobs=400, user=_users(4), run_s=lambda _draw: 5400, gpus=(1, 2, 4, 8), cores=_each(4))
    return _loaded(jobs.drawn(draw), gpus=32, load=1.0)


def gangs(draw: Random) -> list[Job]:
    """Only gangs of one to four whole nodes, on eight nodes: their order is all that a policy can choose."""
    jobs = Crowd(
        jobs=250,
        user=_users(6),
        run_s=_lognormal(5400, 1.0),
        gpus=(4, 8, 12, 16),
        cores=_each(3),
        nodes=lambda gpus: gpus // 4,
    )
    return _loaded(jobs.drawn(draw), gpus=32, load=0.8)


def bimodal(draw: Random) -> list[Job]:
    """Jobs of minutes beside jobs of a day, of all sizes: large long ones before small short ones is wrong."""
    jobs = Crowd(
        jobs=400,
        user=_users(3),
        run_s=lambda draw: draw.choice((60, 120, 300, 40_000, 80_000)),
        gpus=(1, 1, 2, 4),
        cores=_each(3),
    )
    return _loaded(jobs.drawn(draw), gpus=32, load=0.9)


def cpumix(draw: Random) -> list[Job]:
    """CPU jobs where the GPU array owns every core (4 per GPU): all of them borrow, and begin again when stopped."""
    training = Crowd(jobs=350, run_s=_lognormal(3600, 1.3), gpus=(1, 1, 2, 4), cores=_each(2))
    jobs = _loaded(training.drawn(draw), gpus=48, load=0.75)
    span_s = max(job.submit_s for job in jobs)
    others = Crowd(
        jobs=int(span_s * 192 * 0.4 / (HOUR_S * 2.5 * 6)),
        submit_s=_between(0, span_s),
        user=_users(4, "cu"),
        run_s=_lognormal(3600, 1.5, DAY_S),
        cores=_one_of(1, 2, 4, 8, 16),
    )
    return jobs + others.drawn(draw)[:2000]


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Traces of one kind, and what they run on. `tenants`: as `coda simulate --tenants`."""

    jobs: Callable[[Random], list[Job]]
    cluster: str
    tenants: str = ""

    def trace(self, seed: int) -> list[Job]:
        """Return the jobs of one seed, in order of submission."""
        return sorted(self.jobs(Random(f"{self.jobs.__name__}-{seed}")), key=lambda job: job.submit_s)


FAMILIES: Final[Mapping[str, Family]] = MappingProxyType(
    {
        "burst": Family(jobs=burst, cluster="4x8x48"),
        "debuggangs": Family(jobs=debuggangs, cluster="8x8x64"),
        "odd8": Family(jobs=odd8, cluster="6x8x32"),
        "odd4": Family(jobs=odd4, cluster="12x4x28"),
        "four": Family(jobs=four, cluster="4x8x32"),
        "onebig": Family(jobs=onebig, cluster="1x16x96,6x4x32"),
        "allcpu": Family(jobs=allcpu, cluster="6x8x48"),
        "cpuwhole": Family(jobs=cpuwhole, cluster="6x8x48"),
        "sweep": Family(jobs=sweep, cluster="6x8x48"),
        "whole": Family(jobs=whole, cluster="6x8x48"),
        "cores": Family(jobs=cores, cluster="6x8x32"),
        "flood": Family(jobs=flood, cluster="6x8x48", tenants=SHARES),
        "flood0": Family(jobs=flood, cluster="6x8x48"),
        "week": Family(jobs=week, cluster="6x8x48"),
        "heavytail": Family(jobs=heavytail, cluster="6x8x48"),
        "mid12": Family(jobs=mid12, cluster="4x8x48"),
        "tenmin": Family(jobs=tenmin, cluster="6x8x48"),
        "equal": Family(jobs=equal, cluster="4x8x48"),
        "gangs": Family(jobs=gangs, cluster="8x4x28"),
        "bimodal": Family(jobs=bimodal, cluster="4x8x48"),
        "cpumix": Family(jobs=cpumix, cluster="6x8x32"),
    }
)


def write_trace(jobs: Iterable[Job], path: Path) -> None:
    """Write the jobs in the common schema, with 2 GiB of memory for each core."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        for number, job in enumerate(jobs):
            writer.writerow(
                {
                    "job_id": f"j-{number:05d}",
                    "user": job.user,
                    "virtual_cluster": job.user if job.user.startswith("vc") else "vc",
                    "submit_s": int(job.submit_s),
                    "duration_s": max(1, int(job.run_s)),
                    "gpus": job.gpus,
                    "cpus": job.cores,
                    "memory_gib": max(1, job.cores * 2),
                    "nodes_requested": job.nodes,
                    "status": "passed",
                    "kind": "gpu" if job.gpus else "cpu",
                }
            )
