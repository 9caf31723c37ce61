"""The eliminator of one node: throttle the heaviest CPU pods while, and only while, a training job is slowed.

`observe` takes the state and one measured window of about 1 s, and returns the next state and what to do.
Source: CODA (ICDCS 2020), contention eliminator.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from coda.contention.config import ContentionConfig
from coda.contention.reference import Reference, TrainingSample, moved, next_references, with_level
from coda.contention.socket_decision import decide_socket
from coda.contention.socket_state import SocketState, SocketWindow, slowed_names
from coda.contention.throttles import (
    Action,
    Hardware,
    Means,
    PodSample,
    Throttle,
    ThrottleReason,
    apply_action,
    lift_action,
)
from coda.errors import InvalidInput


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """What was measured in one window. Raises InvalidInput for impossible numbers."""

    at_s: float  # its end, on any clock that does not jump
    share_by_socket: Mapping[int, float | None]  # bandwidth over peak, >= 0; None: not measured
    pods: Sequence[PodSample] = ()
    jobs: Sequence[TrainingSample] = ()

    def __post_init__(self) -> None:
        shares = [share for share in self.share_by_socket.values() if share is not None]
        used = [rate for pod in self.pods for rate in pod.bytes_per_s.values()]
        if not all(math.isfinite(number) and number >= 0 for number in (*shares, *used)):
            raise InvalidInput("bandwidth must be finite and not negative")
        if not math.isfinite(self.at_s):
            raise InvalidInput(f"a window must end at a finite time, got {self.at_s}")


@dataclass(frozen=True, slots=True, kw_only=True)
class EliminatorState:
    """What the eliminator remembers of a node."""

    at_s: float | None = None
    references: tuple[Reference, ...] = ()
    sockets: tuple[SocketState, ...] = ()
    throttles: tuple[Throttle, ...] = ()


def observe(
    state: EliminatorState, window: Window, hardware: Hardware, config: ContentionConfig
) -> tuple[EliminatorState, tuple[Action, ...]]:
    """Return the next state and what to do after one window; actions in order of sockets.

    The order of pods and jobs does not matter. If the clock went back, every waiting time starts again. At most one
    step per socket and call. Ties: smaller uid, smaller socket. O(pods log pods) per socket."""
    _refuse_shares_of_nothing(window, hardware)
    state = _in_step(state, window, config)
    pods = {pod.uid: pod for pod in window.pods}
    throttles, actions = _without_the_untouchable(state.throttles, pods)
    silent: dict[int, float | None] = {one.socket: None for one in state.sockets}
    shares = dict(sorted({**silent, **window.share_by_socket}.items()))
    calm = {socket for socket, share in shares.items() if share is not None and share < config.trigger_share}
    cores = {reference.job: reference.cores for reference in state.references}
    resized = {job.job for job in window.jobs if cores.get(job.job, job.cores) != job.cores}
    found = next_references(state.references, window.jobs, calm, window.at_s, config)
    references = {reference.job: reference for reference in found}
    sockets = {one.socket: one for one in state.sockets}
    works_on = {job.job: job.sockets for job in window.jobs}
    for socket, share in shares.items():
        socket_window = SocketWindow(
            now_s=window.at_s,
            socket=socket,
            share=share,
            jobs=tuple(sorted((job for job in window.jobs if socket in job.sockets), key=lambda job: job.job)),
            references=references,
            pods=pods,
            hardware=hardware,
            config=config,
            neighbours=_neighbours(socket, window.jobs, sockets),
        )
        decision = decide_socket(socket_window, sockets.get(socket, SocketState(socket=socket)), throttles)
        throttles, sockets[socket] = decision.throttles, decision.state
        actions += decision.actions
        for level in decision.levels:
            if works_on[level.job] <= {*calm, socket}:  # else it may be slowed on another one
                references[level.job] = with_level(references[level.job], level, config)
        if socket_window.is_near_peak and any(job.job in resized for job in socket_window.jobs):
            sockets[socket] = replace(sockets[socket], stepped_at_s=window.at_s)
        if decision.actions:
            sockets[socket] = replace(sockets[socket], disturbed_at_s=window.at_s)
            references.update(moved(references[job.job] for job in socket_window.jobs))
    return EliminatorState(
        at_s=window.at_s,
        references=tuple(references[name] for name in sorted(references)),
        sockets=tuple(sockets[socket] for socket in sorted(sockets)),
        throttles=throttles,
    ), actions


def recalled(
    state: EliminatorState, jobs: Collection[TrainingSample], kept: Mapping[str, Reference]
) -> EliminatorState:
    """Return the state with the references that an earlier agent had of those `jobs` that have none yet."""
    known = {one.job for one in state.references}
    back = tuple(kept[job.job] for job in jobs if job.job in kept and job.job not in known)
    return replace(state, references=(*state.references, *back)) if back else state


def without_refused(
    state: EliminatorState, refused: Collection[Action], config: ContentionConfig
) -> tuple[EliminatorState, tuple[Action, ...]]:
    """Return the state without the throttles that the node `refused` to make as decided, and what ends them.

    Where a socket has none left, its trial is over: it is repeated once soon, and then after `futile_s`, as after a
    pause."""
    keys = {(one.means, one.socket, one.pods if one.means is Means.CORES else ()) for one in refused}
    lost = [t for t in state.throttles if (t.means, t.socket, t.pods if t.means is Means.CORES else ()) in keys]
    if not lost:
        return state, ()
    kept = tuple(throttle for throttle in state.throttles if throttle not in lost)
    bare = {throttle.socket for throttle in lost} - {throttle.socket for throttle in kept}
    now_s = 0.0 if state.at_s is None else state.at_s
    sockets = tuple(_given_up(one, now_s, config) if one.socket in bare else one for one in state.sockets)
    ends = tuple(lift_action(throttle, ThrottleReason.NO_GAIN, _helped(state, throttle.socket)) for throttle in lost)
    return replace(state, sockets=sockets, throttles=kept), ends


def _given_up(state: SocketState, now_s: float, config: ContentionConfig) -> SocketState:
    wait_s = config.futile_s if state.is_interrupted else config.interrupted_s
    return replace(
        state,
        votes=(),
        trial=None,
        hold=None,
        probation=None,
        retry_at_s=now_s + wait_s,
        is_interrupted=not state.is_interrupted,
    )


def _helped(state: EliminatorState, socket: int) -> tuple[str, ...]:
    return next((slowed_names(one) for one in state.sockets if one.socket == socket), ())


def disturbed_at_s(state: EliminatorState, sockets: Collection[int]) -> float | None:
    """Return when one of these sockets was last contended, a limit moved there, or a job was resized near its peak.

    Utilisations of that time say nothing about the cores of the jobs there. Below the trigger a job's step leaves all
    bandwidth to its neighbours, so it disturbs nobody: jobs of one socket would otherwise take turns. Whoever takes a
    step itself looks only at later times. None: never. As `Window.at_s`."""
    pairs = [(one.disturbed_at_s, one.stepped_at_s) for one in state.sockets if one.socket in sockets]
    return max((at_s for pair in pairs for at_s in pair if at_s is not None), default=None)


def _neighbours(
    socket: int, jobs: Collection[TrainingSample], sockets: Mapping[int, SocketState]
) -> tuple[SocketState, ...]:
    """The other sockets on which jobs of `socket` work."""
    found = {other for job in jobs if socket in job.sockets for other in job.sockets if other != socket}
    return tuple(sockets[other] for other in sorted(found) if other in sockets)


def _refuse_shares_of_nothing(window: Window, hardware: Hardware) -> None:
    for socket, share in window.share_by_socket.items():
        if share is not None and socket not in hardware.peak_bytes_per_s:
            raise InvalidInput(f"socket {socket} has a bandwidth share but no peak bandwidth")


def _in_step(state: EliminatorState, window: Window, config: ContentionConfig) -> EliminatorState:
    """After a gap, or if the clock went back, nothing counts as consecutive and no time is in the future."""
    if state.at_s is None or 0 <= window.at_s - state.at_s <= config.blind_s:
        return state
    throttles = tuple(replace(throttle, fits_since_s=None) for throttle in state.throttles)
    references = tuple(moved(state.references).values())
    references = tuple(
        replace(one, low_since_s=None, other_since_s=None, quiet_until_s=None, counted_at_s=None) for one in references
    )
    sockets = tuple(_after_a_gap(one, window.at_s, config) for one in state.sockets)
    return replace(state, sockets=sockets, throttles=throttles, references=references)


def _after_a_gap(state: SocketState, now_s: float, config: ContentionConfig) -> SocketState:
    trial, hold, probation = state.trial, state.hold, state.probation
    return replace(
        state,
        votes=(),
        calm_since_s=None,
        deserted_since_s=None,
        blind_since_s=_past(state.blind_since_s, now_s),
        throttled_at_s=_past(state.throttled_at_s, now_s),
        released_at_s=_past(state.released_at_s, now_s),
        disturbed_at_s=now_s,
        stepped_at_s=_past(state.stepped_at_s, now_s),
        failed_at_s=_past(state.failed_at_s, now_s),
        retry_at_s=_past(state.retry_at_s, now_s + config.futile_s),
        trial=trial and replace(trial, began_s=min(trial.began_s, now_s), after=(), windows=0),
        hold=hold and replace(hold, check_at_s=max(now_s, min(hold.check_at_s, now_s + config.futile_s))),
        probation=probation and replace(probation, began_s=min(probation.began_s, now_s), after=()),
    )


def _past(time_s: float | None, now_s: float) -> float | None:
    return None if time_s is None else min(time_s, now_s)


def _without_the_untouchable(
    throttles: Sequence[Throttle], pods: Mapping[str, PodSample]
) -> tuple[tuple[Throttle, ...], tuple[Action, ...]]:
    """Return the throttles without the pods that are gone or protected by now, and what to write for that."""
    kept: list[Throttle] = []
    actions: list[Action] = []
    for throttle in throttles:
        rest = tuple(uid for uid in throttle.pods if uid in pods and not pods[uid].protections)
        if rest == throttle.pods:
            kept.append(throttle)
        elif rest:
            kept.append(replace(throttle, pods=rest))
            actions.append(apply_action(kept[-1], ThrottleReason.PROTECTED, ()))
        elif throttle.means is Means.BANDWIDTH or throttle.pods[0] in pods:
            actions.append(lift_action(throttle, ThrottleReason.PROTECTED, ()))
    return tuple(kept), tuple(actions)
