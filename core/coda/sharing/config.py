"""The settings of GPU sharing. Each field states its unit, its range and why this default.

A value out of range is refused when the object is built."""

from __future__ import annotations

from dataclasses import dataclass

from coda.errors import require

GIB = 1024**3
FULL_SHARE = 1000
"""The share of a job that is not paced, in thousandths of its speed alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharingConfig:
    """The settings of GPU sharing. Raises InvalidInput for values out of range."""

    period_s: float = 1.0
    """Seconds between two steps of the share, > 0. Our choice: AntMan names no period."""

    period_steps: int = 5
    """Mini-batches that a period needs at least, >= 1. Our choice: single step times say nothing."""

    step_share: int = 50
    """Thousandths that a share rises per period, 1..1000. Our choice."""

    floor_share: int = 50
    """Thousandths that an opportunistic job keeps at least, 1..1000, except while the base is measured. Our choice."""

    tolerance: float = 0.02
    """How much slower the guaranteed job may be than alone, relative, >= 0. Our choice: AntMan's jobs lost 1-3 %."""

    noise_bounds: float = 3.0
    """Median absolute deviations above the base that are still noise, >= 0. Our choice."""

    stable_steps: int = 20
    """Mini-batches that are judged together, 5..1000. Our choice."""

    stable_spread: float = 0.02
    """A newcomer is stable if these mini-batches are within this share of their median, or if that median is as near to
    the one of as many about 10 s before, >= 0. Our choice."""

    unstable_spread: float = 0.20
    """Step times are unstable if the middle 80 % are further apart than this share of the median. Our choice: two slow
    mini-batches of twenty (a checkpoint, an evaluation) say nothing."""

    arriving_s: float = 120.0
    """Seconds after its first mini-batch in which a newcomer counts as stable in any case, >= 0. Our choice."""

    measure_s: float = 5.0
    """Seconds of mini-batches from which the base is measured, and at least `stable_steps` of them, >= 0."""

    suspend_below_s: float = 1.0
    """While the base is measured, neighbours of jobs with shorter mini-batches stand still; others have the floor."""

    silent_s: float = 10.0
    """Seconds without a mini-batch after which nothing is known of the job, and at least five mini-batches, > 0."""

    unheard_s: float = 300.0
    """Seconds without a mini-batch after which no newcomer is sent to the job, and at least five mini-batches, > 0. Our
    choice: an evaluation takes minutes."""

    ceiling_hold_s: float = 60.0
    """Seconds in which a share that hurt is not tried again, > 0; doubles each time, up to `ceiling_longest_s`."""

    ceiling_longest_s: float = 3600.0
    """The longest of these times in seconds, >= `ceiling_hold_s`. Our choice: one slow period an hour."""

    remeasure_s: float = 600.0
    """Seconds after which the base is measured again, > 0. Our choice: 5 s of suspension are then below 1 %."""

    peak_margin: float = 1.05
    """The guaranteed job's recent peak is multiplied by this, >= 1. Our choice (AntMan: 1)."""

    memory_hold_s: float = 60.0
    """Seconds in which the peak must be lower before memory is given back, and between two raises of one job, >= 0.
    Default: AntMan's worst overhead was 0.4 % at one change per minute."""

    hurry_s: float = 1.0
    """Seconds for which a job that must give memory back is not paced while the guaranteed job arrives, >= 0. Our
    choice: most mini-batches end within it, and one that never obeys harms no longer."""

    overflow_hurry_s: float = 60.0
    """The same while the guaranteed job lies in host memory, which slows it more than a neighbour does, >= 0."""

    shrink_margin: float = 0.10
    """What an overflow takes from the neighbours beyond its own size, relative, >= 0. Our choice."""

    trial_bytes: int = 256 * 1024**2
    """Memory that a trial moves between opportunistic jobs, and at least `trial_share` of the giver's limit, > 0."""

    trial_share: float = 0.05
    """See `trial_bytes`; 0..1. Our choice."""

    trial_gain: float = 0.01
    """A trial is kept if the sum of normalised speeds rises by more than this, >= 0. Our choice: above the noise."""

    trial_periods: int = 2
    """Periods that a trial lasts, >= 1. Our choice."""

    trial_hold_s: float = 300.0
    """Seconds in which a pair that gained nothing is not tried again, > 0; doubles each time, up to an hour."""

    busy_share: float = 0.80
    """GPUs with a higher utilisation over the last 10 s take no opportunistic job, 0..1 (AntMan's M)."""

    seats: int = 4
    """Opportunistic jobs on one GPU at most, 1..64. Our choice (AntMan: any number)."""

    efficiency: float = 0.4
    """Share of the time a neighbour leaves idle that an opportunistic job can use, 0..1. Our choice: measured 0.33-0.9
    on simulated GPUs; pairs that were measured replace it."""

    crowded_s: float = 300.0
    """Seconds without room for what it keeps beside a guaranteed job after which an opportunistic job should move.
    >= 0. Our choice: a peak is kept for a minute, and to move costs a start."""

    least_speed: float = 0.10
    """An opportunistic job starts only where this share of its speed alone is expected of it, 0..1. Our choice."""

    auto_wait_s: float = 300.0
    """A job that leaves the class to Coda is opportunistic if it would wait longer than this, in seconds, >= 0."""

    def __post_init__(self) -> None:
        positive = (
            self.period_s,
            self.silent_s,
            self.unheard_s,
            self.ceiling_hold_s,
            self.remeasure_s,
            self.trial_hold_s,
        )
        require(all(time > 0 for time in positive), "periods and holds must be above 0", positive)
        starts = (self.arriving_s, self.measure_s, self.suspend_below_s)
        times = (*starts, self.memory_hold_s, self.crowded_s, self.auto_wait_s)
        hurries = (self.hurry_s, self.overflow_hurry_s)
        require(all(time >= 0 for time in (*times, *hurries)), "times must not be negative", (*times, *hurries))
        shares = (self.trial_share, self.busy_share, self.efficiency, self.least_speed)
        require(all(0 <= share <= 1 for share in shares), "shares must be 0 to 1", shares)
        steps = (self.step_share, self.floor_share)
        require(all(1 <= step <= FULL_SHARE for step in steps), "thousandths must be 1 to 1000", steps)
        margins = (self.tolerance, self.noise_bounds, self.stable_spread, self.unstable_spread, self.shrink_margin)
        require(all(margin >= 0 for margin in (*margins, self.trial_gain)), "margins must not be negative", margins)
        require(self.peak_margin >= 1, "peak_margin must be at least 1", self.peak_margin)
        require(self.ceiling_longest_s >= self.ceiling_hold_s, "ceiling_longest_s is too short", self.ceiling_longest_s)
        require(5 <= self.stable_steps <= 1000, "stable_steps must be 5 to 1000", self.stable_steps)
        require(1 <= self.period_steps <= self.stable_steps, "period_steps: 1 to stable_steps", self.period_steps)
        require(self.trial_periods >= 1 and self.trial_bytes > 0, "trials move memory for a period", self.trial_bytes)
        require(1 <= self.seats <= 64, "seats must be 1 to 64", self.seats)
