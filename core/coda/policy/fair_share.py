"""Fair shares: who has how much of what, and whose turn it therefore is. What must not live here: what fits.

Progressive filling: the party with the smallest share starts its next job that fits, then shares are compared anew.
Source: DRF (Ghodsi et al., NSDI 2011); CODA (ICDCS 2020) for one share per array.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Final

from coda.model.job import Job

Amounts = tuple[int, int, int]
"""GPUs, millicores, bytes of memory."""

_NONE: Final[Amounts] = (0, 0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fairness:
    """How shares are counted.

    `party`: whom a job counts for. `account`: parties have a share of their own in each; lower accounts go first.
    `measure`: the share of what is held in the account of the job, given all there is; lower goes first.
    `guarantees`: GPU jobs with which their party stays within its quota go before all others."""

    party: Callable[[Job], str]
    account: Callable[[Job], int]
    measure: Callable[[Job, Amounts, Amounts], float]
    guarantees: bool = False


def gpu_share(job: Job, held: Amounts, total: Amounts) -> float:
    """GPUs held over all GPUs. Source: CODA's DRF baseline, for which the GPU is always dominant."""
    return held[0] / total[0] if total[0] else 0.0


def dominant_share(job: Job, held: Amounts, total: Amounts) -> float:
    """The largest share of any resource. Source: DRF."""
    return max((mine / all_ for mine, all_ in zip(held, total, strict=True) if all_), default=0.0)


def array_share(job: Job, held: Amounts, total: Amounts) -> float:
    """GPUs for GPU jobs, cores for CPU jobs. Source: CODA, multi-array scheduler."""
    index = 0 if job.request.gpus else 1
    return held[index] / total[index] if total[index] else 0.0


def quota_share(job: Job, held: Amounts, total: Amounts) -> float:
    """GPUs held over the party's own quota; without any quota, last. Source: YARN's capacity scheduler."""
    return held[0] / total[0] if total[0] else inf


def user_of(job: Job) -> str:
    """Shares by user."""
    return job.user


def virtual_cluster_of(job: Job) -> str:
    """Shares by tenant."""
    return job.virtual_cluster


def one_account(job: Job) -> int:
    """One share for everything a party holds."""
    return 0
