"""Ten jobs that are queued at once on one server, two at a time: Xonar's experiment, on random jobs.

Xonar's jobs: 18 ms to 4.9 s active and 5 ms to 1.8 s idle per mini-batch, 100 of them, and two 32 GB GPUs; each job
uses both. How they are distributed between is not printed: log-uniform here. The memory's upper end is fitted, so that
15.2 % of random pairs do not fit; nothing else is."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from coda.errors import InvalidInput
from coda.sharing.config import GIB
from coda.sharing.pairing import GpuProfile, fits_together, partner_for
from coda.sharing.policies import Companions, SharingPolicy
from coda_sim.sharing.pair_speed import DEFAULT_MODEL, PairModel, unpaced_speed

MINI_BATCHES = 100
ACTIVE_S = (0.018, 4.9)
IDLE_S = (0.005, 1.8)
PEAK_GIB = (0.5, 21.9)
CARD_BYTES = 32 * GIB


@dataclass(frozen=True, slots=True, kw_only=True)
class SetOutcome:
    """What became of one set: seconds from submission to end of each job; pairs that were started, and that failed."""

    jcts_s: tuple[float, ...]
    pairs: int
    out_of_memory: int


@dataclass(slots=True)
class _Running:
    at: int
    left_s: float
    alone: bool = False  # failed beside another: has no neighbour any more


def random_set(rng: random.Random, jobs: int = 10) -> tuple[GpuProfile, ...]:
    """Return jobs as Xonar's: drawn from its ranges."""
    found = []
    for at in range(jobs):
        active_s, idle_s = _log_uniform(rng, ACTIVE_S), _log_uniform(rng, IDLE_S)
        peak = int(rng.uniform(*PEAK_GIB) * GIB)
        step_s = active_s + idle_s
        found.append(GpuProfile(key=f"job-{at}", duty=active_s / step_s, step_s=step_s, peak_bytes=peak))
    return tuple(found)


def run_set(jobs: Sequence[GpuProfile], policy: SharingPolicy, model: PairModel = DEFAULT_MODEL) -> SetOutcome:
    """Run the jobs under a policy. A pair that does not fit fails in its first mini-batch: both begin again, alone."""
    if policy.companions in (Companions.OPPORTUNISTIC, Companions.GAINING) or policy.has_tenants:
        raise InvalidInput("this policy divides a cluster between tenants or by load: a set has one server, no tenants")
    now_s, pairs, failed = 0.0, 0, 0
    queued = list(range(len(jobs)))
    running: list[_Running] = []
    ends_s = [0.0] * len(jobs)
    lonely: set[int] = set()
    while queued or running:
        at = _next(jobs, queued, running, policy, lonely)
        while at is not None:
            queued.remove(at)
            running.append(_Running(at=at, left_s=MINI_BATCHES * jobs[at].step_s, alone=at in lonely))
            pairs += len(running) == 2
            at = _next(jobs, queued, running, policy, lonely)
        profiles = [jobs[one.at] for one in running]
        if len(running) == 2 and not fits_together(profiles, CARD_BYTES):
            failed += 1
            now_s += jobs[running[1].at].step_s
            lonely |= {one.at for one in running}
            queued[:0] = [one.at for one in running]
            running = []
            continue
        speeds = [unpaced_speed(jobs[one.at], [p for p in profiles if p is not jobs[one.at]], model) for one in running]
        passed_s = min(one.left_s / speed for one, speed in zip(running, speeds, strict=True))
        now_s += passed_s
        for one, speed in zip(running, speeds, strict=True):
            one.left_s -= passed_s * speed
        for one in [one for one in running if one.left_s <= 1e-9]:
            ends_s[one.at] = now_s
            running.remove(one)
    return SetOutcome(jcts_s=tuple(ends_s), pairs=pairs, out_of_memory=failed)


def _next(
    jobs: Sequence[GpuProfile],
    queued: Sequence[int],
    running: Sequence[_Running],
    policy: SharingPolicy,
    lonely: set[int],
) -> int | None:
    """The queued job that starts now: the first if nothing runs, else a partner for the one that does."""
    if not queued or not running:
        return queued[0] if queued else None
    may = [at for at in queued if at not in lonely]
    if len(running) == 2 or running[0].alone or policy.companions is Companions.NOBODY or not may:
        return None
    if policy.companions is Companions.ANYBODY:
        return may[0]
    partner = partner_for(jobs[running[0].at], [jobs[at] for at in may], CARD_BYTES, policy.score)
    return None if partner is None else may[partner]


def _log_uniform(rng: random.Random, bounds: tuple[float, float]) -> float:
    return math.exp(rng.uniform(math.log(bounds[0]), math.log(bounds[1])))
