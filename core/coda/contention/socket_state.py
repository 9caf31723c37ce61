"""What is remembered of one socket, what is seen of it in one window, and what a decision about it returns."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from coda.contention.config import ContentionConfig
from coda.contention.reference import Reference, TrainingSample
from coda.contention.throttles import Action, Hardware, PodSample, Throttle


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


def slowed_names(state: SocketState) -> tuple[str, ...]:
    """The jobs for which the throttles of the socket were made."""
    return tuple(one.job for one in state.before)


def in_order(throttles: tuple[Throttle, ...]) -> tuple[Throttle, ...]:
    """The throttles by socket, means and pods, so that equal sets are equal tuples."""
    return tuple(sorted(throttles, key=lambda throttle: (throttle.socket, throttle.means.value, throttle.pods)))
