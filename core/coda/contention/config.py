"""The eliminator's settings. A value outside its range is refused when the object is built.

Each field states its unit, its range and why this default."""

from __future__ import annotations

from dataclasses import dataclass

from coda.errors import require


@dataclass(frozen=True, slots=True, kw_only=True)
class ContentionConfig:
    """The contention eliminator. Raises InvalidInput for values out of range. All shares are 0..1."""

    trigger_share: float = 0.75
    """Memory bandwidth over peak from which a socket is contended. Default: CODA."""

    release_share: float = 0.65
    """Bandwidth over peak under which a throttle may be taken back, below `trigger_share`. Our choice (CODA: none)."""

    drop_share: float = 0.05
    """A training job suffers this far below its own reference, relative. Our choice (CODA: "has dropped")."""

    votes: int = 3
    """Windows of the last `windows` in which both must hold, 1..`windows`. Our choice: one spike is no contention."""

    window_s: float = 1.0
    """Seconds between two windows, > 0; a gap of more than `windows` of them breaks every row. Default: the slowest at
    which five windows fit into the 5 s that a throttle may take."""

    windows: int = 5
    """Windows looked back on, 1..60. Default: with 1-s windows a throttle comes within 5 s of the first."""

    step_s: float = 5.0
    """Seconds between two throttles of a socket, >= 0. Default: slow enough for the last one to show."""

    settle_s: float = 10.0
    """Seconds until a throttle is judged by what the victims gained, >= `step_s`. Our choice."""

    gain_share: float = 0.25
    """Part of what a victim had lost that it must regain, else the throttle is undone. Our choice."""

    release_hold_s: float = 60.0
    """Seconds under `release_share` before the first release, >= 0. Default: first release within 75 s."""

    release_step_s: float = 20.0
    """Seconds between two release steps, > `settle_s`. Default: eight steps within 4 min of the cause's end."""

    guard_share: float = 0.05
    """What a release is predicted to bring back must stay this far under the trigger. Our choice: against flapping."""

    reentry_hold_s: float = 600.0
    """Hold instead of `release_hold_s`, doubling each time up to 1 h, once a release led to a throttle within this
    time, for pods that still press. Default: at most two actions per 10 min under constant load."""

    futile_s: float = 600.0
    """Seconds that a socket is left alone, at least, after throttles that helped nobody; and until its pods, its jobs
    or its load change. Our choice."""

    blind_s: float = 60.0
    """Seconds without sensors after which throttles are taken back, >= 0. Our choice: the lease of a throttle."""

    negligible_share: float = 0.02
    """A pod below this part of the peak is not worth throttling. Our choice."""

    learn_windows: int = 10
    """Calm windows before a job has a reference, 1..1000. Our choice: noise of 3 % then moves it by 1 %."""

    follow_windows: float = 60.0
    """Windows in which the reference follows a lasting change, by two thirds; >= 1. Our choice: slow against steps."""

    def __post_init__(self) -> None:
        shares = (self.drop_share, self.gain_share, self.guard_share, self.negligible_share, self.release_share)
        require(all(0 <= share < 1 for share in shares), "shares must be 0 to below 1", shares)
        require(self.window_s > 0, "window_s must be above 0", self.window_s)
        require(self.release_share < self.trigger_share, "release_share must be below trigger_share", shares[-1])
        require(1 <= self.votes <= self.windows <= 60, "votes must be 1 to windows, windows at most 60", self.votes)
        times = (self.step_s, self.release_hold_s, self.reentry_hold_s, self.futile_s, self.blind_s)
        require(all(time >= 0 for time in times), "times must not be negative", times)
        require(self.step_s <= self.settle_s < self.release_step_s, "step_s <= settle_s < release_step_s", times[0])
        require(1 <= self.learn_windows <= 1000, "learn_windows must be 1 to 1000", self.learn_windows)
        require(self.follow_windows >= 1, "follow_windows must be at least 1", self.follow_windows)
