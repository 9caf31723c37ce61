"""The settings of the allocator. Each field states its unit, its range and why this default.

A value out of range is refused when the object is built."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from coda.errors import require

UNKNOWN_CATEGORY_CORES: Final = 4
"""Cores per GPU first tried for a job without a category. Our choice (CODA gives none): between CV's 3 and the 5 of NLP
and speech."""


class Stride(Enum):
    """How far one move of the search goes."""

    UNIT = "Unit"  # one core
    SCALED = "Scaled"  # one core, then one per GPU of the rank, twice, then doubling


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreSearchConfig:
    """The settings of the search. Raises InvalidInput for values out of range."""

    window_s: float = 90.0
    """Seconds of one profiling step, > 0; only its second half counts. Default: CODA, Table II."""

    noise_margin: float = 0.01
    """Relative difference of utilisation that counts as no difference, 0 to below 1. Our choice: above the slight
    drop per core beyond the optimum (0.4 %), below half of the smallest rise up to it on 8 GPUs (2.5 %)."""

    stride: Stride = Stride.SCALED
    """Unit is CODA's step as published. Default scaled: the same steps on every model of Table II, and a third less
    time with 8 GPUs per rank (`docs/results.md`, Allocator)."""

    patience: int = 0
    """Further moves up after a move without gain, 0..8. Default 0: CODA's rule. 1 looks past flat parts, and costs one
    more step on every other curve (`docs/results.md`, Allocator)."""

    faint_moves: int = 1
    """Further moves up after a gain within the margin, 0..8. CODA's rule is 0. Default 1: the same steps on Table II,
    and a third to a half of the loss on curves that rise slowly (`docs/results.md`, Allocator)."""

    certainty: float = 1.6
    """Standard errors by which a difference must clear the margin, >= 0; else the count is measured again.
    Default: one decision in twenty is wrong (one-sided normal)."""

    extra_windows: int = 2
    """Further windows at one count while the result is not certain, 0..20. Default: with noise of 3 % on plateaus,
    answers more than one core off fall from 9 % to 3 %."""

    idle_share: float = 0.01
    """GPU utilisation below which a window says nothing (loading, evaluating, waiting), 0..1. Our choice."""

    silent_windows: int = 3
    """Windows in a row without utilisation that are repeated before the search gives up, 0..1000. Our choice."""

    loading_windows: int = 40
    """The same before anything was measured, 0..1000. Our choice: a job may load its data for an hour first, and its
    cores have not been changed yet."""

    least_samples: int = 10
    """Samples that the second half of a window needs, 2..1000. Our choice: with fewer, the spread means little."""

    def __post_init__(self) -> None:
        require(self.window_s > 0, "window_s must be above 0", self.window_s)
        require(0 <= self.noise_margin < 1, "noise_margin must be 0 to below 1", self.noise_margin)
        require(0 <= self.patience <= 8, "patience must be 0 to 8", self.patience)
        require(0 <= self.faint_moves <= 8, "faint_moves must be 0 to 8", self.faint_moves)
        require(self.certainty >= 0, "certainty must not be negative", self.certainty)
        require(0 <= self.extra_windows <= 20, "extra_windows must be 0 to 20", self.extra_windows)
        require(0 <= self.idle_share <= 1, "idle_share must be 0 to 1", self.idle_share)
        require(0 <= self.silent_windows <= 1000, "silent_windows must be 0 to 1000", self.silent_windows)
        require(0 <= self.loading_windows <= 1000, "loading_windows must be 0 to 1000", self.loading_windows)
        require(2 <= self.least_samples <= 1000, "least_samples must be 2 to 1000", self.least_samples)


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningConfig:
    """The settings of a tuning: its search, and its wishes.

    `wish_deadline_s`: seconds after which a wish is not answered any more. Our choice: longer than a planner may be
    away. `wish_again_s`: seconds between wishes for a found count that is not available (other jobs took the cores
    while fewer were tried). Our choice: as often as a kubelet retries what it deferred."""

    tuning: CoreSearchConfig = field(default_factory=CoreSearchConfig)
    wish_deadline_s: float = 60.0
    wish_again_s: float = 180.0
