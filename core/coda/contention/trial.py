"""Does a throttle help? A trial steps down until the socket is relieved, and is kept only if a job's GPUs get busier.

Two levels are compared: the last windows under contention before it, and those since its last step had its effect.
Throttles that helped are released on probation later: chance, or a pause that ended, does not lower a utilisation
again. They come back at once if it falls, and stay away if it does not.
Source: ours (CODA throttles and never asks whether it helped).
"""

from __future__ import annotations

import math
from dataclasses import replace

from coda.contention.levels import ENOUGH, FEWEST, BusyLevel, Verdict, mean_of, verdict_on_rise
from coda.contention.reference import SPAN
from coda.contention.socket_state import (
    Hold,
    Probation,
    SocketDecision,
    SocketState,
    SocketWindow,
    Trial,
    in_order,
    slowed_names,
)
from coda.contention.throttles import (
    Action,
    Means,
    Throttle,
    ThrottleReason,
    apply_action,
    lift_action,
    next_steps_down,
)

LONGEST_WAIT_S = 3600.0
"""Between two trials without a gain, and between two probations. Our choice."""

CERTAIN_CHECKS = 2
"""Probations after which a gain was no chance, so that failures before it are forgotten. Our choice."""


def begin_trial(
    window: SocketWindow,
    state: SocketState,
    throttles: tuple[Throttle, ...],
    jobs: tuple[str, ...],
    before: tuple[BusyLevel, ...] | None = None,
) -> SocketDecision | None:
    """Begin a trial for `jobs`; None if nothing can be throttled.

    `before`: their levels under contention; None: of the last windows."""
    mine = tuple(throttle for throttle in throttles if throttle.socket == window.socket)
    if before is None:
        references = (window.references[job.job] for job in window.jobs)
        before = tuple(one.level(one.hot) for one in references if one.hot)
    again = state.released_at_s is not None and window.now_s - state.released_at_s < window.config.reentry_hold_s
    state = replace(
        state,
        votes=(),
        released_at_s=None,
        reentries=state.reentries + again,
        trial=Trial(began_s=window.now_s, jobs=jobs, base=mine, before=before),
    )
    return _step_down(window, state, throttles)


def continue_trial(window: SocketWindow, state: SocketState, throttles: tuple[Throttle, ...]) -> SocketDecision:
    """Step further down, wait, keep the throttles, or undo them."""
    trial, config = state.trial, window.config
    assert trial is not None
    since_step_s = window.now_s - (state.throttled_at_s or 0.0)
    if window.is_near_peak and since_step_s >= config.step_s:
        step = _step_down(window, state, throttles)
        if step is not None:
            return step
    if since_step_s >= config.lag_s:
        trial = replace(trial, after=window.with_samples(trial.after), windows=trial.windows + 1)
        state = replace(state, trial=trial)
    found = [(level.job, _gain(window, level, trial)) for level in trial.after]
    helped = tuple(job for job, verdict in found if verdict is Verdict.PROVED)
    if helped:
        return _kept(window, state, throttles, helped)
    late = window.now_s - trial.began_s >= config.trial_s and trial.windows > FEWEST
    if late or {verdict for _job, verdict in found} == {Verdict.REFUTED}:
        return _undone(window, state, throttles)
    return SocketDecision(state=state, throttles=throttles)


def begin_probation(window: SocketWindow, state: SocketState, throttles: tuple[Throttle, ...]) -> SocketDecision:
    """Release the throttles of the socket, which helped, to see whether they still do."""
    assert state.hold is not None
    mine = tuple(throttle for throttle in throttles if throttle.socket == window.socket)
    before = levels_to_check(window, state.hold)
    actions = tuple(lift_action(throttle, ThrottleReason.PROBATION, state.hold.jobs) for throttle in mine)
    probation = Probation(began_s=window.now_s, saved=mine, before=before)
    others = tuple(throttle for throttle in throttles if throttle not in mine)
    return SocketDecision(state=replace(state, probation=probation, votes=()), throttles=others, actions=actions)


def levels_to_check(window: SocketWindow, hold: Hold) -> tuple[BusyLevel, ...]:
    """Return the levels of the helped jobs whose fall would show: the steady ones'.

    Where none was for as long as a pause may last, those of jobs that work in pieces, their pauses left out."""
    helped = [window.references[job.job] for job in window.jobs if job.job in hold.jobs]
    steady = tuple(one.level(one.recent[-SPAN:]) for one in helped if one.is_steady)
    if steady or window.now_s - hold.check_at_s < window.config.pause_s:
        return steady
    return tuple(one.level(one.pieces) for one in helped if one.is_evidence and len(one.pieces) == SPAN)


def watch_probation(window: SocketWindow, state: SocketState, throttles: tuple[Throttle, ...]) -> SocketDecision:
    """Put the throttles back as soon as a job falls; forget them if none does."""
    probation, config = state.probation, window.config
    assert probation is not None
    probation = replace(
        probation, before=_of_jobs_here(probation.before, window), after=_of_jobs_here(probation.after, window)
    )
    state = replace(state, probation=probation)
    if window.is_near_peak and window.now_s - probation.began_s >= config.lag_s:
        probation = replace(probation, after=window.with_samples(probation.after))
        state = replace(state, probation=probation)
    now = {level.job: level for level in probation.after}
    found = [_fall(window, level, now[level.job]) for level in probation.before if level.job in now]
    if Verdict.PROVED in found:
        return _put_back(window, state, throttles)
    enough = max(ENOUGH, math.ceil(config.trial_s / config.window_s))
    if any(len(level.shares) >= enough for level in probation.after) or set(found) == {Verdict.REFUTED}:
        return SocketDecision(state=_failed(window, state), throttles=throttles, levels=probation.before)
    if window.now_s - probation.began_s >= config.futile_s:
        state = replace(state, probation=None, hold=None)
    return SocketDecision(state=state, throttles=throttles)


def _step_down(window: SocketWindow, state: SocketState, throttles: tuple[Throttle, ...]) -> SocketDecision | None:
    steps = next_steps_down(throttles, window.socket, window.pods, window.hardware, negligible=window.negligible)
    if not steps or state.trial is None:
        return None
    for step in steps:
        throttles = (*(throttle for throttle in throttles if not _is_same(throttle, step)), step)
    known = all(window.references[job].is_known(window.config) for job in state.trial.jobs if job in window.references)
    reason = ThrottleReason.CONTENDED if known else ThrottleReason.PROBE
    state = replace(state, throttled_at_s=window.now_s, trial=replace(state.trial, after=(), windows=0))
    actions = tuple(apply_action(step, reason, slowed_names(state)) for step in steps)
    return SocketDecision(state=state, throttles=in_order(throttles), actions=actions)


def _gain(window: SocketWindow, after: BusyLevel, trial: Trial) -> Verdict:
    before = next((level for level in trial.before if level.job == after.job), None)
    if before is None:
        return Verdict.OPEN
    reference, config = window.references[after.job], window.config
    now = mean_of(before.shares)
    least = config.drop_share * now
    if reference.is_known(config):
        least = max(0.5 * least, config.gain_share * (reference.share - now))
    return _verdict(window, before, after, least)


def _fall(window: SocketWindow, before: BusyLevel, after: BusyLevel) -> Verdict:
    return _verdict(window, after, before, 0.5 * window.config.drop_share * mean_of(before.shares))


def _of_jobs_here(levels: tuple[BusyLevel, ...], window: SocketWindow) -> tuple[BusyLevel, ...]:
    """Return `levels` without jobs that have ended, or left the socket, meanwhile."""
    here = {job.job for job in window.jobs}
    return tuple(level for level in levels if level.job in here)


def _verdict(window: SocketWindow, low: BusyLevel, high: BusyLevel, least: float) -> Verdict:
    counts = (max(1, len(low.shares)), max(1, len(high.shares)))
    error = window.references[low.job].error_of(*counts)
    return verdict_on_rise(low, high, least=least, error=error, certainty=window.config.gain_certainty)


def _kept(
    window: SocketWindow, state: SocketState, throttles: tuple[Throttle, ...], helped: tuple[str, ...]
) -> SocketDecision:
    assert state.trial is not None
    jobs = tuple(sorted({*(state.hold.jobs if state.hold else ()), *helped}))
    hold = Hold(jobs=jobs, check_at_s=window.now_s + window.config.confirm_s)
    levels = () if window.is_near_peak else state.trial.after
    state = replace(state, trial=None, hold=hold, retry_at_s=None, is_interrupted=False)
    return SocketDecision(state=state, throttles=throttles, levels=levels)


def _undone(window: SocketWindow, state: SocketState, throttles: tuple[Throttle, ...]) -> SocketDecision:
    """Back to the throttles from before the trial."""
    trial = state.trial
    assert trial is not None
    kept: list[Throttle] = [throttle for throttle in throttles if throttle.socket != window.socket]
    actions: list[Action] = []
    for throttle in throttles:
        if throttle.socket != window.socket:
            continue
        base = next((one for one in trial.base if _is_same(one, throttle)), None)
        pods = () if base is None else tuple(uid for uid in base.pods if uid in throttle.pods)
        if base is None or not pods:
            actions.append(lift_action(throttle, ThrottleReason.NO_GAIN, slowed_names(state)))
            continue
        kept.append(replace(base, pods=pods, fits_since_s=None))
        if (throttle.value, throttle.pods) != (base.value, pods):
            actions.append(apply_action(kept[-1], ThrottleReason.NO_GAIN, slowed_names(state)))
    judged = any(len(level.shares) >= FEWEST for level in trial.after)
    if not judged and not state.is_interrupted:
        retry_at_s = window.now_s + window.config.interrupted_s
        state = replace(state, trial=None, retry_at_s=retry_at_s, is_interrupted=True)
        return SocketDecision(state=state, throttles=in_order(tuple(kept)), actions=tuple(actions))
    levels = () if window.is_near_peak else tuple(one for one in trial.after if len(one.shares) >= FEWEST)
    return SocketDecision(
        state=_failed(window, state), throttles=in_order(tuple(kept)), actions=tuple(actions), levels=levels
    )


def _failed(window: SocketWindow, state: SocketState) -> SocketState:
    wait_s = min(LONGEST_WAIT_S, window.config.futile_s * 2.0**state.failures)
    return replace(
        state,
        votes=(),
        trial=None,
        hold=state.hold if state.trial else None,
        probation=None,
        failures=state.failures + 1,
        failed_at_s=window.now_s,
        retry_at_s=window.now_s + wait_s,
        is_interrupted=False,
        known=tuple(sorted({*state.known, *window.occupants})),
    )


def _put_back(window: SocketWindow, state: SocketState, throttles: tuple[Throttle, ...]) -> SocketDecision:
    """The throttles as they were, without the pods that may not be throttled any more."""
    assert state.probation is not None
    assert state.hold is not None
    again: list[Throttle] = []
    for throttle in state.probation.saved:
        pods = tuple(uid for uid in throttle.pods if uid in window.pods and not window.pods[uid].protections)
        if pods:
            again.append(replace(throttle, pods=pods, fits_since_s=None))
    jobs = state.hold.jobs
    checks = state.hold.checks + 1
    wait_s = min(LONGEST_WAIT_S, window.config.confirm_s * 3.0**checks)
    hold = Hold(jobs=jobs, check_at_s=window.now_s + wait_s, checks=checks)
    state = replace(
        state,
        votes=(),
        throttled_at_s=window.now_s,
        probation=None,
        hold=hold if again else None,
        failures=0 if checks >= CERTAIN_CHECKS else state.failures,
    )
    actions = tuple(apply_action(throttle, ThrottleReason.CONTENDED, jobs) for throttle in again)
    return SocketDecision(state=state, throttles=in_order((*throttles, *again)), actions=actions)


def _is_same(one: Throttle, other: Throttle) -> bool:
    """True if both are the throttle of one thing: of a socket's group, or of one pod."""
    same = (one.socket, one.means) == (other.socket, other.means)
    return same and (one.means is Means.BANDWIDTH or one.pods == other.pods)
