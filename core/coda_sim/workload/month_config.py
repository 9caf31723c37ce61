"""Every number of the generated month, with its origin: a workload with CODA's figures, which no public trace has.

The text of CODA (ICDCS 2020, sections III and VI) gives shares and quantiles. The open numbers were chosen within them,
so that arrival order with skipping gives CODA's FIFO figures on its cluster.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import Enum
from typing import Annotated

from coda.errors import InvalidInput
from coda_sim.workload.cluster_shape import ClusterShape, shape_from_text
from coda_sim.workload.provenance import Origin, Provenance

HOUR_S = 3600.0
DAY_S = 86_400.0
STANDING_USER = "standing"
"""The user of the month's standing CPU jobs."""

A, D, M, T = Provenance.ASSUMED, Provenance.DERIVED, Provenance.MEASURED, Provenance.TEXT

Mix = tuple[tuple[int, float], ...]
"""Value and share; the shares sum to 1."""


class CoresReading(Enum):
    """How to read the text's "1 or 2 cores": section VI says per GPU, section III does not say."""

    PER_GPU = "per GPU"
    PER_JOB = "per job"


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """When jobs of one kind arrive: `1 + amplitude * cos` over the day, fewer at weekends, some in batches."""

    amplitude: Annotated[float, Origin(A, "of GPU jobs, which are less diurnal than CPU jobs (T)")] = 0.77
    peak_hour: Annotated[float, Origin(A, "hour of the day with most arrivals")] = 15.0
    weekend_weight: Annotated[float, Origin(A, "arrivals of a Saturday or Sunday against a weekday's")] = 0.4
    batch_share: Annotated[float, Origin(A, "of the arrivals; a batch has one user and one moment")] = 0.02
    batch_jobs: Annotated[tuple[int, int], Origin(A, "jobs of a batch, from and to, equally likely")] = (2, 6)

    def __post_init__(self) -> None:
        fewest, most = self.batch_jobs
        if not (0 <= self.amplitude <= 1 and 0 <= self.weekend_weight <= 1 and 0 <= self.batch_share <= 1):
            raise InvalidInput("arrivals: amplitude, weekend_weight and batch_share must be 0 to 1")
        if not 1 <= fewest <= most:
            raise InvalidInput(f"arrivals: batch_jobs {self.batch_jobs} must be two counts, the smaller first")


@dataclass(frozen=True, slots=True, kw_only=True)
class MonthConfig:
    """The numbers behind `coda_month`. Shares are 0..1. Raises InvalidInput for shares that do not sum to 1."""

    days: Annotated[int, Origin(T, "one month")] = 30
    first_weekday: Annotated[int, Origin(A, "weekday of the first day, 0 = Monday")] = 0
    gpu_jobs: Annotated[int, Origin(T, "of the trace's 100 000")] = 25_000
    cpu_jobs: Annotated[int, Origin(T, "of the trace's 100 000")] = 75_000
    cluster: Annotated[str, Origin(A, "one way to have 400 GPUs on 80 nodes of 28 cores (T)")] = "20x8x28,60x4x28"

    mixed_users: Annotated[int, Origin(A, "users 1-14; that 15-20 submit CPU jobs only is T")] = 14
    cpu_only_users: Annotated[int, Origin(T, "users 15-20, Figure 12's caption")] = 6
    user_exponent: Annotated[float, Origin(M, "Zipf exponent of GPU jobs by user, Helios Venus")] = 0.63
    cpu_only_users_share: Annotated[float, Origin(A, "of CPU jobs; the companies contribute most (T)")] = 0.7
    lab_users: Annotated[int, Origin(A, "users 1-10; the lab contributes most GPU jobs (T)")] = 10
    companies: Annotated[int, Origin(T, "four AI companies and one lab")] = 4

    cores_reading: Annotated[CoresReading, Origin(A, "of the few cores; the text says both")] = CoresReading.PER_GPU
    few_cores_share: Annotated[float, Origin(T, "of GPU jobs: 1 or 2 cores")] = 0.761
    one_core_share: Annotated[float, Origin(A, "of those: 1 core")] = 0.15
    many_cores_share: Annotated[float, Origin(T, "of GPU jobs: more than 10 cores; the rest are 8.6 %")] = 0.153
    some_cores: Annotated[tuple[int, int], Origin(D, "cores of the rest, per job; equally likely is A")] = (3, 10)
    many_cores: Annotated[Mix, Origin(A, "per job")] = ((12, 0.5), (14, 0.2), (16, 0.2), (20, 0.1))
    most_cores: Annotated[int, Origin(T, "cores of a node, which no request exceeds")] = 28
    gpus: Annotated[Mix, Origin(A, "GPUs per job")] = ((1, 0.56), (2, 0.16), (4, 0.21), (8, 0.07))
    two_nodes_share: Annotated[float, Origin(A, "of GPU jobs, all of 2 GPUs or more: ask for two nodes")] = 0.0

    hour_share: Annotated[float, Origin(D, "of GPU jobs: run up to 1 h")] = 0.315
    hour_from_s: Annotated[float, Origin(A, "the shortest; log-uniform from here to 1 h")] = 120.0
    two_hours_share: Annotated[float, Origin(D, "of GPU jobs: run 1-2 h, log-uniform (A); 39.6 % longer")] = 0.289
    tail_alpha: Annotated[float, Origin(A, "Pareto from 2 h, drawn again above `tail_to_s`")] = 0.72
    tail_to_s: Annotated[float, Origin(A, "the longest; the mean over all becomes 4.3 h")] = 72 * HOUR_S
    gpu_arrivals: Annotated[Arrivals, Origin(A, "its fields have their own origins")] = Arrivals()

    cpu_cores: Annotated[Mix, Origin(A, "per CPU job")] = ((1, 0.4), (2, 0.3), (4, 0.2), (8, 0.1))
    cpu_median_s: Annotated[float, Origin(A, "lognormal; at 600 s CPU jobs never lack cores")] = 3600.0
    cpu_sigma: Annotated[float, Origin(A, "of the logarithm")] = 1.5
    cpu_most_s: Annotated[float, Origin(A, "longer ones are cut to it")] = 24 * HOUR_S
    cpu_arrivals: Annotated[Arrivals, Origin(A, "bursty and diurnal (T)")] = Arrivals(
        amplitude=0.84, batch_jobs=(2, 20)
    )

    standing_jobs: Annotated[int, Origin(A, "CPU jobs that run from the first second on; 0: as in CODA's trace")] = 0
    standing_cores: Annotated[int, Origin(A, "of each, on one node")] = 12

    def __post_init__(self) -> None:
        for name in ("many_cores", "gpus", "cpu_cores"):
            if not math.isclose(sum(share for _, share in getattr(self, name)), 1.0, abs_tol=1e-9):
                raise InvalidInput(f"month: the shares of {name} must sum to 1")
        if self.few_cores_share + self.many_cores_share > 1 or self.hour_share + self.two_hours_share > 1:
            raise InvalidInput("month: shares of one kind of job must not sum to more than 1")
        counts = (self.gpu_jobs, self.cpu_jobs, self.cpu_only_users, self.standing_jobs)
        if min(self.days, self.mixed_users, self.standing_cores) < 1 or min(counts) < 0:
            raise InvalidInput("month: it needs a day and a user, and no count may be negative")

    @property
    def shape(self) -> ClusterShape:
        """The cluster of the month."""
        return shape_from_text(self.cluster)


def widened(config: MonthConfig, factor: float) -> MonthConfig:
    """Return the same load on a cluster `factor` times as large: `factor` times the jobs in the same days."""
    groups = (f"{max(1, round(one.nodes * factor))}x{one.gpus}x{one.cores}" for one in config.shape.groups)
    return replace(_more_jobs(config, factor), cluster=",".join(groups))


def lengthened(config: MonthConfig, factor: float) -> MonthConfig:
    """Return the same load on the same cluster for `factor` times the days (rounded) and the jobs."""
    return replace(_more_jobs(config, factor), days=max(1, round(config.days * factor)))


def _more_jobs(config: MonthConfig, factor: float) -> MonthConfig:
    if not 0 < factor < math.inf:
        raise InvalidInput(f"a month cannot be made {factor} times as large: give a number above 0")
    return replace(config, gpu_jobs=round(config.gpu_jobs * factor), cpu_jobs=round(config.cpu_jobs * factor))
