"""When the throttles of a socket are released, one step at a time, and how all of them are lifted at once.

A step is released when bandwidth has been low for a while and is predicted to stay low after it, so constant load
settles. Source: ours.
"""

from __future__ import annotations

import math
from dataclasses import replace

from coda.contention.socket_state import SocketDecision, SocketState, SocketWindow, in_order, slowed_names
from coda.contention.throttles import (
    Throttle,
    ThrottleReason,
    apply_action,
    is_still_limited,
    lift_action,
    predicted_rebound,
    step_up,
)

LONGEST_HOLD_S = 3600.0


def lift_all(
    window: SocketWindow, state: SocketState, throttles: tuple[Throttle, ...], reason: ThrottleReason
) -> SocketDecision:
    """Lift every throttle of the socket, for `reason`. Throttles of other sockets stay."""
    mine = [throttle for throttle in throttles if throttle.socket == window.socket]
    actions = tuple(lift_action(throttle, reason, slowed_names(state)) for throttle in mine)
    return SocketDecision(
        state=replace(state, trial=None, hold=None, probation=None),
        throttles=tuple(other for other in throttles if other not in mine),
        actions=actions,
    )


def release_calm(window: SocketWindow, state: SocketState, throttles: tuple[Throttle, ...]) -> SocketDecision:
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
            lift_action(throttle, reason, slowed_names(state))
            if up is None
            else apply_action(up, reason, slowed_names(state))
        )
    released_at_s = window.now_s if actions else state.released_at_s
    return SocketDecision(
        state=replace(state, released_at_s=released_at_s), throttles=in_order(tuple(kept)), actions=tuple(actions)
    )


def _hold_s(window: SocketWindow, state: SocketState, throttle: Throttle) -> float:
    """How long to hold: longer each time for pods that are still limited and whose release led to a throttle before."""
    if throttle.socket != window.socket:
        return math.inf
    config = window.config
    if not state.reentries or not window.jobs or not is_still_limited(throttle, window.pods):
        return config.release_hold_s
    return max(config.release_hold_s, min(LONGEST_HOLD_S, config.reentry_hold_s * 2.0 ** (state.reentries - 1)))
