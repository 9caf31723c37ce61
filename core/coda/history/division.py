"""How nodes should be divided between the arrays, from what finished jobs used: the target, and the steps towards it.

The target is CODA's: the GPU array owns as many cores as tuned jobs used at once, at a high percentile, and the
sub-array of large jobs the GPUs that large jobs used. CODA takes the most that large jobs ever needed; a day of one
large job would then keep nodes for it for weeks, so their share of all use counts here. The percentile, the steps and
the slack are our choice.
Source: CODA (ICDCS 2020), multi-array scheduler.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from coda.history.cpu_jobs import CpuUse
from coda.history.record import FinishedJob
from coda.model.job import LARGE_GPUS

SPAN_S: Final = 7 * 86400.0
"""The past that counts: a week has its weekend."""

LEAST_JOBS: Final = 50
"""Fewer tuned jobs, or fewer jobs, say nothing yet."""

PERCENTILE: Final = 0.9
"""Of the time in which tuned jobs ran, weighted by their GPUs."""

EVERY_S: Final = 3600.0
"""Between two steps."""

CORES_STEP: Final = 0.5
CORES_SLACK: Final = 0.75
SHARE_STEP: Final = 0.05
SHARE_SLACK: Final = 0.08
"""A value moves by at most its step, and only if it is off by more than its slack. A slack is larger than its step, so
no step passes the target, and a target that trembles by less moves nothing."""


LEAST_WANTED: Final = 0.01
"""Cores go to the CPU array only if it wanted more than it owned, by so much of all that CPU jobs wanted: borrowed
cores, which it must give back, and waits for cores. Otherwise nobody gains by them. Our choice."""


class HeldSpan(NamedTuple):
    """What one finished job held without a break, as far as the past knows."""

    begin_s: float
    end_s: float
    gpus: int  # of the whole gang
    tuned_cores: int  # of the whole gang; 0: nobody looked for them
    category: str


class CategoryUse(NamedTuple):
    """What tuned jobs of one category used."""

    category: str
    jobs: int
    cores_per_gpu: float  # the mean, weighted by GPU-time


@dataclass(frozen=True, slots=True, kw_only=True)
class PastUse:
    """What jobs used in a span. None: too few jobs to tell."""

    jobs: int = 0
    tuned_jobs: int = 0
    cores_per_gpu: float | None = None  # of tuned jobs at once, the percentile
    large_share: float | None = None  # of GPU-time, held by jobs of four GPUs or more
    categories: tuple[CategoryUse, ...] = ()
    cpu_jobs: int = 0
    cpu_wanted_share: float | None = None  # of what CPU jobs wanted, what their own array did not give them


class Shares(NamedTuple):
    """A division: cores of a node per GPU that belong to the GPU array, and the part of the GPUs for large jobs."""

    cores_per_gpu: float
    large_share: float


class FollowedPast:
    """A division that follows what is added to it. It may take a step every `EVERY_S`."""

    def __init__(self, shares: Shares) -> None:
        self.shares = shares
        self._spans: list[HeldSpan] = []
        self._cpu: list[tuple[float, CpuUse]] = []  # when CPU jobs ended, and what they used
        self._due_s = EVERY_S

    def add(self, span: HeldSpan) -> None:
        """A job has ended."""
        self._spans.append(span)

    def add_cpu(self, ended_s: float, use: CpuUse) -> None:
        """CPU jobs have ended."""
        self._cpu.append((ended_s, use))

    def step(self, now_s: float) -> bool:
        """Take a step if it is time; True if the shares changed. O(jobs of the last week) if it is time."""
        if now_s < self._due_s:
            return False
        self._due_s = now_s + EVERY_S
        self._spans = [span for span in self._spans if span.end_s > now_s - SPAN_S]
        self._cpu = [(end_s, use) for end_s, use in self._cpu if end_s > now_s - SPAN_S]
        past = with_cpu_use(past_use(self._spans, now_s - SPAN_S, now_s), summed_use([use for _, use in self._cpu]))
        before, self.shares = self.shares, next_shares(self.shares, past)
        return self.shares != before


def held_span(job: FinishedJob) -> HeldSpan | None:
    """Return what the job held; None for one that never had its GPUs.

    It counts as if it had held them without a break until its end, as in `accounts`."""
    if job.held_s <= 0 or not job.gpus:
        return None
    cores = (job.cores_tuned or 0) * job.replicas
    return HeldSpan(job.ended_s - job.held_s, job.ended_s, job.gpus, cores, job.category)


def past_use(spans: Iterable[HeldSpan], from_s: float, to_s: float) -> PastUse:
    """Return what was used within [from_s, to_s). O(spans log spans)."""
    jobs = tuned_jobs = 0
    gpu_s = large_gpu_s = 0.0
    changes: list[tuple[float, int, int]] = []  # of tuned jobs: when, GPUs, cores
    by_category: dict[str, tuple[int, float, float]] = {}  # jobs, GPU-seconds, core-seconds
    for span in spans:
        begin_s, end_s = max(span.begin_s, from_s), min(span.end_s, to_s)
        if end_s <= begin_s:
            continue
        jobs += 1
        gpu_s += (end_s - begin_s) * span.gpus
        if span.gpus >= LARGE_GPUS:
            large_gpu_s += (end_s - begin_s) * span.gpus
        if span.tuned_cores:
            tuned_jobs += 1
            changes.append((begin_s, span.gpus, span.tuned_cores))
            changes.append((end_s, -span.gpus, -span.tuned_cores))
            known = by_category.get(span.category, (0, 0.0, 0.0))
            held_s = end_s - begin_s
            more = (known[0] + 1, known[1] + held_s * span.gpus, known[2] + held_s * span.tuned_cores)
            by_category[span.category] = more
    return PastUse(
        jobs=jobs,
        tuned_jobs=tuned_jobs,
        cores_per_gpu=_percentile(changes) if tuned_jobs >= LEAST_JOBS else None,
        large_share=large_gpu_s / gpu_s if jobs >= LEAST_JOBS else None,
        categories=tuple(
            [CategoryUse(name, count, cores / gpus) for name, (count, gpus, cores) in sorted(by_category.items())]
        ),
    )


def summed_use(uses: Iterable[CpuUse]) -> CpuUse:
    """Return what all of them used."""
    every = tuple(uses)
    return CpuUse(
        jobs=sum(use.jobs for use in every),
        core_s=sum(use.core_s for use in every),
        borrowed_core_s=sum(use.borrowed_core_s for use in every),
        lacked_core_s=sum(use.lacked_core_s for use in every),
    )


def with_cpu_use(past: PastUse, use: CpuUse) -> PastUse:
    """Return the past with what CPU jobs wanted in the same span. Below `LEAST_JOBS` of them it says nothing."""
    return replace(past, cpu_jobs=use.jobs, cpu_wanted_share=use.wanted_share if use.jobs >= LEAST_JOBS else None)


def next_shares(now: Shares, past: PastUse) -> Shares:
    """Return the division after one step towards what the past says; the same one if it is near enough, or unknown.

    The GPU array gives no cores away that CPU jobs are known not to want."""
    cores = past.cores_per_gpu
    if cores is not None and past.cpu_wanted_share is not None and past.cpu_wanted_share < LEAST_WANTED:
        cores = max(cores, now.cores_per_gpu)
    return Shares(
        _nearer(now.cores_per_gpu, cores, CORES_STEP, CORES_SLACK),
        _nearer(now.large_share, past.large_share, SHARE_STEP, SHARE_SLACK),
    )


def _nearer(now: float, target: float | None, step: float, slack: float) -> float:
    if target is None or abs(target - now) <= slack:
        return now
    return round(now + (step if target > now else -step), 6)


def _percentile(changes: list[tuple[float, int, int]]) -> float | None:
    """The cores per GPU that all jobs together had at most, for the percentile of the GPU-time."""
    changes.sort()
    levels: list[tuple[float, float]] = []  # cores per GPU, and for how many GPU-seconds
    since_s, gpus, cores = 0.0, 0, 0
    for at_s, more_gpus, more_cores in changes:
        if gpus and at_s > since_s:
            levels.append((cores / gpus, (at_s - since_s) * gpus))
        since_s, gpus, cores = at_s, gpus + more_gpus, cores + more_cores
    levels.sort()
    left = PERCENTILE * sum(weight for _, weight in levels)
    for level, weight in levels:
        left -= weight
        if left <= 0:
            return level
    return None
