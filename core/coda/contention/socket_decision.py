"""The contention of one socket: when to throttle, whether that helped, and when to release.

A socket is contended if its bandwidth is near the peak and a job on it is slowed, both in most of the last windows, and
the job also on average over them. Each throttle is one step. If the steps bring no gain to the slowed jobs, all
throttles of the socket are lifted, and the socket is left alone until something changes. Without sensors, nothing new
is done, and throttles end after a while. `release` says how a step is released.
Source: CODA (ICDCS 2020), contention eliminator: both conditions and the action; the rest is ours.
"""

from __future__ import annotations

import math
from dataclasses import replace

from coda.contention.reference import RECENT
from coda.contention.release import LONGEST_HOLD_S, lift_all, release_calm
from coda.contention.socket_state import SlowedJob, SocketDecision, SocketState, SocketWindow, in_order
from coda.contention.throttles import (
    Throttle,
    ThrottleReason,
    apply_action,
    next_step_down,
    predicted_rebound,
    settled_throttle,
)


def decide_socket(window: SocketWindow, state: SocketState, throttles: tuple[Throttle, ...]) -> SocketDecision:
    """Return the next state of the socket, all throttles of the node afterwards, and what to do.

    At most one throttle, or one step of releases."""
    state = _next_state(window, state)
    acted_at_s = _latest(state.throttled_at_s, state.released_at_s)
    throttles = tuple(_with_window(throttle, window, acted_at_s) for throttle in throttles)
    mine = tuple(throttle for throttle in throttles if throttle.socket == window.socket)
    if state.blind_since_s is not None and window.now_s - state.blind_since_s >= window.config.blind_s:
        return lift_all(window, state, throttles, ThrottleReason.BLIND)
    enough = sum(state.votes) >= window.config.votes and not window.is_blind
    contended = enough and bool(window.lastingly_slowed_jobs)
    if contended and state.futile_until_s is None and _since(state.throttled_at_s, window) >= window.config.step_s:
        step = next_step_down(throttles, window.socket, window.pods, window.hardware, negligible=window.negligible)
        if step is not None:
            return _with_throttle(window, state, throttles, step)
    if mine and _is_useless(window, state, exhausted=contended):
        given_up = replace(state, futile_until_s=window.now_s + window.config.futile_s, futile_occupants=(), votes=())
        return lift_all(window, given_up, throttles, ThrottleReason.NO_GAIN)
    if mine and _since(acted_at_s, window) >= window.config.release_step_s:
        return release_calm(window, state, throttles)
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
        in_order((*others, step)),
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
