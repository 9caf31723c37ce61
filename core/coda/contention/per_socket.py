"""One socket's contention: when to throttle, what it was good for, when to give back.

A socket is contended when its bandwidth is near the peak and a job on it suffers, both in most of the last windows,
and the job on average over them. Each throttle is one step; when the steps show no gain for those who suffer, all on
the socket are undone, and it is left alone until something changes. A step is given back once bandwidth has been low
for a while and what that brings back is predicted to stay low, so constant load comes to rest. Without sensors nothing
new is done, and what is in force ends after a while. What must not live here: what concerns the whole node
(`contention`).
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
    Pod,
    Throttle,
    ThrottleReason,
    apply_action,
    is_still_limited,
    lift_action,
    one_down,
    one_up,
    predicted_rebound,
    settled,
)

LONGEST_HOLD_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowedJob:
    """How busy a job kept its GPUs before anything was throttled for it."""

    job: str
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SocketState:
    """What is remembered of one socket."""

    socket: int
    votes: tuple[bool, ...] = ()  # both conditions, latest windows last
    throttled_at_s: float | None = None
    released_at_s: float | None = None
    calm_since_s: float | None = None  # little bandwidth, or nobody to protect
    blind_since_s: float | None = None
    before: tuple[SlowedJob, ...] = ()  # when the first of the present throttles was set
    reentries: int = 0  # releases that soon led to a throttle again
    futile_until_s: float | None = None
    futile_company: tuple[str, ...] = ()  # those on the socket then, once the undoing showed


@dataclass(frozen=True, slots=True, kw_only=True)
class SocketWindow:
    """One socket in one window."""

    now_s: float
    socket: int
    share: float | None
    jobs: tuple[TrainingSample, ...]
    baselines: Mapping[str, Reference]
    pods: Mapping[str, Pod]
    hardware: Hardware
    config: ContentionConfig

    @property
    def sufferers(self) -> tuple[str, ...]:
        """Jobs on the socket that are clearly below their reference."""
        return tuple(job.job for job in self.jobs if self.baselines[job.job].suffers(job.share, self.config))

    @property
    def lasting_sufferers(self) -> tuple[str, ...]:
        """Jobs below their reference over the last windows together, so that noise alone has no vote."""
        windows = self.config.windows
        here = (self.baselines[job.job] for job in self.jobs)
        return tuple(one.job for one in here if one.suffers(one.latest(windows), self.config))

    @property
    def is_blind(self) -> bool:
        """Whether nothing can be judged: no bandwidth, or no utilisation of any job."""
        return self.share is None or (bool(self.jobs) and all(job.share is None for job in self.jobs))

    @property
    def is_calm(self) -> bool:
        """Whether little bandwidth is used, or nobody is there to protect."""
        return not self.jobs or (self.share is not None and self.share < self.config.release_share)

    @property
    def peak(self) -> float:
        """Peak bandwidth, bytes/s."""
        return self.hardware.peak_bytes_per_s.get(self.socket, math.inf)

    @property
    def room(self) -> float:
        """Bandwidth, bytes/s, that a release may bring back; endless with nobody to protect."""
        most = self.config.trigger_share - self.config.guard_share
        return (most - (self.share or 0.0)) * self.peak if self.jobs else math.inf

    @property
    def negligible(self) -> float:
        """Bandwidth, bytes/s, up to which a pod is let alone."""
        return self.config.negligible_share * self.peak

    @property
    def company(self) -> tuple[str, ...]:
        """Who is on the socket: while this stays the same, what helped nobody will help nobody."""
        here = (uid for uid, pod in self.pods.items() if pod.bytes_per_s.get(self.socket, 0.0) > self.negligible)
        return (*sorted(here), *(job.job for job in self.jobs))


SocketDecision = tuple[SocketState, tuple[Throttle, ...], tuple[Action, ...]]


def decide_socket(scene: SocketWindow, watch: SocketState, throttles: tuple[Throttle, ...]) -> SocketDecision:
    """The socket's next memory, all throttles of the node afterwards, and what to do. At most one throttle or one
    round of releases."""
    watch = _watched(scene, watch)
    acted_at_s = _latest(watch.throttled_at_s, watch.released_at_s)
    throttles = tuple(_seen(throttle, scene, acted_at_s) for throttle in throttles)
    mine = tuple(throttle for throttle in throttles if throttle.socket == scene.socket)
    if watch.blind_since_s is not None and scene.now_s - watch.blind_since_s >= scene.config.blind_s:
        return _undone(scene, watch, throttles, ThrottleReason.BLIND)
    enough = sum(watch.votes) >= scene.config.votes and not scene.is_blind
    contended = enough and bool(scene.lasting_sufferers)
    if contended and watch.futile_until_s is None and _since(watch.throttled_at_s, scene) >= scene.config.step_s:
        step = one_down(throttles, scene.socket, scene.pods, scene.hardware, negligible=scene.negligible)
        if step is not None:
            return _throttled(scene, watch, throttles, step)
    if mine and _is_useless(scene, watch, exhausted=contended):
        given_up = replace(watch, futile_until_s=scene.now_s + scene.config.futile_s, futile_company=(), votes=())
        return _undone(scene, given_up, throttles, ThrottleReason.NO_GAIN)
    if mine and _since(acted_at_s, scene) >= scene.config.release_step_s:
        return _released(scene, watch, throttles)
    return watch, throttles, ()


def _watched(scene: SocketWindow, watch: SocketState) -> SocketState:
    near_peak = scene.share is not None and scene.share >= scene.config.trigger_share
    votes = (*watch.votes, near_peak and bool(scene.sufferers))[-scene.config.windows :]
    calm_since_s = _started(watch.calm_since_s, scene) if scene.is_calm else None
    calm_s = 0.0 if calm_since_s is None else scene.now_s - calm_since_s
    company = watch.futile_company
    if watch.futile_until_s is not None and not company:
        undone_s = scene.now_s - (watch.futile_until_s - scene.config.futile_s)
        company = scene.company if undone_s >= scene.config.settle_s else ()
    changed = calm_s >= scene.config.release_hold_s or scene.company != company
    over = watch.futile_until_s is not None and scene.now_s >= watch.futile_until_s and changed
    return replace(
        watch,
        votes=votes,
        calm_since_s=calm_since_s,
        blind_since_s=_started(watch.blind_since_s, scene) if scene.is_blind else None,
        futile_until_s=None if over else watch.futile_until_s,
        futile_company=company,
        reentries=0 if calm_s >= LONGEST_HOLD_S else watch.reentries,
    )


def _started(since_s: float | None, scene: SocketWindow) -> float:
    return scene.now_s if since_s is None else since_s


def _since(at_s: float | None, scene: SocketWindow) -> float:
    return math.inf if at_s is None else scene.now_s - at_s


def _latest(*times_s: float | None) -> float | None:
    return max((time_s for time_s in times_s if time_s is not None), default=None)


def _seen(throttle: Throttle, scene: SocketWindow, acted_at_s: float | None) -> Throttle:
    """`throttle` with what this window says of it: what it settled to, and since when its release would fit."""
    if throttle.socket != scene.socket or _since(acted_at_s, scene) < scene.config.settle_s:
        return throttle
    if throttle.settled_bytes_per_s is None and scene.share is not None:
        throttle = settled(throttle, scene.pods)
    fits = scene.is_calm and predicted_rebound(throttle, scene.pods) <= scene.room
    return replace(throttle, fits_since_s=_started(throttle.fits_since_s, scene) if fits else None)


def _throttled(
    scene: SocketWindow, watch: SocketState, throttles: tuple[Throttle, ...], step: Throttle
) -> SocketDecision:
    same = [throttle for throttle in throttles if (throttle.socket, throttle.means) == (step.socket, step.means)]
    replaced = next((throttle for throttle in same if set(throttle.pods) <= set(step.pods)), None)
    first = not any(throttle.socket == scene.socket for throttle in throttles)
    again = _since(watch.released_at_s, scene) < scene.config.reentry_hold_s
    before = (
        SlowedJob(job=name, share=scene.baselines[name].latest(scene.config.votes) or 0.0)
        for name in scene.lasting_sufferers
    )
    watch = replace(
        watch,
        votes=(),
        throttled_at_s=scene.now_s,
        released_at_s=None,
        reentries=watch.reentries + again,
        before=tuple(before) if first else watch.before,
    )
    others = (throttle for throttle in throttles if throttle is not replaced)
    return watch, _in_order((*others, step)), (apply_action(step, ThrottleReason.CONTENDED, scene.lasting_sufferers),)


def _is_useless(scene: SocketWindow, watch: SocketState, *, exhausted: bool) -> bool:
    """Whether the throttles have had their effect, or there is nothing more to throttle, and nobody is better off."""
    relieved = scene.share is not None and scene.share < scene.config.trigger_share
    if not scene.sufferers or not (relieved or exhausted):
        return False
    if _since(watch.throttled_at_s, scene) < scene.config.settle_s:
        return False
    gains = [_gained(scene, one) for one in watch.before if one.job in scene.baselines]
    return bool(gains) and not any(gains)


def _gained(scene: SocketWindow, before: SlowedJob) -> bool:
    baseline = scene.baselines[before.job]
    now = baseline.latest(RECENT)
    return now is None or now - before.share >= scene.config.gain_share * (baseline.reference - before.share)


def _undone(
    scene: SocketWindow, watch: SocketState, throttles: tuple[Throttle, ...], reason: ThrottleReason
) -> SocketDecision:
    mine = [throttle for throttle in throttles if throttle.socket == scene.socket]
    actions = tuple(lift_action(throttle, reason, _names(watch)) for throttle in mine)
    return replace(watch, before=()), tuple(other for other in throttles if other not in mine), actions


def _released(scene: SocketWindow, watch: SocketState, throttles: tuple[Throttle, ...]) -> SocketDecision:
    """One step back for every throttle whose return has fitted long enough and fits now, the lightest first."""
    room, kept, actions = scene.room, [], []
    reason = ThrottleReason.CALM if scene.jobs else ThrottleReason.NO_VICTIM
    for throttle in sorted(throttles, key=lambda throttle: (predicted_rebound(throttle, scene.pods), throttle.pods)):
        wanted = predicted_rebound(throttle, scene.pods)
        fits_s = 0.0 if throttle.fits_since_s is None else scene.now_s - throttle.fits_since_s
        if throttle.fits_since_s is None or fits_s < _hold_s(scene, watch, throttle) or wanted > room:
            kept.append(throttle)
            continue
        room -= wanted
        up = one_up(throttle)
        kept += [] if up is None else [up]
        actions.append(
            lift_action(throttle, reason, _names(watch)) if up is None else apply_action(up, reason, _names(watch))
        )
    released_at_s = scene.now_s if actions else watch.released_at_s
    return replace(watch, released_at_s=released_at_s), _in_order(tuple(kept)), tuple(actions)


def _hold_s(scene: SocketWindow, watch: SocketState, throttle: Throttle) -> float:
    """Longer, and longer each time, for pods that still press and whose release has led to a throttle before."""
    if throttle.socket != scene.socket:
        return math.inf
    config = scene.config
    if not watch.reentries or not scene.jobs or not is_still_limited(throttle, scene.pods):
        return config.release_hold_s
    return max(config.release_hold_s, min(LONGEST_HOLD_S, config.reentry_hold_s * 2.0 ** (watch.reentries - 1)))


def _names(watch: SocketState) -> tuple[str, ...]:
    return tuple(one.job for one in watch.before)


def _in_order(throttles: tuple[Throttle, ...]) -> tuple[Throttle, ...]:
    return tuple(sorted(throttles, key=lambda throttle: (throttle.socket, throttle.means.value, throttle.pods)))
