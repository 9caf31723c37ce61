"""The contention of one socket: when to throttle, whether that helped, and when to release.

A socket is contended if its bandwidth is near the peak and a job on it is slowed, both in most of the last windows, and
the job also on average over them. Each throttle is one step. If the steps bring no gain to the slowed jobs, all
throttles of the socket are lifted, and the socket is left alone until something changes. A step is released when
bandwidth has been low for a while and is predicted to stay low after it, so constant load settles. Without sensors,
nothing new is done, and throttles end after a while.
Source: CODA (ICDCS 2020), contention eliminator: both conditions and the action; the rest is ours.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from coda.contention.config import ContentionConfig
from coda.contention.reference import RECENT, Reference, TrainingSample
from coda.contention.throttles import (
    Action,
    Hardware,
    PodSample,
    Throttle,
    ThrottleReason,
    apply_action,
    is_still_limited,
    lift_action,
    next_step_down,
    predicted_rebound,
    settled_throttle,
    step_up,
)

LONGEST_HOLD_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowedJob:
    """How busy a job kept its GPUs before the first throttle for it."""

    job: str
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SocketState:
    """What is remembered of one socket."""

    socket: int
    votes: tuple[bool, ...] = ()  # both conditions, latest windows last
    throttled_at_s: float | None = None
    released_at_s: float | None = None
    calm_since_s: float | None = None  # little bandwidth is used, or there is no training job
    blind_since_s: float | None = None
    before: tuple[SlowedJob, ...] = ()  # when the first of the present throttles was applied
    reentries: int = 0  # releases that soon led to a throttle again
    futile_until_s: float | None = None
    futile_occupants: tuple[str, ...] = ()  # the occupants then, after the effect of lifting has settled


@dataclass(frozen=True, slots=True, kw_only=True)
class SocketWindow:
    """One socket in one window."""

    now_s: float
    socket: int
    share: float | None
    jobs: tuple[TrainingSample, ...]
    references: Mapping[str, Reference]
    pods: Mapping[str, PodSample]
    hardware: Hardware
    config: ContentionConfig

    @property
    def slowed_jobs(self) -> tuple[str, ...]:
        """The jobs on the socket that are clearly below their reference."""
        return tuple(job.job for job in self.jobs if self.references[job.job].is_slowed(job.share, self.config))

    @property
    def lastingly_slowed_jobs(self) -> tuple[str, ...]:
        """The jobs that are below their reference on average over the last windows, so that noise alone cannot vote."""
        windows = self.config.windows
        here = (self.references[job.job] for job in self.jobs)
        return tuple(one.job for one in here if one.is_slowed(one.latest(windows), self.config))

    @property
    def is_blind(self) -> bool:
        """True if nothing can be judged: no bandwidth was measured, or no utilisation of any job."""
        return self.share is None or (bool(self.jobs) and all(job.share is None for job in self.jobs))

    @property
    def is_calm(self) -> bool:
        """True if little bandwidth is used, or no training job is there."""
        return not self.jobs or (self.share is not None and self.share < self.config.release_share)

    @property
    def peak(self) -> float:
        """The peak bandwidth, bytes/s."""
        return self.hardware.peak_bytes_per_s.get(self.socket, math.inf)

    @property
    def headroom(self) -> float:
        """The bandwidth, bytes/s, that a release may add; infinite without a training job."""
        most = self.config.trigger_share - self.config.guard_share
        return (most - (self.share or 0.0)) * self.peak if self.jobs else math.inf

    @property
    def negligible(self) -> float:
        """The bandwidth, bytes/s, up to which a pod is not throttled."""
        return self.config.negligible_share * self.peak

    @property
    def occupants(self) -> tuple[str, ...]:
        """The pods and jobs on the socket: while they are the same, a throttle that helped no job will not help."""
        here = (uid for uid, pod in self.pods.items() if pod.bytes_per_s.get(self.socket, 0.0) > self.negligible)
        return (*sorted(here), *(job.job for job in self.jobs))


SocketDecision = tuple[SocketState, tuple[Throttle, ...], tuple[Action, ...]]


def decide_socket(window: SocketWindow, state: SocketState, throttles: tuple[Throttle, ...]) -> SocketDecision:
    """Return the next state of the socket, all throttles of the node afterwards, and what to do.

    At most one throttle, or one step of releases."""
    state = _next_state(window, state)
    acted_at_s = _latest(state.throttled_at_s, state.released_at_s)
    throttles = tuple(_with_window(throttle, window, acted_at_s) for throttle in throttles)
    mine = tuple(throttle for throttle in throttles if throttle.socket == window.socket)
    if state.blind_since_s is not None and window.now_s - state.blind_since_s >= window.config.blind_s:
        return _all_lifted(window, state, throttles, ThrottleReason.BLIND)
    enough = sum(state.votes) >= window.config.votes and not window.is_blind
    contended = enough and bool(window.lastingly_slowed_jobs)
    if contended and state.futile_until_s is None and _since(state.throttled_at_s, window) >= window.config.step_s:
        step = next_step_down(throttles, window.socket, window.pods, window.hardware, negligible=window.negligible)
        if step is not None:
            return _with_throttle(window, state, throttles, step)
    if mine and _is_useless(window, state, exhausted=contended):
        given_up = replace(state, futile_until_s=window.now_s + window.config.futile_s, futile_occupants=(), votes=())
        return _all_lifted(window, given_up, throttles, ThrottleReason.NO_GAIN)
    if mine and _since(acted_at_s, window) >= window.config.release_step_s:
        return _released(window, state, throttles)
    return state, throttles, ()


def _next_state(window: SocketWindow, state: SocketState) -> SocketState:
    near_peak = window.share is not None and window.share >= window.config.trigger_share
    votes = (*state.votes, near_peak and bool(window.slowed_jobs))[-window.config.windows :]
    calm_since_s = _started(state.calm_since_s, window) if window.is_calm else None
    calm_s = 0.0 if calm_since_s is None else window.now_s - calm_since_s
    occupants = state.futile_occupants
    if state.futile_until_s is not None and not occupants:
        undone_s = window.now_s - (state.futile_until_s - window.config.futile_s)
        occupants = window.occupants if undone_s >= window.config.settle_s else ()
    changed = calm_s >= window.config.release_hold_s or window.occupants != occupants
    over = state.futile_until_s is not None and window.now_s >= state.futile_until_s and changed
    return replace(
        state,
        votes=votes,
        calm_since_s=calm_since_s,
        blind_since_s=_started(state.blind_since_s, window) if window.is_blind else None,
        futile_until_s=None if over else state.futile_until_s,
        futile_occupants=occupants,
        reentries=0 if calm_s >= LONGEST_HOLD_S else state.reentries,
    )


def _started(since_s: float | None, window: SocketWindow) -> float:
    return window.now_s if since_s is None else since_s


def _since(at_s: float | None, window: SocketWindow) -> float:
    return math.inf if at_s is None else window.now_s - at_s


def _latest(*times_s: float | None) -> float | None:
    return max((time_s for time_s in times_s if time_s is not None), default=None)


def _with_window(throttle: Throttle, window: SocketWindow, acted_at_s: float | None) -> Throttle:
    """Return `throttle` with what this window says of it: what it settled to, and since when its release fits."""
    if throttle.socket != window.socket or _since(acted_at_s, window) < window.config.settle_s:
        return throttle
    if throttle.settled_bytes_per_s is None and window.share is not None:
        throttle = settled_throttle(throttle, window.pods)
    fits = window.is_calm and predicted_rebound(throttle, window.pods) <= window.headroom
    return replace(throttle, fits_since_s=_started(throttle.fits_since_s, window) if fits else None)


def _with_throttle(
    window: SocketWindow, state: SocketState, throttles: tuple[Throttle, ...], step: Throttle
) -> SocketDecision:
    same = [throttle for throttle in throttles if (throttle.socket, throttle.means) == (step.socket, step.means)]
    replaced = next((throttle for throttle in same if set(throttle.pods) <= set(step.pods)), None)
    first = not any(throttle.socket == window.socket for throttle in throttles)
    again = _since(state.released_at_s, window) < window.config.reentry_hold_s
    before = (
        SlowedJob(job=name, share=window.references[name].latest(window.config.votes) or 0.0)
        for name in window.lastingly_slowed_jobs
    )
    state = replace(
        state,
        votes=(),
        throttled_at_s=window.now_s,
        released_at_s=None,
        reentries=state.reentries + again,
        before=tuple(before) if first else state.before,
    )
    others = (throttle for throttle in throttles if throttle is not replaced)
    return (
        state,
        _in_order((*others, step)),
        (apply_action(step, ThrottleReason.CONTENDED, window.lastingly_slowed_jobs),),
    )


def _is_useless(window: SocketWindow, state: SocketState, *, exhausted: bool) -> bool:
    """True if the throttles had their effect, or nothing is left to throttle, and no slowed job gained."""
    relieved = window.share is not None and window.share < window.config.trigger_share
    if not window.slowed_jobs or not (relieved or exhausted):
        return False
    if _since(state.throttled_at_s, window) < window.config.settle_s:
        return False
    gains = [_gained(window, one) for one in state.before if one.job in window.references]
    return bool(gains) and not any(gains)


def _gained(window: SocketWindow, before: SlowedJob) -> bool:
    reference = window.references[before.job]
    now = reference.latest(RECENT)
    return now is None or now - before.share >= window.config.gain_share * (reference.share - before.share)


def _all_lifted(
    window: SocketWindow, state: SocketState, throttles: tuple[Throttle, ...], reason: ThrottleReason
) -> SocketDecision:
    mine = [throttle for throttle in throttles if throttle.socket == window.socket]
    actions = tuple(lift_action(throttle, reason, _names(state)) for throttle in mine)
    return replace(state, before=()), tuple(other for other in throttles if other not in mine), actions


def _released(window: SocketWindow, state: SocketState, throttles: tuple[Throttle, ...]) -> SocketDecision:
    """Release one step of every throttle whose release has fitted long enough and fits now, the lightest first."""
    headroom, kept, actions = window.headroom, [], []
    reason = ThrottleReason.CALM if window.jobs else ThrottleReason.NO_VICTIM
    for throttle in sorted(throttles, key=lambda throttle: (predicted_rebound(throttle, window.pods), throttle.pods)):
        wanted = predicted_rebound(throttle, window.pods)
        fits_s = 0.0 if throttle.fits_since_s is None else window.now_s - throttle.fits_since_s
        if throttle.fits_since_s is None or fits_s < _hold_s(window, state, throttle) or wanted > headroom:
            kept.append(throttle)
            continue
        headroom -= wanted
        up = step_up(throttle)
        kept += [] if up is None else [up]
        actions.append(
            lift_action(throttle, reason, _names(state)) if up is None else apply_action(up, reason, _names(state))
        )
    released_at_s = window.now_s if actions else state.released_at_s
    return replace(state, released_at_s=released_at_s), _in_order(tuple(kept)), tuple(actions)


def _hold_s(window: SocketWindow, state: SocketState, throttle: Throttle) -> float:
    """How long to hold: longer each time for pods that are still limited and whose release led to a throttle before."""
    if throttle.socket != window.socket:
        return math.inf
    config = window.config
    if not state.reentries or not window.jobs or not is_still_limited(throttle, window.pods):
        return config.release_hold_s
    return max(config.release_hold_s, min(LONGEST_HOLD_S, config.reentry_hold_s * 2.0 ** (state.reentries - 1)))


def _names(state: SocketState) -> tuple[str, ...]:
    return tuple(one.job for one in state.before)


def _in_order(throttles: tuple[Throttle, ...]) -> tuple[Throttle, ...]:
    return tuple(sorted(throttles, key=lambda throttle: (throttle.socket, throttle.means.value, throttle.pods)))
