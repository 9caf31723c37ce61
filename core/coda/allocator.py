"""The adaptive CPU allocator: how many cores a training job gets. Here, so far, its start point.

What must not live here: measuring, and anything that writes a grant.
Source: CODA (Zhao et al., ICDCS 2020), section on the adaptive CPU allocator.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from coda.config import PolicyConfig


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


def start_cores(
    category: Category | None,
    hints: Hints,
    gpus_per_replica: int,
    ceiling_cores: int,
    *,
    config: PolicyConfig | None = None,
) -> int:
    """The cores first proposed for one rank: category's, shifted by hints, per GPU; floor 1, capped at the ceiling.

    Pipelined -1, many weights -1, complex processing +1. `ceiling_cores`: whole cores the largest matching node has.
    Source: CODA's start points for one GPU. Our choices: 4 without category, the floor, and scaling by the rank's GPU
    count (CODA finds the optimum linear in it, but publishes no start point for several GPUs)."""
    cores = (config or PolicyConfig()).unknown_category_cores if category is None else CORES_BY_CATEGORY[category]
    cores += hints.complex_processing - hints.pipelined - hints.many_weights
    return max(1, min(max(1, cores) * max(1, gpus_per_replica), ceiling_cores))
