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


FULL_SHARE: Final = 0.95
"""The share of its cores that a throttled rank uses at least if it uses all of them. Our choice: a rank that needs 2.8
of 3 cores keeps 3, and loaders whose queue empties use all that they get."""


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

    pause_level: float = 0.7
    """A sample below this part of the window's high samples may belong to a pause, 0..1. Our choice."""

    pause_s: float = 4.0
    """Seconds that such samples last at least, one after the other, in a pause, >= 0. Our choice: longer than loading
    for one step holds up a GPU."""

    pauses: int = 1
    """More of them in one window are no pauses, 0..100, where it is not known that the job left cores unused. Our
    choice: what comes in every window may be how the job loads its data."""

    agreement: float = 0.015
    """Relative difference of two windows at the start point with which both are believed, 0 to below 1. Our choice."""

    start_windows: int = 12
    """Windows at the start point until the search goes on although utilisation still rises or falls, 1..1000. Our
    choice: 20 min, longer than most warm-ups."""

    sight: float = 4.5
    """A move changes the cores by at least so many standard errors of a window's difference, relative, >= 0. Our
    choice: what loses half of its utilisation in proportion to cores then loses more than two standard errors."""

    odd_margin: float = 0.05
    """Relative distance from what any curve can have beside a known point, from which a reading is odd, 0 to below 1.
    Our choice: above the drop beyond the optimum (4 %)."""

    begins_again: int = 3
    """How often a search begins again because its readings fit to no curve, 0..100. Our choice."""

    blur: float = 0.1
    """The largest gain that a search may overlook and still call its answer found, and the largest loss that a count
    which holds may hide, >= 0. Our choice."""

    deafening: float = 0.15
    """The standard error of one window, relative, from which nothing is compared: the job keeps what it has, >= 0. Our
    choice: a doubled core count hardly shows."""

    def __post_init__(self) -> None:
        require(0 <= self.pause_level <= 1, "pause_level must be 0 to 1", self.pause_level)
        require(self.pause_s >= 0, "pause_s must not be negative", self.pause_s)
        require(0 <= self.pauses <= 100, "pauses must be 0 to 100", self.pauses)
        require(0 <= self.agreement < 1, "agreement must be 0 to below 1", self.agreement)
        require(1 <= self.start_windows <= 1000, "start_windows must be 1 to 1000", self.start_windows)
        require(self.sight >= 0, "sight must not be negative", self.sight)
        require(0 <= self.odd_margin < 1, "odd_margin must be 0 to below 1", self.odd_margin)
        require(0 <= self.begins_again <= 100, "begins_again must be 0 to 100", self.begins_again)
        require(self.blur >= 0, "blur must not be negative", self.blur)
        require(self.deafening >= 0, "deafening must not be negative", self.deafening)
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
class WatchConfig:
    """The settings of the watch over a tuned job. All are our choice.

    `leave_margin`: relative distance from its level at which a window leaves it, if that is beyond `leave_errors`
    standard errors. `leave_windows`: so many in a row end the answer; `first_windows`: as long as no window has
    confirmed it. `quiet`: part of `deafening`; windows with no larger error end an answer that was found in deafening
    noise, as if they were off. `most_windows`: the most that are asked for after searches that found the same again;
    `most_full_windows`: the same of windows that use all cores, in which a job loses all the while.
    `try_again_s`: seconds after which the answer is searched again, for an optimum that fell: an hour, then twice as
    long after each such search, at most `longest_try_s`."""

    leave_margin: float = 0.05
    leave_errors: float = 3.0
    quiet: float = 1 / 3
    leave_windows: int = 3
    first_windows: int = 2
    most_windows: int = 24
    most_full_windows: int = 12
    try_again_s: float = 3600.0
    longest_try_s: float = 8 * 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningConfig:
    """The settings of a tuning: its search, and its wishes.

    `wish_deadline_s`: seconds after which a wish is not answered any more. Our choice: longer than a planner may be
    away. `wish_again_s`: seconds between wishes for a found count that is not available (other jobs took the cores
    while fewer were tried). Our choice: as often as a kubelet retries what it deferred."""

    tuning: CoreSearchConfig = field(default_factory=CoreSearchConfig)
    wish_deadline_s: float = 60.0
    wish_again_s: float = 180.0
    watch: WatchConfig = field(default_factory=WatchConfig)
