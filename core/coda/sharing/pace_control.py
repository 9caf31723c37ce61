"""The control law: which share of the GPU's time opportunistic jobs get beside a guaranteed job.

The guaranteed job's own step times decide: the share rises slowly while they stay what they were alone, and is halved
when they do not. A share that hurt is not tried again for a while, each time for longer: nothing oscillates for ever.
The GPUs of one guaranteed job on a node are one unit: its ranks step together. Its share holds on each of them.
Source: AntMan (OSDI 2020), local coordinator; the numbers are ours (`SharingConfig`)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from statistics import median

from coda.errors import InvalidInput
from coda.sharing.config import FULL_SHARE, SharingConfig

_HURT_PERIODS = 3  # at the floor: then the guaranteed job itself has changed
_KEPT_STEPS = 1000  # of one phase, so that a state stays small


class PacePhase(Enum):
    """What a unit does. ALONE: nobody to protect, or nobody to pace."""

    ALONE = "Alone"
    ARRIVING = "Arriving"
    MEASURING = "Measuring"
    RAISING = "Raising"
    BACKING = "Backing"
    PESSIMISTIC = "Pessimistic"


@dataclass(frozen=True, slots=True, kw_only=True)
class PaceReport:
    """What happened in a unit since the last report. Raises InvalidInput for impossible numbers.

    guaranteed: the uid of the guaranteed job; None: there is none
    opportunistic: uids of the others
    steps: durations of the guaranteed job's mini-batches in seconds, oldest first
    held: the cores of the guaranteed job are being tuned, so that its step times say nothing of its neighbours
    turns, turn: of a job on several nodes: its units raise their shares one after the other"""

    guaranteed: str | None
    opportunistic: tuple[str, ...]
    steps: tuple[float, ...] = ()
    held: bool = False
    turns: int = 1
    turn: int = 0

    def __post_init__(self) -> None:
        if not all(math.isfinite(step_s) and step_s > 0 for step_s in self.steps):
            raise InvalidInput("mini-batches must take a finite time above 0 s")
        if len(set(self.opportunistic)) < len(self.opportunistic) or self.guaranteed in self.opportunistic:
            raise InvalidInput("a job can be in a unit only once")
        if not 0 <= self.turn < self.turns:
            raise InvalidInput(f"turn {self.turn} is not one of {self.turns}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PaceState:
    """What is remembered of a unit; times are of any clock that does not jump.

    share: of all opportunistic jobs of a GPU together, in thousandths, the same on each GPU: `floor_share` to 1000, or
        0 while the base is measured
    base_s, noise_s: median of the guaranteed job's step times alone, and their median absolute deviation
    recent: its last mini-batches, for stability; `since`: those of this phase; `window`: those of this period
    ceiling, ceiling_until_s, hold_s: the share that is not passed until then, and how long the next one holds
    resume_share: where the share goes on after a measurement that confirms the base; 0: at the floor"""

    guaranteed: str | None = None
    opportunistic: tuple[str, ...] = ()
    phase: PacePhase = PacePhase.ALONE
    share: int = FULL_SHARE
    base_s: float | None = None
    noise_s: float = 0.0
    measured_at_s: float = -math.inf
    entered_at_s: float = -math.inf
    first_step_at_s: float | None = None
    heard_at_s: float = -math.inf
    recent: tuple[float, ...] = ()
    since: tuple[float, ...] = ()
    window: tuple[float, ...] = ()
    period_at_s: float = -math.inf
    periods: int = 0
    hurt_periods: int = 0
    ceiling: int = FULL_SHARE
    ceiling_until_s: float = -math.inf
    hold_s: float = 0.0
    resume_share: int = 0
    backoffs: int = 0

    @property
    def is_shared(self) -> bool:
        """True if there is a job to protect and a job to pace."""
        return self.guaranteed is not None and bool(self.opportunistic)

    @property
    def is_steady(self) -> bool:
        """True if the share follows the guaranteed job's speed: other loops may measure it, newcomers may come."""
        return self.phase in (PacePhase.ALONE, PacePhase.RAISING)

    def share_of_each(self, neighbours: int) -> int:
        """Thousandths for each of so many opportunistic jobs on one GPU."""
        return self.share // max(1, neighbours) if self.is_shared else FULL_SHARE


def control(state: PaceState, report: PaceReport, now_s: float, config: SharingConfig) -> PaceState:
    """Return the next state of a unit. The guaranteed job has no share here: nothing ever limits it.

    If the clock went back, every waiting time starts again. O(mini-batches log mini-batches) of one phase."""
    state = _in_step(state, now_s)
    state = _with_members(state, report, now_s, config)
    state = _with_steps(state, report.steps, now_s, config)
    if not state.is_shared:
        return state
    if report.held:
        return replace(state, window=(), period_at_s=now_s)
    if state.phase is PacePhase.ARRIVING:
        return _arriving(state, now_s, config)
    if state.phase is PacePhase.MEASURING:
        return _measuring(state, now_s, config)
    if state.phase is PacePhase.PESSIMISTIC:
        return _pessimistic(state, now_s, config)
    return _following(state, report, now_s, config)


def slowdown(state: PaceState) -> float | None:
    """Return how much slower the guaranteed job is than alone (1.02: 2 %), by its last mini-batches; None: unknown."""
    return None if state.base_s is None or not state.recent else median(state.recent) / state.base_s


def is_heard(state: PaceState, now_s: float, config: SharingConfig) -> bool:
    """Return whether the guaranteed job ended a mini-batch lately: only beside such a job does a share rise."""
    if state.guaranteed is None or not state.recent:
        return False
    return now_s - state.heard_at_s <= max(config.unheard_s, 5 * median(state.recent))


def _in_step(state: PaceState, now_s: float) -> PaceState:
    times = (state.entered_at_s, state.heard_at_s, state.period_at_s, state.measured_at_s)
    if max(times) <= now_s:
        return state
    return replace(
        state,
        entered_at_s=min(state.entered_at_s, now_s),
        heard_at_s=min(state.heard_at_s, now_s),
        period_at_s=min(state.period_at_s, now_s),
        measured_at_s=min(state.measured_at_s, now_s),
        first_step_at_s=None if state.first_step_at_s is None else min(state.first_step_at_s, now_s),
        ceiling_until_s=min(state.ceiling_until_s, now_s + state.hold_s),
    )


def _with_members(state: PaceState, report: PaceReport, now_s: float, config: SharingConfig) -> PaceState:
    others = tuple(sorted(report.opportunistic))
    if report.guaranteed != state.guaranteed:
        fresh = PaceState(guaranteed=report.guaranteed, opportunistic=others, heard_at_s=now_s)
        if not fresh.is_shared:
            return replace(fresh, entered_at_s=now_s)
        return _entered(fresh, PacePhase.ARRIVING, config.floor_share, now_s)
    if others == state.opportunistic:
        return state
    was_shared, arrived = state.is_shared, not set(others) <= set(state.opportunistic)
    state = replace(state, opportunistic=others)
    if not state.is_shared:
        return _entered(state, PacePhase.ALONE, FULL_SHARE, now_s)
    if was_shared and not arrived:
        return state
    state = replace(state, ceiling=FULL_SHARE, ceiling_until_s=-math.inf, hold_s=0.0)
    if was_shared:
        if state.phase is PacePhase.MEASURING:
            return _to_measuring(state, now_s, config)  # the newcomer ran beside what was measured so far
        follows = state.phase in (PacePhase.RAISING, PacePhase.BACKING)
        return _entered(state, PacePhase.RAISING, config.floor_share, now_s) if follows else state
    alone = state.since[-5 * config.stable_steps :]
    if len(alone) >= config.stable_steps and _spread(alone) <= config.unstable_spread:
        return _entered(_with_base(state, alone, now_s), PacePhase.RAISING, config.floor_share, now_s)
    return _entered(state, PacePhase.ARRIVING, config.floor_share, now_s)


def _with_steps(state: PaceState, steps: Sequence[float], now_s: float, config: SharingConfig) -> PaceState:
    if not steps or state.guaranteed is None:
        return state
    return replace(
        state,
        heard_at_s=now_s,
        first_step_at_s=now_s if state.first_step_at_s is None else state.first_step_at_s,
        recent=(*state.recent, *steps)[-config.stable_steps :],
        since=(*state.since, *steps)[-_KEPT_STEPS:],
        window=(*state.window, *steps)[-_KEPT_STEPS:],
    )


def _arriving(state: PaceState, now_s: float, config: SharingConfig) -> PaceState:
    first_s = state.first_step_at_s
    if first_s is None:
        return state
    waited_s = now_s - max(first_s, state.entered_at_s)
    if _has_settled(state.since, config) or (state.since and waited_s >= config.arriving_s):
        return _to_measuring(state, now_s, config)
    return state


def _has_settled(steps: Sequence[float], config: SharingConfig) -> bool:
    """The last mini-batches are alike, or those of a noisy job no longer drift: their median is what it was before.

    Before is 10 s ago, but 60 to 200 mini-batches: a warm-up of half a minute shows between its noise. Our choice."""
    last = steps[-config.stable_steps :]
    if len(last) < config.stable_steps:
        return False
    middle = median(last)
    if all(abs(step_s - middle) <= config.stable_spread * middle for step_s in last):
        return True
    count = max(3 * config.stable_steps, min(10 * config.stable_steps, int(2 * config.measure_s / middle)))
    if len(steps) < count or _spread(steps[-count:]) > config.unstable_spread:
        return False
    before = median(steps[-count : config.stable_steps - count])
    return abs(before - middle) <= config.stable_spread * middle


def _to_measuring(state: PaceState, now_s: float, config: SharingConfig) -> PaceState:
    short = bool(state.recent) and median(state.recent) < config.suspend_below_s
    return _entered(state, PacePhase.MEASURING, 0 if short else config.floor_share, now_s)


def _measuring(state: PaceState, now_s: float, config: SharingConfig) -> PaceState:
    if _is_silent(state, now_s, config):
        return _entered(replace(state, resume_share=0), PacePhase.PESSIMISTIC, config.floor_share, now_s)
    steps = state.since[1:]  # the first began before the others stood still
    if len(steps) < config.stable_steps or sum(steps) < min(config.measure_s, _KEPT_STEPS / 2 * median(steps)):
        return state
    if _spread(steps[-config.stable_steps :]) > config.unstable_spread:
        return _entered(replace(state, resume_share=0), PacePhase.PESSIMISTIC, config.floor_share, now_s)
    before_s = state.base_s
    state = _with_base(state, steps, now_s)
    confirmed = before_s is not None and abs(median(steps) - before_s) <= config.tolerance * before_s
    share = max(config.floor_share, state.resume_share) if confirmed else config.floor_share
    return _entered(replace(state, resume_share=0), PacePhase.RAISING, share, now_s)


def _pessimistic(state: PaceState, now_s: float, config: SharingConfig) -> PaceState:
    last = state.since[-config.stable_steps :]
    if len(last) < config.stable_steps or _spread(last) > config.unstable_spread:
        return state
    if state.base_s is None:
        return _to_measuring(state, now_s, config)
    return _entered(state, PacePhase.RAISING, config.floor_share, now_s)


def _following(state: PaceState, report: PaceReport, now_s: float, config: SharingConfig) -> PaceState:
    """RAISING and BACKING: one step of the share per period."""
    base_s, noise_s = state.base_s, config.noise_bounds * state.noise_s
    if base_s is None:
        return _to_measuring(state, now_s, config)
    unstable = len(state.since) >= config.stable_steps and _spread(state.recent) > config.unstable_spread
    if unstable or _is_silent(state, now_s, config):
        state = _with_ceiling(state, now_s, config) if unstable else state
        return _entered(state, PacePhase.PESSIMISTIC, config.floor_share, now_s)
    if now_s - state.period_at_s < config.period_s or len(state.window) < config.period_steps:
        return state
    middle = median(state.window)
    next_period = replace(state, window=(), period_at_s=now_s, periods=state.periods + 1)
    if middle > base_s * (1 + config.tolerance) + noise_s:
        return _backed_off(next_period, now_s, config)
    if middle < base_s * (1 - config.tolerance) - noise_s:
        next_period = replace(next_period, base_s=middle)  # beside others it is at most as fast as alone
    if now_s - state.measured_at_s >= config.remeasure_s:
        return _to_measuring(replace(next_period, hurt_periods=0, resume_share=state.share), now_s, config)
    return _raised(replace(next_period, hurt_periods=0, phase=PacePhase.RAISING), report, now_s, config)


def _raised(state: PaceState, report: PaceReport, now_s: float, config: SharingConfig) -> PaceState:
    if state.periods % report.turns != report.turn:
        return state
    highest = state.ceiling if now_s < state.ceiling_until_s else FULL_SHARE
    return replace(state, share=max(state.share, min(highest, state.share + config.step_share)))


def _backed_off(state: PaceState, now_s: float, config: SharingConfig) -> PaceState:
    if state.share > config.floor_share:
        lower = max(config.floor_share, state.share // 2)
        if state.phase is PacePhase.RAISING:
            state = _with_ceiling(state, now_s, config)
        return replace(state, phase=PacePhase.BACKING, share=lower, hurt_periods=0, backoffs=state.backoffs + 1)
    hurt = state.hurt_periods + 1
    if hurt >= _HURT_PERIODS and now_s - state.measured_at_s >= max(config.ceiling_hold_s, state.hold_s):
        longer_s = min(config.ceiling_longest_s, max(config.ceiling_hold_s, 2 * state.hold_s))
        return _to_measuring(replace(state, hurt_periods=0, hold_s=longer_s), now_s, config)
    return replace(state, phase=PacePhase.BACKING, hurt_periods=hurt)


def _with_ceiling(state: PaceState, now_s: float, config: SharingConfig) -> PaceState:
    """Do not pass 0.9 of the share that hurt for a while, each time for longer."""
    hold_s = min(config.ceiling_longest_s, max(config.ceiling_hold_s, 2 * state.hold_s))
    ceiling = max(config.floor_share, state.share * 9 // 10)
    return replace(state, ceiling=ceiling, ceiling_until_s=now_s + hold_s, hold_s=hold_s)


def _with_base(state: PaceState, steps: Sequence[float], now_s: float) -> PaceState:
    middle = median(steps)
    noise_s = median(abs(step_s - middle) for step_s in steps)
    return replace(state, base_s=middle, noise_s=noise_s, measured_at_s=now_s)


def _entered(state: PaceState, phase: PacePhase, share: int, now_s: float) -> PaceState:
    return replace(state, phase=phase, share=share, entered_at_s=now_s, period_at_s=now_s, since=(), window=())


def _is_silent(state: PaceState, now_s: float, config: SharingConfig) -> bool:
    usual_s = median(state.recent) if state.recent else 0.0
    return now_s - max(state.heard_at_s, state.entered_at_s) > max(config.silent_s, 5 * usual_s)


def _spread(steps: Sequence[float]) -> float:
    """How far the middle 80 % of the step times are apart, as a share of their median."""
    ordered = sorted(steps)
    cut = len(ordered) // 10
    return (ordered[-1 - cut] - ordered[cut]) / median(ordered)
