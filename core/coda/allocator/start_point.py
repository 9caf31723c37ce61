"""The start point of the allocator: the cores that a training job gets before anything is measured.

Source: CODA (Zhao et al., ICDCS 2020), section on the adaptive CPU allocator.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from typing import Final

from coda.allocator.config import UNKNOWN_CATEGORY_CORES


class Category(Enum):
    """The kind of model; spelled as in the CRD."""

    CV = "CV"
    NLP = "NLP"
    SPEECH = "Speech"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hints:
    """What the user knows of the input pipeline; all false if the user says nothing."""

    pipelined: bool = False  # loading overlaps with training
    many_weights: bool = False  # many weights for the input size
    complex_processing: bool = False  # the CPU works hard between iterations


NO_HINTS: Final = Hints()

CORES_BY_CATEGORY: Final[Mapping[Category, int]] = {Category.CV: 3, Category.NLP: 5, Category.SPEECH: 5}
"""Cores first tried for one GPU. Source: CODA, start points without history."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """The cores that a finished job ended with."""

    owner: str
    category: Category | None
    gpus_per_replica: int
    cores_per_replica: int


Experience = dict[tuple[str, Category | None, int | None], Fraction]
"""The most cores per GPU that jobs ended with, by owner, category (None: any) and GPUs per rank (None: any)."""


def add_experience(experience: Experience, job: Tuned) -> None:
    """Add one more finished job to `experience`. The order does not matter; jobs without GPUs add nothing. O(1).

    In place: an operator that starts adds those of months, one by one."""
    if job.gpus_per_replica < 1 or job.cores_per_replica < 1:
        return
    per_gpu = Fraction(job.cores_per_replica, job.gpus_per_replica)
    for category in (job.category, None):
        for gpus in (job.gpus_per_replica, None):
            key = (job.owner, category, gpus)
            experience[key] = max(per_gpu, experience.get(key, per_gpu))


def experienced_cores(
    experience: Experience, owner: str, category: Category | None, gpus_per_replica: int, ceiling_cores: int
) -> int | None:
    """Return the cores first proposed for one rank from the owner's finished jobs; None if there are none.

    The most that jobs of the same owner and category (without category: of the owner) ended with, if their ranks had as
    many GPUs; else the most per GPU of the others, times the rank's GPUs, rounded up. At least 1, at most the ceiling.
    Source: CODA's start point. Our choices: equal ranks first, because the first GPU of a rank needs more cores than
    each further one; hints do not count, because the measured jobs already show what they guess."""
    per_gpu = experience.get((owner, category, gpus_per_replica), experience.get((owner, category, None)))
    if per_gpu is None:
        return None
    return max(1, min(math.ceil(per_gpu * max(1, gpus_per_replica)), ceiling_cores))


def in_multiples(cores: int, multiple: int, ceiling_cores: int) -> int:
    """Return at least as many cores that are a multiple of `multiple`; the next lower ones beyond the ceiling."""
    rounded = -(-cores // multiple) * multiple
    return max(multiple, rounded if rounded <= ceiling_cores else ceiling_cores // multiple * multiple)


def start_cores(
    category: Category | None,
    hints: Hints,
    gpus_per_replica: int,
    ceiling_cores: int,
) -> int:
    """Return the cores first proposed for one rank: the category's, shifted by hints, per GPU; 1 to the ceiling.

    Pipelined -1, many weights -1, complex processing +1. `ceiling_cores`: whole cores of the largest eligible node.
    Source: CODA's start points for one GPU. Our choices: 4 without category, at least 1, and scaling by the rank's GPU
    count (CODA finds the optimum linear in it, but publishes no start point for several GPUs)."""
    cores = UNKNOWN_CATEGORY_CORES if category is None else CORES_BY_CATEGORY[category]
    cores += hints.complex_processing - hints.pipelined - hints.many_weights
    return max(1, min(max(1, cores) * max(1, gpus_per_replica), ceiling_cores))
