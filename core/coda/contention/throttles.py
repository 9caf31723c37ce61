"""Throttles on CPU pods: which pod is next, one step down, the effect of a step up, and what to write.

Two means: the bandwidth limit of a socket (one limit for all its throttled pods, because hardware has few classes), or,
if the hardware has none, half of a pod's cores.
Source: CODA's eliminator (MBA, else halve the cores); heaviest first, floors and the prediction are our choices.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import pairwise

from coda.errors import InvalidInput

LIMITS = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2)  # of the peak; below a fifth a pod hardly makes progress
LEAST_STEP = 10  # percent, of limits in percent
MOST_PER_STEP = 0.75  # of a pod's bandwidth; the most that one step is believed to take away


class Means(Enum):
    """What a throttle changes."""

    BANDWIDTH = "Bandwidth"  # MBA: the limit of the throttle group in one socket
    CORES = "Cores"  # the CPU limit of one pod


class Protection(Enum):
    """Why a pod is never throttled."""

    TRAINING = "Training"
    NOT_OPTED_IN = "NotOptedIn"
    OPTED_OUT = "OptedOut"
    EXCLUSIVE_CORES = "ExclusiveCores"
    STATIC = "Static"
    DAEMON_SET = "DaemonSet"
    SYSTEM_CRITICAL = "SystemCritical"


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSample:
    """A pod without GPUs, as seen in one window."""

    uid: str
    bytes_per_s: Mapping[int, float]  # memory bandwidth by socket; a socket that is not there: not measured
    cores: float = 1.0  # its limit, or what it uses if that is more
    least_cores: float = 1.0  # floor: 1, or its request if that must stay
    protections: frozenset[Protection] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """What the node offers. `limits`: bandwidth limits by socket, the unlimited value first, then falling.

    Sockets without limits are throttled by cores."""

    peak_bytes_per_s: Mapping[int, float]
    limits: Mapping[int, tuple[int, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not all(peak > 0 for peak in self.peak_bytes_per_s.values()):
            raise InvalidInput("the peak bandwidth of a socket must be above 0")
        if not all(above > below for ladder in self.limits.values() for above, below in pairwise(ladder)):
            raise InvalidInput("bandwidth limits must fall from the unlimited value on")


def percent_limits(least: int, granularity: int, most: int = 100) -> tuple[int, ...]:
    """Return the limits of hardware that counts in percent (Intel, Arm): `most`, then in steps down to `least` or 20.

    A step is as many whole granules as make 10 %, our choice: with steps of 1 % (Arm) a trial ends before it shows
    anything. `most`: what everybody has, 100 if no administrator lowered it."""
    step = -(-LEAST_STEP // granularity) * granularity
    below = range(100 - step, max(least, 20) - 1, -step)
    return (most, *(limit for limit in below if limit < most))


def absolute_limits(unlimited: int, peak_bytes_per_s: float, unit_bytes_per_s: float) -> tuple[int, ...]:
    """Return the limits of hardware that counts in units of bandwidth (AMD: 1/8 GB/s; mba_MBps: MiB/s).

    Tenths of the peak, our choice: steps of one unit would take hours to have an effect."""
    steps = {max(1, int(part * peak_bytes_per_s / unit_bytes_per_s)) for part in LIMITS}
    return (unlimited, *sorted((step for step in steps if step < unlimited), reverse=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One step down: the value before it, and the bandwidth of its pods then."""

    value: float
    bytes_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Throttle:
    """A throttle in force. Bandwidth: all throttled pods of the socket; cores: exactly one pod."""

    means: Means
    socket: int
    pods: tuple[str, ...]
    value: float  # in force: the limit, or cores
    stages: tuple[Stage, ...]  # in order; the first has the value to restore
    settled_bytes_per_s: float | None = None  # of its pods, after the last step had its effect; None: not yet
    fits_since_s: float | None = None  # since when the socket would stay calm after its release

    def __post_init__(self) -> None:
        if not self.stages or not self.pods:
            raise InvalidInput("a throttle needs a pod and a value to restore")


class ThrottleReason(Enum):
    """Why a throttle is applied or lifted."""

    CONTENDED = "Contended"
    PROBE = "Probe"  # it is not known how busy a job would be without contention: a trial shows it
    NO_GAIN = "NoGain"  # throttling helped no job
    PROBATION = "Probation"  # it helped; does it still?
    CALM = "Calm"  # the load is gone
    NO_VICTIM = "NoVictim"  # no training job is there any more, or none that it helped, or it can long not be judged
    BLIND = "Blind"  # the sensors have been silent too long
    PROTECTED = "Protected"  # a throttled pod is gone or must not be throttled any more


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """One thing to write. CORES: the pod's limit becomes `value`.

    BANDWIDTH: the limit of the throttle group on the socket becomes `value`. The group has the pods of all throttles in
    force: these pods join, and pods of no throttle leave."""

    means: Means
    socket: int
    pods: tuple[str, ...]
    value: float
    ends: bool  # `value` is the original one: this throttle is over
    reason: ThrottleReason
    jobs: tuple[str, ...]  # the slowed training jobs


def bandwidth_of(throttle: Throttle, pods: Mapping[str, PodSample]) -> float:
    """Return what the throttle's pods use in its socket now, bytes/s."""
    return sum(pods[uid].bytes_per_s.get(throttle.socket, 0.0) for uid in throttle.pods if uid in pods)


def is_measured(throttle: Throttle, pods: Mapping[str, PodSample]) -> bool:
    """True if the bandwidth of all its pods that are there is known in its socket."""
    return all(throttle.socket in pods[uid].bytes_per_s for uid in throttle.pods if uid in pods)


def next_steps_down(
    throttles: Sequence[Throttle], socket: int, pods: Mapping[str, PodSample], hardware: Hardware, *, negligible: float
) -> tuple[Throttle, ...]:
    """Return the socket's next throttles: new, or some of `throttles` a step further down; empty if nothing is left.

    On the heaviest of the pods that may be throttled, which make up half of their traffic; if these can give no more,
    on the next one. `negligible`: bytes/s up to which a pod is not throttled. Ties: the smaller uid."""
    ranked = sorted(
        (pod for pod in pods.values() if not pod.protections and pod.bytes_per_s.get(socket, 0.0) > negligible),
        key=lambda pod: (-pod.bytes_per_s[socket], pod.uid),
    )
    heaviest = _heaviest_half(ranked, socket)
    if hardware.limits.get(socket):
        mine = next((t for t in throttles if t.socket == socket and t.means is Means.BANDWIDTH), None)
        step = _limit_down(mine, socket, heaviest, ranked, pods, hardware.limits[socket])
        return () if step is None else (step,)
    by_pod = {throttle.pods[0]: throttle for throttle in throttles if throttle.means is Means.CORES}
    halved = [_cores_down(by_pod.get(pod.uid), socket, pod) for pod in heaviest]
    steps = tuple(step for step in halved if step is not None)
    if steps:
        return steps
    others = (_cores_down(by_pod.get(pod.uid), socket, pod) for pod in ranked[len(heaviest) :])
    return tuple(step for step in others if step is not None)[:1]


def step_up(throttle: Throttle) -> Throttle | None:
    """Return `throttle` with its last step released; None if that was the only one."""
    *stages, last = throttle.stages
    if not stages:
        return None
    return replace(throttle, value=last.value, stages=tuple(stages), settled_bytes_per_s=None)


def settled_throttle(throttle: Throttle, pods: Mapping[str, PodSample]) -> Throttle:
    """Return `throttle` with what its pods use now as the effect of its last step."""
    return replace(throttle, settled_bytes_per_s=bandwidth_of(throttle, pods))


def is_still_limited(throttle: Throttle, pods: Mapping[str, PodSample]) -> bool:
    """True if its pods still want more than they get: they use at least half of what they used when it settled.

    Not settled yet, or not measured now: true."""
    is_known = throttle.settled_bytes_per_s is not None and is_measured(throttle, pods)
    return not is_known or bandwidth_of(throttle, pods) >= 0.5 * _held_to(throttle)


def predicted_rebound(throttle: Throttle, pods: Mapping[str, PodSample]) -> float:
    """Return the bandwidth, bytes/s, that the release of one step is predicted to add, >= 0.

    Pods that use as much as when the throttle settled go back to what they used before its last step; pods that use
    less go back to proportionally less. Not settled yet, or not measured now: all of it."""
    now, before = bandwidth_of(throttle, pods), throttle.stages[-1].bytes_per_s
    if throttle.settled_bytes_per_s is None or not is_measured(throttle, pods):
        return max(0.0, before - now)
    held_to = _held_to(throttle)
    return max(0.0, before * min(1.0, now / held_to) - now) if held_to else 0.0


def apply_action(throttle: Throttle, reason: ThrottleReason, jobs: tuple[str, ...]) -> Action:
    """Return the action that puts `throttle` in force as it is."""
    return Action(
        means=throttle.means,
        socket=throttle.socket,
        pods=throttle.pods,
        value=throttle.value,
        ends=False,
        reason=reason,
        jobs=jobs,
    )


def lift_action(throttle: Throttle, reason: ThrottleReason, jobs: tuple[str, ...]) -> Action:
    """Return the action that restores the value from before `throttle`."""
    return replace(apply_action(throttle, reason, jobs), value=throttle.stages[0].value, ends=True)


def _held_to(throttle: Throttle) -> float:
    """What its pods got after the last step; pods that used almost nothing then had ended, and were not throttled."""
    least = (1 - MOST_PER_STEP) * throttle.stages[-1].bytes_per_s
    return max(throttle.settled_bytes_per_s or 0.0, least)


def _heaviest_half(ranked: Sequence[PodSample], socket: int) -> list[PodSample]:
    total, found, taken = sum(pod.bytes_per_s[socket] for pod in ranked), 0.0, []
    for pod in ranked:
        if 2 * found >= total:
            break
        found += pod.bytes_per_s[socket]
        taken.append(pod)
    return taken


def _limit_down(
    throttle: Throttle | None,
    socket: int,
    heaviest: Sequence[PodSample],
    ranked: Sequence[PodSample],
    pods: Mapping[str, PodSample],
    limits: tuple[int, ...],
) -> Throttle | None:
    """The heaviest pods join the group; if they are in, the limit falls; at the last limit the next pod joins."""
    value = limits[0] if throttle is None else throttle.value
    lower = next((limit for limit in limits if limit < value), None)
    if not ranked:
        return None
    if throttle is None:
        first = Stage(value=value, bytes_per_s=sum(pod.bytes_per_s[socket] for pod in heaviest))
        uids = tuple(sorted(pod.uid for pod in heaviest))
        fresh = Throttle(means=Means.BANDWIDTH, socket=socket, pods=uids, value=value, stages=(first,))
        return None if lower is None else replace(fresh, value=lower)
    outside = [pod for pod in heaviest if pod.uid not in throttle.pods]
    if not outside and lower is not None:
        stage = Stage(value=value, bytes_per_s=bandwidth_of(throttle, pods))
        return replace(
            throttle, value=lower, stages=(*throttle.stages, stage), settled_bytes_per_s=None, fits_since_s=None
        )
    outside = outside or [pod for pod in ranked if pod.uid not in throttle.pods][:1]
    return _joined(throttle, outside) if outside else None


def _joined(throttle: Throttle, joining: Sequence[PodSample]) -> Throttle:
    """Add pods to the group; at every higher limit they are assumed to use what they use now."""
    added = sum(pod.bytes_per_s[throttle.socket] for pod in joining)
    stages = tuple(replace(stage, bytes_per_s=stage.bytes_per_s + added) for stage in throttle.stages)
    pods = tuple(sorted((*throttle.pods, *(pod.uid for pod in joining))))
    return replace(throttle, pods=pods, stages=stages, settled_bytes_per_s=None, fits_since_s=None)


def _cores_down(throttle: Throttle | None, socket: int, pod: PodSample) -> Throttle | None:
    """Half of the pod's cores, not below its floor; None at the floor and for a pod throttled for another socket."""
    cores = pod.cores if throttle is None else throttle.value
    if cores <= pod.least_cores or (throttle is not None and throttle.socket != socket):
        return None
    stage = Stage(value=cores, bytes_per_s=pod.bytes_per_s[socket])
    fresh = Throttle(means=Means.CORES, socket=socket, pods=(pod.uid,), value=cores, stages=(stage,))
    stages = fresh.stages if throttle is None else (*throttle.stages, stage)
    return replace(fresh, value=max(pod.least_cores, cores / 2), stages=stages)


LEASE_S = 180.0
"""Seconds for which an agent's report on its throttles is valid: three times the minute after which it reports again.
Our choice: a restart or an update of the agent takes less, and the agent itself undoes what it left behind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ThrottleReport:
    """The last report of a node's agent. `renewed_s`: when it was made."""

    node: str
    throttles: int
    renewed_s: float


def nodes_with_stale_throttles(nodes: Collection[ThrottleReport], now_s: float) -> tuple[str, ...]:
    """Return the nodes with throttles whose agent was silent for `LEASE_S`, by name; future times are believed."""
    return tuple(sorted(one.node for one in nodes if one.throttles > 0 and now_s - one.renewed_s > LEASE_S))
