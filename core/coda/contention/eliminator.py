"""The eliminator of one node: throttle the heaviest CPU pods while, and only while, a training job is slowed.

`observe` takes the state and one measured window of about 1 s, and returns the next state and what to do.
Source: CODA (ICDCS 2020), contention eliminator.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from coda.contention.config import ContentionConfig
from coda.contention.reference import Reference, TrainingSample, next_references
from coda.contention.socket_decision import decide_socket
from coda.contention.socket_state import SocketState, SocketWindow
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
    throttle per socket and call. Ties: smaller uid, smaller socket. O(pods log pods) per socket."""
    _refuse_shares_of_nothing(window, hardware)
    state = _in_step(state, window, config)
    pods = {pod.uid: pod for pod in window.pods}
    throttles, actions = _without_the_untouchable(state.throttles, pods)
    silent: dict[int, float | None] = {one.socket: None for one in state.sockets}
    shares = dict(sorted({**silent, **window.share_by_socket}.items()))
    held = {throttle.socket for throttle in throttles}
    calm = {socket for socket, share in shares.items() if share is not None and share < config.trigger_share} - held
    references = {
        reference.job: reference for reference in next_references(state.references, window.jobs, calm, config)
    }
    sockets = {one.socket: one for one in state.sockets}
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
        )
        sockets[socket], throttles, done = decide_socket(
            socket_window, sockets.get(socket, SocketState(socket=socket)), throttles
        )
        actions += done
        if any(action.reason is ThrottleReason.CONTENDED for action in done):  # judge it by the windows after it
            fresh = {job.job: replace(references[job.job], recent=()) for job in socket_window.jobs}
            references.update(fresh)
    return EliminatorState(
        at_s=window.at_s,
        references=tuple(references[name] for name in sorted(references)),
        sockets=tuple(sockets[socket] for socket in sorted(sockets)),
        throttles=throttles,
    ), actions


def _refuse_shares_of_nothing(window: Window, hardware: Hardware) -> None:
    for socket, share in window.share_by_socket.items():
        if share is not None and socket not in hardware.peak_bytes_per_s:
            raise InvalidInput(f"socket {socket} has a bandwidth share but no peak bandwidth")


def _in_step(state: EliminatorState, window: Window, config: ContentionConfig) -> EliminatorState:
    """After a gap, or if the clock went back, nothing counts as consecutive and no time is in the future."""
    if state.at_s is None or 0 <= window.at_s - state.at_s <= config.windows * config.window_s:
        return state
    now_s = window.at_s

    def past(time_s: float | None) -> float | None:
        return None if time_s is None else min(time_s, now_s)

    sockets = tuple(
        replace(
            one,
            votes=(),
            calm_since_s=None,
            blind_since_s=past(one.blind_since_s),
            throttled_at_s=past(one.throttled_at_s),
            released_at_s=past(one.released_at_s),
            futile_until_s=None if one.futile_until_s is None else min(one.futile_until_s, now_s + config.futile_s),
        )
        for one in state.sockets
    )
    throttles = tuple(replace(throttle, fits_since_s=None) for throttle in state.throttles)
    return replace(state, sockets=sockets, throttles=throttles)


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
