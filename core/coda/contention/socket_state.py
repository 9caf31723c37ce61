"""What is remembered of one socket, what is seen of it in one window, and what a decision about it returns."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from coda.contention.config import ContentionConfig
from coda.contention.levels import BusyLevel
from coda.contention.reference import SPAN, Reference, TrainingSample
from coda.contention.throttles import Action, Hardware, PodSample, Throttle


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """Throttles that have not shown yet that they help. `base`: those of the socket before."""

    began_s: float
    jobs: tuple[str, ...]  # for which it was begun
    base: tuple[Throttle, ...]
    before: tuple[BusyLevel, ...]
    after: tuple[BusyLevel, ...] = ()  # since the last step had its effect
    windows: int = 0  # of these


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """Throttles that helped `jobs`, and when that is checked again."""

    jobs: tuple[str, ...]
    check_at_s: float
    checks: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Probation:
    """Throttles that helped and are released to see whether they are still needed."""

    began_s: float
    saved: tuple[Throttle, ...]
    before: tuple[BusyLevel, ...]
    after: tuple[BusyLevel, ...] = ()  # under contention only


@dataclass(frozen=True, slots=True, kw_only=True)
class SocketState:
    """What is remembered of one socket."""

    socket: int
    votes: tuple[bool, ...] = ()  # both conditions, latest windows last
    throttled_at_s: float | None = None
    released_at_s: float | None = None
    calm_since_s: float | None = None  # little bandwidth is used, or there is no training job
    deserted_since_s: float | None = None  # none of the jobs that throttles helped is there
    blind_since_s: float | None = None
    disturbed_at_s: float | None = None  # the last window with contention, or with a limit that moved
    stepped_at_s: float | None = None  # the last window near the peak in which the cores of a job had changed
    reentries: int = 0  # releases that soon led to a throttle again
    trial: Trial | None = None
    hold: Hold | None = None
    probation: Probation | None = None
    failures: int = 0  # trials in a row that showed no gain
    failed_at_s: float | None = None
    retry_at_s: float | None = None  # no trial before
    is_interrupted: bool = False  # the last trial was, by a pause
    known: tuple[str, ...] = ()  # pods and jobs that failed trials were about


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
    neighbours: tuple[SocketState, ...] = ()  # the other sockets on which its jobs work

    @property
    def judged_elsewhere(self) -> frozenset[str]:
        """The jobs that a trial or probation of another socket is about."""
        tried = {job for one in self.neighbours if one.trial for job in one.trial.jobs}
        checked = {level.job for one in self.neighbours if one.probation for level in one.probation.before}
        return frozenset(tried | checked)

    @property
    def is_near_peak(self) -> bool:
        """True if bandwidth is at the trigger or above."""
        return self.share is not None and self.share >= self.config.trigger_share

    @property
    def has_slowed_job(self) -> bool:
        """True if this window shows a job clearly below its reference, and not in a pause."""
        here = ((self.references[job.job], job.share) for job in self.jobs)
        return any(one.is_evidence and one.is_slowed(share, self.config) for one, share in here)

    @property
    def lastingly_slowed_jobs(self) -> tuple[str, ...]:
        """The jobs that are below their reference by more than noise explains."""
        here = (self.references[job.job] for job in self.jobs)
        return tuple(one.job for one in here if one.is_evidence and one.is_lastingly_slowed(self.config))

    @property
    def unknown_jobs(self) -> tuple[str, ...]:
        """The steady jobs of which nobody knows how busy they would be without contention."""
        here = (self.references[job.job] for job in self.jobs)
        return tuple(one.job for one in here if not one.is_sure and one.is_steady and len(one.hot) == SPAN)

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
        """The pods and jobs on the socket: while none is new, a trial that failed would fail again."""
        here = (uid for uid, pod in self.pods.items() if pod.bytes_per_s.get(self.socket, 0.0) > self.negligible)
        return (*sorted(here), *(job.job for job in self.jobs))

    def with_samples(self, levels: tuple[BusyLevel, ...]) -> tuple[BusyLevel, ...]:
        """Return `levels` with what this window shows of the jobs, one for each job with the cores it has now."""
        known = {level.job: level for level in levels}
        found = []
        for job in self.jobs:
            level = known.get(job.job)
            if level is None or level.cores != job.cores:
                level = BusyLevel(job=job.job, cores=job.cores, shares=())
            if job.share is not None and self.references[job.job].is_evidence:
                level = BusyLevel(job=job.job, cores=job.cores, shares=(*level.shares, job.share))
            found.append(level)
        return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class SocketDecision:
    """The next state of a socket, all throttles of the node afterwards, and what to do.

    `levels`: of jobs, proved to be undisturbed by contention."""

    state: SocketState
    throttles: tuple[Throttle, ...]
    actions: tuple[Action, ...] = ()
    levels: tuple[BusyLevel, ...] = ()


def slowed_names(state: SocketState) -> tuple[str, ...]:
    """The jobs for which the throttles of the socket were made."""
    held = state.hold.jobs if state.hold else ()
    return tuple(sorted({*held, *(state.trial.jobs if state.trial else ())}))


def in_order(throttles: tuple[Throttle, ...]) -> tuple[Throttle, ...]:
    """The throttles by socket, means and pods, so that equal sets are equal tuples."""
    return tuple(sorted(throttles, key=lambda throttle: (throttle.socket, throttle.means.value, throttle.pods)))
