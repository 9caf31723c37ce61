"""`coda-month`: a generated month with the figures of CODA's trace, as rows like those of a trace file.

All draws come from one seed with Python's own generator; times are rounded to milliseconds and run times to seconds. So
the same seed gives the same jobs on every machine. GPU and CPU jobs have a generator each: a change of one kind's
numbers does not change the jobs of the other kind.
"""

from __future__ import annotations

import math
import random
from bisect import bisect
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import accumulate
from typing import NamedTuple

from coda_sim.traces.trace import JobKind, RecordedStatus, Row
from coda_sim.workload.month_config import DAY_S, HOUR_S, STANDING_USER, Arrivals, CoresReading, Mix, MonthConfig

_SATURDAY = 5


class _Draft(NamedTuple):
    """A job that has no number yet."""

    submit_s: float
    user: int  # from 1
    duration_s: float
    gpus: int
    cpus: int
    nodes: int


class _Draws:
    """Draws one of the values of a mix by its share, from one uniform number."""

    def __init__(self, mix: Iterable[tuple[int, float]]) -> None:
        self._values, shares = zip(*mix, strict=True)
        self._sums = list(accumulate(shares))

    def __call__(self, uniform: float) -> int:
        return int(self._values[min(bisect(self._sums, uniform * self._sums[-1]), len(self._values) - 1)])


def coda_month(config: MonthConfig | None = None, *, seed: int) -> tuple[Row, ...]:
    """Return exactly `gpu_jobs` + `cpu_jobs` rows by (submit_s, kind), ids from `cm-1`; `line` is the row's number.

    `standing_jobs` more rows come first, ids from `standing-1`; the others are the same without them. Run times are
    those at the requested cores. `job_models` draws the models. 10 us per job."""
    config = config or MonthConfig()
    gpu = _gpu_jobs(config, random.Random(f"coda-month {seed} gpu"))
    cpu = _cpu_jobs(config, random.Random(f"coda-month {seed} cpu"))
    drafts = sorted([*gpu, *cpu], key=lambda draft: draft.submit_s)
    tenants = _tenants(config)
    return (
        *_standing(config),
        *(_row(number, draft, tenants[draft.user]) for number, draft in enumerate(drafts, 1)),
    )


def _standing(config: MonthConfig) -> Iterator[Row]:
    """The CPU jobs that run for the whole month."""
    draft = _Draft(submit_s=0.0, user=1, duration_s=config.days * DAY_S, gpus=0, cpus=config.standing_cores, nodes=1)
    for number in range(1, config.standing_jobs + 1):
        yield replace(_row(number, draft, STANDING_USER), job_id=f"standing-{number}", user=STANDING_USER)


def _gpu_jobs(config: MonthConfig, draw: random.Random) -> Iterator[_Draft]:
    user_of = _Draws(_mixed_users(config))
    gpus_of = _Draws(config.gpus)
    cores_of = {gpus: _Draws(cores_shares(config, gpus).items()) for gpus, _ in config.gpus}
    several = sum(share for gpus, share in config.gpus if gpus > 1)
    two_nodes_share = config.two_nodes_share / several if several else 0.0
    for submit_s, uniform in _arrivals(config, config.gpu_arrivals, config.gpu_jobs, draw):
        gpus = gpus_of(draw.random())
        yield _Draft(
            submit_s=submit_s,
            user=user_of(uniform),
            duration_s=_gpu_run_time_s(config, draw),
            gpus=gpus,
            cpus=cores_of[gpus](draw.random()),
            nodes=2 if gpus > 1 and draw.random() < two_nodes_share else 1,
        )


def _cpu_jobs(config: MonthConfig, draw: random.Random) -> Iterator[_Draft]:
    user_of = _Draws(_cpu_users(config))
    cores_of = _Draws(config.cpu_cores)
    location = math.log(config.cpu_median_s)
    for submit_s, uniform in _arrivals(config, config.cpu_arrivals, config.cpu_jobs, draw):
        duration_s = min(draw.lognormvariate(location, config.cpu_sigma), config.cpu_most_s)
        yield _Draft(
            submit_s=submit_s,
            user=user_of(uniform),
            duration_s=max(1.0, float(round(duration_s))),
            gpus=0,
            cpus=cores_of(draw.random()),
            nodes=1,
        )


def _arrivals(config: MonthConfig, arrivals: Arrivals, jobs: int, draw: random.Random) -> Iterator[tuple[float, float]]:
    """Time and user (as a uniform number) of exactly `jobs` jobs, unsorted; the last batch may be cut."""
    day_of = _Draws((day, arrivals.weekend_weight if _is_weekend(config, day) else 1.0) for day in range(config.days))
    left = jobs
    while left > 0:
        size = draw.randint(*arrivals.batch_jobs) if draw.random() < arrivals.batch_share else 1
        moment_s = round(day_of(draw.random()) * DAY_S + _second_of_day(arrivals, draw), 3)
        user = draw.random()
        for _ in range(min(size, left)):
            yield moment_s, user
        left -= size


def _is_weekend(config: MonthConfig, day: int) -> bool:
    return (config.first_weekday + day) % 7 >= _SATURDAY


def _second_of_day(arrivals: Arrivals, draw: random.Random) -> float:
    """By rejection: draw until a value is under the day's curve."""
    highest = 1 + arrivals.amplitude
    while True:
        second = draw.random() * DAY_S
        angle = 2 * math.pi * (second - arrivals.peak_hour * HOUR_S) / DAY_S
        if draw.random() * highest < 1 + arrivals.amplitude * math.cos(angle):
            return second


def _gpu_run_time_s(config: MonthConfig, draw: random.Random) -> float:
    which, uniform = draw.random(), draw.random()
    if which < config.hour_share:
        seconds = config.hour_from_s * (HOUR_S / config.hour_from_s) ** uniform
    elif which < config.hour_share + config.two_hours_share:
        seconds = HOUR_S * 2**uniform
    else:
        seconds = _pareto(2 * HOUR_S, config.tail_to_s, config.tail_alpha, uniform)
    return float(round(seconds))


def _pareto(low: float, high: float, alpha: float, uniform: float) -> float:
    """The value below which a share `uniform` of a Pareto distribution on [low, high] is."""
    left = 1 - uniform * (1 - math.pow(low / high, alpha))
    return low / math.pow(left, 1 / alpha)


def cores_shares(config: MonthConfig, gpus: int) -> dict[int, float]:
    """Return the share, by total cores, of the jobs with `gpus` GPUs."""
    per = gpus if config.cores_reading is CoresReading.PER_GPU else 1
    low, high = config.some_cores
    rest = 1 - config.few_cores_share - config.many_cores_share
    wanted = [
        (per, config.few_cores_share * config.one_core_share),
        (2 * per, config.few_cores_share * (1 - config.one_core_share)),
        *((cores, rest / (high - low + 1)) for cores in range(low, high + 1)),
        *((cores, config.many_cores_share * share) for cores, share in config.many_cores),
    ]
    shares: dict[int, float] = {}
    for cores, share in wanted:
        cores = min(cores, config.most_cores)
        shares[cores] = shares.get(cores, 0.0) + share
    return shares


def _mixed_users(config: MonthConfig) -> Mix:
    """The users who submit both kinds; the first ones submit most."""
    weights = [1 / rank**config.user_exponent for rank in range(1, config.mixed_users + 1)]
    return tuple((user, weight / sum(weights)) for user, weight in enumerate(weights, 1))


def _cpu_users(config: MonthConfig) -> Mix:
    """The users by their share of the CPU jobs; users of CPU jobs only come last, with equal shares."""
    if not config.cpu_only_users:
        return _mixed_users(config)
    each = config.cpu_only_users_share / config.cpu_only_users
    mixed = tuple((user, share * (1 - config.cpu_only_users_share)) for user, share in _mixed_users(config))
    return (*mixed, *((config.mixed_users + number, each) for number in range(1, config.cpu_only_users + 1)))


def _tenants(config: MonthConfig) -> dict[int, str]:
    """The virtual cluster by user: the lab's users first, then the companies in turn."""
    users = range(1, config.mixed_users + config.cpu_only_users + 1)
    return {
        user: "lab" if user <= config.lab_users else f"company-{(user - config.lab_users - 1) % config.companies + 1}"
        for user in users
    }


def _row(number: int, draft: _Draft, tenant: str) -> Row:
    return Row(
        line=number,
        job_id=f"cm-{number}",
        user=f"user-{draft.user:02d}",
        virtual_cluster=tenant,
        submit_s=draft.submit_s,
        duration_s=draft.duration_s,
        gpus=draft.gpus,
        cpus=float(draft.cpus),
        memory_gib=None,
        nodes_requested=draft.nodes,
        status=RecordedStatus.PASSED,
        kind=JobKind.GPU if draft.gpus else JobKind.CPU,
    )
