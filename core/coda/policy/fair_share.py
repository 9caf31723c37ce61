"""Fair shares: how much each party holds, and therefore whose turn it is.

Progressive filling: the party with the smallest share starts its next job that fits; then shares are compared again.
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

NO_AMOUNTS: Final[Amounts] = (0, 0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fairness:
    """How shares are counted.

    `party`: whom a job counts for. `account`: a party has one share in each account; lower accounts go first.
    `measure`: the share, from the job, what the party holds in the job's account, and all there is; lower goes first.
    `guarantees`: GPU jobs that keep their party within its quota go before all others.
    `within_tenants`: virtual clusters share first, by `borrowed_share`, and parties share what their tenant has."""

    party: Callable[[Job], str]
    account: Callable[[Job], int]
    measure: Callable[[Job, Amounts, Amounts], float]
    guarantees: bool = False
    within_tenants: bool = False


def gpu_share(job: Job, held: Amounts, total: Amounts) -> float:
    """Return GPUs held over all GPUs. Source: CODA's DRF baseline, in which the GPU is always dominant."""
    return held[0] / total[0] if total[0] else 0.0


def dominant_share(job: Job, held: Amounts, total: Amounts) -> float:
    """Return the largest share of any resource. Source: DRF."""
    return max((mine / all_ for mine, all_ in zip(held, total, strict=True) if all_), default=0.0)


def array_share(job: Job, held: Amounts, total: Amounts) -> float:
    """Return the share of GPUs for GPU jobs; for CPU jobs that of cores or of memory, whichever is larger.

    Source: CODA, multi-array scheduler, which counts cores alone. Memory is our choice, as in DRF: whoever asks for
    much of it and few cores would always go first."""
    if job.request.gpus:
        return held[0] / total[0] if total[0] else 0.0
    cores = held[1] / total[1] if total[1] else 0.0
    return max(cores, held[2] / total[2]) if total[2] else cores


def quota_share(job: Job, held: Amounts, total: Amounts) -> float:
    """Return GPUs held over the party's own quota; infinite without a quota. Source: YARN's capacity scheduler."""
    return held[0] / total[0] if total[0] else inf


def borrowed_share(held: int, own: int, total: int) -> float:
    """Return what a tenant holds beyond its own, as a part of all there is. Source: Kueue's fair sharing."""
    return max(0, held - own) / total if total else 0.0


def user_of(job: Job) -> str:
    """Return the user: shares by user."""
    return job.user


def virtual_cluster_of(job: Job) -> str:
    """Return the virtual cluster: shares by tenant."""
    return job.virtual_cluster


def one_account(job: Job) -> int:
    """Return the same account for every job: one share for everything a party holds."""
    return 0
