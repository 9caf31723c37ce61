"""The contention of one socket: when to try a throttle, when to check one that helped, and when to release.

A socket is contended if its bandwidth is near the peak and a job on it is slowed, both in most of the last windows, and
the job on average by more than noise explains. Where nobody knows how busy a job would be without contention, a socket
near its peak is enough. Both begin a trial (`trial`), and only a trial that helped is kept. Without sensors, nothing
new is done, and throttles end after a while. `release` says how a step is released.
Source: CODA (ICDCS 2020), contention eliminator: both conditions and the action; the rest is ours.
"""

from __future__ import annotations

import math
from dataclasses import replace

from coda.contention.release import LONGEST_HOLD_S, lift_all, release_calm
from coda.contention.socket_state import SocketDecision, SocketState, SocketWindow, Trial
from coda.contention.throttles import Throttle, ThrottleReason, is_measured, predicted_rebound, settled_throttle
from coda.contention.trial import (
    LONGEST_WAIT_S,
    begin_probation,
    begin_trial,
    continue_trial,
    levels_to_check,
    watch_probation,
)


def decide_socket(window: SocketWindow, state: SocketState, throttles: tuple[Throttle, ...]) -> SocketDecision:
    """Return the next state of the socket, all throttles of the node afterwards, and what to do.

    At most one step down, one return to an earlier state, or one step of releases."""
    state = _next_state(window, state)
    acted_at_s = _latest(state.throttled_at_s, state.released_at_s)
    throttles = tuple(_with_window(throttle, window, acted_at_s) for throttle in throttles)
    has_any = any(throttle.socket == window.socket for throttle in throttles)
    if not has_any and not state.trial and not state.probation:
        state = replace(state, hold=None)
    if state.blind_since_s is not None and window.now_s - state.blind_since_s >= window.config.blind_s:
        return lift_all(window, state, throttles, ThrottleReason.BLIND)
    if state.trial is not None:
        return continue_trial(window, state, throttles)
    if state.probation is not None:
        return watch_probation(window, state, throttles)
    if _is_deserted(window, state) or _is_uncheckable(
        window, state
    ):  # whoever else gains from them shows it by a trial of its own, at once
        return lift_all(window, replace(state, retry_at_s=None), throttles, ThrottleReason.NO_VICTIM)
    joined = _trial_to_join(window, state)
    jobs = joined.jobs if joined else _jobs_to_try_for(window, state)
    begun = begin_trial(window, state, throttles, jobs, joined.before if joined else None) if jobs else None
    if begun is not None:
        return begun
    if has_any and _is_check_due(window, state):
        return begin_probation(window, state, throttles)
    if has_any and _since(acted_at_s, window) >= window.config.release_step_s:
        return release_calm(window, state, throttles)
    return SocketDecision(state=state, throttles=throttles)


def _next_state(window: SocketWindow, state: SocketState) -> SocketState:
    vote = window.is_near_peak and window.has_slowed_job
    calm_since_s = _started(state.calm_since_s, window) if window.is_calm else None
    calm_s = 0.0 if calm_since_s is None else window.now_s - calm_since_s
    state = replace(
        state,
        votes=(*state.votes, vote)[-window.config.windows :],
        calm_since_s=calm_since_s,
        deserted_since_s=_started(state.deserted_since_s, window) if _helps_nobody_here(window, state) else None,
        blind_since_s=_started(state.blind_since_s, window) if window.is_blind else None,
        disturbed_at_s=window.now_s if vote or state.trial or state.probation else state.disturbed_at_s,
        reentries=0 if calm_s >= LONGEST_HOLD_S else state.reentries,
    )
    return _with_newcomers(window, state)


def _with_newcomers(window: SocketWindow, state: SocketState) -> SocketState:
    """After a failed trial a new pod or job is worth another one, but not more often than every `futile_s`."""
    if not state.failures or state.failed_at_s is None or set(window.occupants) <= set(state.known):
        return state
    if window.now_s - state.failed_at_s < window.config.settle_s:  # pods that were throttled come back
        return replace(state, known=tuple(sorted({*state.known, *window.occupants})))
    return replace(state, failures=0, retry_at_s=state.failed_at_s + window.config.futile_s, known=())


def _jobs_to_try_for(window: SocketWindow, state: SocketState) -> tuple[str, ...]:
    waits = state.retry_at_s is not None and window.now_s < max(state.retry_at_s, *_partners_due_s(window, state))
    if waits or window.is_blind or not window.is_near_peak:
        return ()
    slowed = window.lastingly_slowed_jobs if sum(state.votes) >= window.config.votes else ()
    return _not_judged_elsewhere(slowed, window) or _not_judged_elsewhere(window.unknown_jobs, window)


def _helps_nobody_here(window: SocketWindow, state: SocketState) -> bool:
    return state.hold is not None and {job.job for job in window.jobs}.isdisjoint(state.hold.jobs)


def _is_deserted(window: SocketWindow, state: SocketState) -> bool:
    """True if every job that the throttles helped has ended, or works elsewhere, for as long as calm must last.

    A check would never be due: nobody is left whose fall would show. One window proves nothing, because a job is on the
    sockets that have its traffic."""
    since_s = state.deserted_since_s
    return since_s is not None and window.now_s - since_s >= window.config.release_hold_s


def _is_uncheckable(window: SocketWindow, state: SocketState) -> bool:
    """True if nobody can tell whether the throttles still help: all helped jobs here are idle or not measured.

    Or a check is overdue, by as much as two may be apart: a job that works now and then loses its protection for a
    trial, so not more often. Whoever still suffers shows it by a trial."""
    hold = state.hold
    if hold is None:
        return False
    helped = [window.references[job.job] for job in window.jobs if job.job in hold.jobs]
    are_silent = bool(helped) and all(one.is_silent(window.now_s, window.config.futile_s) for one in helped)
    return are_silent or window.now_s - hold.check_at_s >= LONGEST_WAIT_S


def _is_check_due(window: SocketWindow, state: SocketState) -> bool:
    """True if the time has come and a fall of a job that was helped would show."""
    if state.hold is None or window.now_s < state.hold.check_at_s or window.is_blind:
        return False
    jobs = tuple(level.job for level in levels_to_check(window, state.hold))
    return bool(_not_judged_elsewhere(jobs, window))


def _trial_to_join(window: SocketWindow, state: SocketState) -> Trial | None:
    """A trial of another socket that has just begun, if both were tried without a gain before, and this one is due.

    A job may wait for the slower of its sockets: then one alone shows no gain, and both together do."""
    is_due = state.failures and (state.retry_at_s is None or window.now_s >= state.retry_at_s)
    if not is_due or window.is_blind or not window.is_near_peak:
        return None
    here = {job.job for job in window.jobs}
    for other in window.neighbours:
        trial = other.trial
        is_new = trial is not None and window.now_s - trial.began_s <= window.config.lag_s
        if trial is not None and is_new and other.failures and here.issuperset(trial.jobs):
            return trial
    return None


def _partners_due_s(window: SocketWindow, state: SocketState) -> list[float]:
    """When neighbours are due that are worth waiting for, because both were tried soon after each other, in vain."""
    due = [one.retry_at_s for one in window.neighbours if one.failures and one.retry_at_s is not None]
    soon_s = (state.retry_at_s or 0.0) + 2 * window.config.trial_s
    return [0.0, *(at_s for at_s in due if at_s <= soon_s)]


def _not_judged_elsewhere(jobs: tuple[str, ...], window: SocketWindow) -> tuple[str, ...]:
    """Of a job on two sockets, one is tried at a time at first: else nobody knows which limit moved its utilisation."""
    return tuple(job for job in jobs if job not in window.judged_elsewhere)


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
    is_known = window.share is not None and is_measured(throttle, window.pods)
    if throttle.settled_bytes_per_s is None and is_known:
        throttle = settled_throttle(throttle, window.pods)
    fits = window.is_calm and predicted_rebound(throttle, window.pods) <= window.headroom
    return replace(throttle, fits_since_s=_started(throttle.fits_since_s, window) if fits else None)
