"""The settings of the eliminator. Each field states its unit, its range and why this default.

A value out of range is refused when the object is built."""

from __future__ import annotations

from dataclasses import dataclass

from coda.errors import require


@dataclass(frozen=True, slots=True, kw_only=True)
class ContentionConfig:
    """The settings of the eliminator. Raises InvalidInput for values out of range. All shares are 0..1."""

    trigger_share: float = 0.75
    """Memory bandwidth over peak from which a socket is contended. Default: CODA."""

    release_share: float = 0.65
    """Bandwidth over peak below which a throttle may be released, below `trigger_share`. Our choice (CODA: none)."""

    drop_share: float = 0.05
    """A training job is slowed this far below its own reference, relative. Our choice (CODA: "has dropped")."""

    votes: int = 3
    """How many of the last `windows` must fulfil both conditions, 1..`windows`. Our choice: one spike is no contention.
    """

    window_s: float = 1.0
    """Seconds between two windows, > 0. Default: the longest for which five fit into the 5 s that a throttle may take.
    """

    windows: int = 5
    """How many windows to look back on, 1..60. Default: with 1-s windows a throttle comes within 5 s of the first."""

    certainty: float = 4.0
    """How many standard errors a drop must be below the reference, >= 0. Our choice: noise alone then looks like a drop
    about once in 30 000 times."""

    pause_share: float = 0.25
    """A utilisation below this share of the job's reference is a pause, not contention: it is no evidence. Our choice:
    the worst published loss is a half."""

    pause_s: float = 120.0
    """Seconds after which what looked like a pause, or a lower level in calm windows, counts. Our choice: longer than
    most evaluations and checkpoints."""

    quiet_s: float = 10.0
    """Seconds after a change of a job's cores in which its utilisation says nothing, >= 0. Default: as the tuning's."""

    step_s: float = 1.0
    """Seconds between two steps of a trial, >= 0. Default: the next window shows what a limit did."""

    lag_s: float = 2.0
    """Seconds from a step to the first utilisation that shows it, >= 0. Our choice: batches that wait are used up."""

    trial_s: float = 15.0
    """Seconds after which a trial that has not shown a gain is undone, > `lag_s`. Default: the eight steps of the
    hardware's limits, and six windows at the last one."""

    gain_certainty: float = 3.0
    """How many standard errors a gain or a fall must be. Our choice: every gain is checked again later."""

    gain_share: float = 0.25
    """Share of its known loss that a slowed job must regain, and at least half of `drop_share`. Our choice."""

    confirm_s: float = 20.0
    """Seconds until throttles that showed a gain are released on probation; trebles each time, up to 1 h. Our choice: a
    gain by chance ends soon, and a job that is helped loses less than 1 % of its time."""

    settle_s: float = 10.0
    """Seconds after which the bandwidth of throttled pods is the effect of the last step, >= `step_s`. Our choice."""

    release_hold_s: float = 60.0
    """Seconds below `release_share` before the first release, >= 0. Default: first release within 75 s."""

    release_step_s: float = 20.0
    """Seconds between two release steps, > `settle_s`. Default: eight steps within 4 min of the cause's end."""

    guard_share: float = 0.05
    """The predicted bandwidth after a release must be this far below the trigger. Our choice: against flapping."""

    reentry_hold_s: float = 600.0
    """Seconds to hold instead of `release_hold_s`, after a release that led to a throttle within this time, for pods
    that are still limited; doubles each time, up to 1 h. Default: at most two actions per 10 min under constant load.
    """

    futile_s: float = 600.0
    """Seconds without a trial on a socket after one that showed no gain; doubles each time, up to 1 h, until a new pod
    or job comes. Our choice."""

    interrupted_s: float = 10.0
    """Seconds without a trial after one that a pause interrupted. The next one counts in any case. Our choice."""

    blind_s: float = 60.0
    """Seconds without sensors after which throttles are lifted, and between two windows after which nothing counts as
    consecutive, >= 0. Our choice: the lease of a throttle."""

    negligible_share: float = 0.02
    """A pod that uses less than this share of the peak is not worth throttling. Our choice."""

    learn_windows: int = 10
    """Calm windows before a job has a reference, 1..1000. Our choice: noise of 3 % then moves it by 1 %."""

    follow_windows: float = 60.0
    """Windows after which the reference has followed two thirds of a lasting change, >= 1. Our choice: slow enough to
    ignore single steps."""

    def __post_init__(self) -> None:
        low, high = self.release_share, self.trigger_share
        shares = (self.drop_share, self.gain_share, self.guard_share, self.negligible_share, self.pause_share, low)
        require(all(0 <= share < 1 for share in shares), "shares must be 0 to below 1", shares)
        require(self.window_s > 0, "window_s must be above 0", self.window_s)
        require(low < high, "release_share must be below trigger_share", low)
        require(1 <= self.votes <= self.windows <= 60, "votes must be 1 to windows, windows at most 60", self.votes)
        times = (self.step_s, self.release_hold_s, self.reentry_hold_s, self.futile_s, self.blind_s, self.lag_s)
        more = (self.pause_s, self.quiet_s, self.confirm_s, self.interrupted_s)
        require(all(time >= 0 for time in (*times, *more)), "times must not be negative", (*times, *more))
        require(self.step_s <= self.settle_s < self.release_step_s, "step_s <= settle_s < release_step_s", times[0])
        require(self.lag_s < self.trial_s, "trial_s must be above lag_s", self.trial_s)
        require(self.certainty >= 0 and self.gain_certainty >= 0, "certainty must not be negative", self.certainty)
        require(1 <= self.learn_windows <= 1000, "learn_windows must be 1 to 1000", self.learn_windows)
        require(self.follow_windows >= 1, "follow_windows must be at least 1", self.follow_windows)
