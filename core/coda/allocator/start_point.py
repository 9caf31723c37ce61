"""The adaptive CPU allocator's start point: the cores a training job gets before anything was measured.

What must not live here: the search from there on (`tuning`), and anything that writes a grant.
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
    """What a model works on; the spelling is the CRD's."""

    CV = "CV"
    NLP = "NLP"
    SPEECH = "Speech"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hints:
    """What the user knows of the input pipeline; all false when nothing was said."""

    pipelined: bool = False  # loading overlaps with training
    many_weights: bool = False  # many weights for the input size
    complex_processing: bool = False  # the CPU works hard between iterations


NO_HINTS: Final = Hints()

CORES_BY_CATEGORY: Final[Mapping[Category, int]] = {Category.CV: 3, Category.NLP: 5, Category.SPEECH: 5}
"""Cores first tried for one GPU. Source: CODA, start points without history."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """What a finished job ended with."""

    owner: str
    category: Category | None
    gpus_per_replica: int
    cores_per_replica: int


Experience = Mapping[tuple[str, Category | None, int | None], Fraction]
"""The most cores per GPU that jobs ended with, by owner, category (None: any) and GPUs per rank (None: any)."""

NO_EXPERIENCE: Final[Experience] = {}


def experience_with(experience: Experience, job: Tuned) -> Experience:
    """`experience` after one more finished job. In any order the same; jobs without GPUs teach nothing."""
    if job.gpus_per_replica < 1 or job.cores_per_replica < 1:
        return experience
    per_gpu = Fraction(job.cores_per_replica, job.gpus_per_replica)
    keys = {(job.owner, category, gpus) for category in (job.category, None) for gpus in (job.gpus_per_replica, None)}
    return {**experience, **{key: max(per_gpu, experience.get(key, per_gpu)) for key in keys}}


def experienced_cores(
    experience: Experience, owner: str, category: Category | None, gpus_per_replica: int, ceiling_cores: int
) -> int | None:
    """The cores first proposed for one rank from the owner's finished jobs; None when there are none to learn from.

    The most that jobs of the same owner and category (without category: of the owner) ended with whose ranks had as
    many GPUs; without such jobs the most per GPU of the others, times the rank's GPUs, rounded up. Floor 1, capped at
    the ceiling. Source: CODA's start point. Our choices: equal ranks first, since the first GPU of a rank needs more
    cores than each further one; and that hints do not shift it, since what was measured already shows what they guess.
    """
    per_gpu = experience.get((owner, category, gpus_per_replica), experience.get((owner, category, None)))
    if per_gpu is None:
        return None
    return max(1, min(math.ceil(per_gpu * max(1, gpus_per_replica)), ceiling_cores))


def start_cores(
    category: Category | None,
    hints: Hints,
    gpus_per_replica: int,
    ceiling_cores: int,
) -> int:
    """The cores first proposed for one rank: category's, shifted by hints, per GPU; floor 1, capped at the ceiling.

    Pipelined -1, many weights -1, complex processing +1. `ceiling_cores`: whole cores the largest matching node has.
    Source: CODA's start points for one GPU. Our choices: 4 without category, the floor, and scaling by the rank's GPU
    count (CODA finds the optimum linear in it, but publishes no start point for several GPUs)."""
    cores = UNKNOWN_CATEGORY_CORES if category is None else CORES_BY_CATEGORY[category]
    cores += hints.complex_processing - hints.pipelined - hints.many_weights
    return max(1, min(max(1, cores) * max(1, gpus_per_replica), ceiling_cores))
