"""The contention eliminator: throttle the heaviest CPU pods while, and only while, a training job suffers.

`observe` takes what was measured in one window of about 1 s and what is remembered, and gives what to do and what to
remember. What must not live here: reading counters, writing limits, and clocks. What happens on one socket: `sockets`;
the jobs' references: `baselines`; how a throttle is made: `throttles`. A *socket* here is whatever has memory bandwidth
of its own: on some processors a group of cores with one cache. Source: CODA (ICDCS 2020), contention eliminator.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from coda.contention.config import ContentionConfig
from coda.contention.per_socket import SocketState, SocketWindow, decide_socket
from coda.contention.reference import Reference, TrainingSample, next_reference
from coda.contention.throttles import Action, Hardware, Means, Pod, Throttle, ThrottleReason, apply_action, lift_action
from coda.errors import InvalidInput


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """What was measured in one window. Raises InvalidInput for numbers that cannot be."""

    at_s: float  # its end, any clock that does not jump
    share_by_socket: Mapping[int, float | None]  # bandwidth over peak, >= 0; None: not measured
    pods: Sequence[Pod] = ()
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
    """All that the eliminator remembers of a node."""

    at_s: float | None = None
    baselines: tuple[Reference, ...] = ()
    watches: tuple[SocketState, ...] = ()
    throttles: tuple[Throttle, ...] = ()


def observe(
    state: EliminatorState, window: Window, hardware: Hardware, config: ContentionConfig
) -> tuple[EliminatorState, tuple[Action, ...]]:
    """What to remember and what to do after one window; actions in order of sockets.

    Pods and jobs in any order give the same result. A clock that went back restarts every waiting time. At most one
    throttle per socket and call. Ties: smaller uid, smaller socket. Cost: O(pods log pods) per socket."""
    _refuse_shares_of_nothing(window, hardware)
    state = _in_step(state, window, config)
    pods = {pod.uid: pod for pod in window.pods}
    throttles, actions = _without_the_untouchable(state.throttles, pods)
    silent: dict[int, float | None] = {watch.socket: None for watch in state.watches}
    shares = dict(sorted({**silent, **window.share_by_socket}.items()))
    held = {throttle.socket for throttle in throttles}
    calm = {socket for socket, share in shares.items() if share is not None and share < config.trigger_share} - held
    baselines = {baseline.job: baseline for baseline in next_reference(state.baselines, window.jobs, calm, config)}
    watches = {watch.socket: watch for watch in state.watches}
    for socket, share in shares.items():
        scene = SocketWindow(
            now_s=window.at_s,
            socket=socket,
            share=share,
            jobs=tuple(sorted((job for job in window.jobs if socket in job.sockets), key=lambda job: job.job)),
            baselines=baselines,
            pods=pods,
            hardware=hardware,
            config=config,
        )
        watches[socket], throttles, done = decide_socket(
            scene, watches.get(socket, SocketState(socket=socket)), throttles
        )
        actions += done
        if any(action.reason is ThrottleReason.CONTENDED for action in done):  # judge it by what comes from now on
            fresh = {job.job: replace(baselines[job.job], recent=()) for job in scene.jobs}
            baselines.update(fresh)
    return EliminatorState(
        at_s=window.at_s,
        baselines=tuple(baselines[name] for name in sorted(baselines)),
        watches=tuple(watches[socket] for socket in sorted(watches)),
        throttles=throttles,
    ), actions


def _refuse_shares_of_nothing(window: Window, hardware: Hardware) -> None:
    for socket, share in window.share_by_socket.items():
        if share is not None and socket not in hardware.peak_bytes_per_s:
            raise InvalidInput(f"socket {socket} has a bandwidth share but no peak bandwidth")


def _in_step(state: EliminatorState, window: Window, config: ContentionConfig) -> EliminatorState:
    """After a gap, or a clock that went back, nothing counts as consecutive; no time lies in the future."""
    if state.at_s is None or 0 <= window.at_s - state.at_s <= config.windows * config.window_s:
        return state
    now_s = window.at_s

    def past(time_s: float | None) -> float | None:
        return None if time_s is None else min(time_s, now_s)

    watches = tuple(
        replace(
            watch,
            votes=(),
            calm_since_s=None,
            blind_since_s=past(watch.blind_since_s),
            throttled_at_s=past(watch.throttled_at_s),
            released_at_s=past(watch.released_at_s),
            futile_until_s=None if watch.futile_until_s is None else min(watch.futile_until_s, now_s + config.futile_s),
        )
        for watch in state.watches
    )
    throttles = tuple(replace(throttle, fits_since_s=None) for throttle in state.throttles)
    return replace(state, watches=watches, throttles=throttles)


def _without_the_untouchable(
    throttles: Sequence[Throttle], pods: Mapping[str, Pod]
) -> tuple[tuple[Throttle, ...], tuple[Action, ...]]:
    """Throttles without pods that are gone or protected by now, and what to write for it."""
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
