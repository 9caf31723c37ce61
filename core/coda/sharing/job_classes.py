"""The classes of jobs that share GPUs, and the one that a job gets which leaves it to Coda.

Source: AntMan (OSDI 2020): a guaranteed job is as fast as alone; an opportunistic one uses what is left, uncharged."""

from __future__ import annotations

from enum import Enum

from coda.model.job import SharingWish as SharingWish  # a job has it
from coda.sharing.config import SharingConfig


class SharingClass(Enum):
    """What a job is, once it starts."""

    GUARANTEED = "Guaranteed"
    OPPORTUNISTIC = "Opportunistic"


def class_for(wish: SharingWish, *, expected_wait_s: float | None, config: SharingConfig) -> SharingClass:
    """Return the class for a wish. AUTO is opportunistic if it would wait long for its tenant's quota.

    `expected_wait_s`: until the quota would do; None: not known, and then nobody is made opportunistic by a guess."""
    if wish is SharingWish.OPPORTUNISTIC:
        return SharingClass.OPPORTUNISTIC
    if wish is SharingWish.AUTO and expected_wait_s is not None and expected_wait_s > config.auto_wait_s:
        return SharingClass.OPPORTUNISTIC
    return SharingClass.GUARANTEED
