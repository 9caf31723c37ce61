"""How busy a training job keeps its GPUs without contention (its reference), how noisy that is, and if it is slowed.

The reference is learned while the memory bandwidth around the job is calm, throttled or not, and then follows slowly.
Contention cannot raise a utilisation, so a lasting rise proves the reference too low at any time. A pause says nothing,
nor do the first seconds after a change of the job's cores.
Source: CODA's trigger ("GPU utilisation has dropped"); the rest is ours.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from coda.contention.config import ContentionConfig
from coda.contention.levels import BusyLevel, mean_of
from coda.errors import InvalidInput

SPAN = 10
"""Utilisations to compare at most, and in a row for a steady job. Our choice: noise of 3 % is then 1 %."""

IDLE_SHARE = 0.02
"""GPUs that are busy less than this are idle for a reason of their own. Our choice."""

LEAST_NOISE = 0.005
"""Of a utilisation's level: no sample is more exact. Our choice."""

_NOISE_WINDOWS = 60
_MEDIAN = 0.674  # of the absolute value of a normal variable, over its standard deviation
_SWING_STEP = 0.01  # of the swing's logarithm in one window
_OUTLIER = 3.0  # standard deviations beyond which a sample counts as if it were there: a change is not noise
_FIRST_NOISE = 0.02
_OTHER_LEVEL = 0.1  # relative; smaller changes are followed slowly, larger ones once they have lasted


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSample:
    """The part of a training job on this node, as seen in one window."""

    job: str
    sockets: frozenset[int]  # sockets its cores are on
    cores: int
    share: float | None  # busy share of its GPUs, 0..1; None: not measured

    def __post_init__(self) -> None:
        if self.share is not None and not 0 <= self.share <= 1:
            raise InvalidInput(f"GPU utilisation of {self.job} must be 0 to 1, got {self.share}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """What is known of one job with its present cores."""

    job: str
    cores: int
    share: float = 0.0  # the normal utilisation, 0..1
    learned: int = 0  # windows behind it
    is_sure: bool = False  # learned on calm windows, not only from a trial
    noise: float = 0.0  # standard deviation of one utilisation around those just before
    noise_windows: int = 0
    swing: float = 0.0  # standard deviation of a mean of `SPAN` around the one before: more than noise if correlated
    recent: tuple[float, ...] = ()  # the latest two spans without a gap or a pause between, oldest first
    pieces: tuple[float, ...] = ()  # the latest span with pauses between, none of 10 min
    counted_at_s: float | None = None  # the last window that counted; before the first one, when the job came
    hot: tuple[float, ...] = ()  # the latest while a socket of the job was near its peak and no limit moved
    calm_windows: int = 0  # in a row
    low_since_s: float | None = None
    other_since_s: float | None = None  # since when calm windows show another level
    quiet_until_s: float | None = None  # its cores have changed

    @property
    def is_steady(self) -> bool:
        """True if the last windows are all there, without a pause, and their halves agree."""
        half = SPAN // 2
        if len(self.recent) < SPAN:
            return False
        first, last = mean_of(self.recent[-SPAN:-half]), mean_of(self.recent[-half:])
        return abs(first - last) <= max(_OTHER_LEVEL * max(first, last), 4 * self.error_of(half, half))

    @property
    def is_evidence(self) -> bool:
        """True if the last window counted: measured, no pause, and not soon after a change of cores."""
        return bool(self.recent)

    def is_silent(self, now_s: float, for_s: float) -> bool:
        """True if no window counted for so long: the job is idle, or not measured."""
        return self.counted_at_s is not None and now_s - self.counted_at_s >= for_s

    def is_known(self, config: ContentionConfig) -> bool:
        """True once there is a reference to compare with."""
        return self.learned >= config.learn_windows

    def is_slowed(self, share: float | None, config: ContentionConfig) -> bool:
        """True if `share` is clearly below the reference; False before the reference is learned."""
        return self.is_known(config) and share is not None and share < self.share * (1 - config.drop_share)

    def is_lastingly_slowed(self, config: ContentionConfig) -> bool:
        """True if the mean under contention is below the reference by more than noise explains."""
        if len(self.hot) < config.votes:
            return False
        now = mean_of(self.hot)
        certain = self.share - now >= config.certainty * self.error_of(len(self.hot), config.learn_windows)
        return certain and self.is_slowed(now, config)

    def error_of(self, count: int, other: int) -> float:
        """Return the standard error of the difference of two means, of so many utilisations."""
        return max(self.noise * math.sqrt(1 / count + 1 / other), self.swing * math.sqrt(2))

    def level(self, shares: tuple[float, ...]) -> BusyLevel:
        """Return `shares` as a level of this job."""
        return BusyLevel(job=self.job, cores=self.cores, shares=shares)


def next_references(
    references: Collection[Reference],
    jobs: Collection[TrainingSample],
    calm: Collection[int],
    now_s: float,
    config: ContentionConfig,
) -> tuple[Reference, ...]:
    """Return the references after one more window, in order of jobs, without jobs that are gone.

    `calm`: sockets whose bandwidth is known to be below the trigger."""
    known = {reference.job: reference for reference in references}
    return tuple(
        _next_reference(known.get(job.job), job, job.sockets <= set(calm), now_s, config)
        for job in sorted(jobs, key=lambda job: job.job)
    )


def with_level(reference: Reference, level: BusyLevel, config: ContentionConfig) -> Reference:
    """Return `reference` with a level that was proved to be undisturbed by contention."""
    if level.cores != reference.cores or not level.shares:
        return reference
    return replace(
        reference, share=mean_of(level.shares), learned=config.learn_windows, other_since_s=None, low_since_s=None
    )


def lasting(references: Iterable[Reference]) -> tuple[Reference, ...]:
    """Return what is worth keeping over a restart of the agent: sure references, without what they saw last."""
    return tuple(
        Reference(
            job=one.job,
            cores=one.cores,
            share=one.share,
            learned=one.learned,
            is_sure=one.is_sure,
            noise=one.noise,
            noise_windows=one.noise_windows,
            swing=one.swing,
        )
        for one in references
        if one.is_sure
    )


def moved(references: Iterable[Reference]) -> dict[str, Reference]:
    """Return the references after a limit around their jobs moved: what was seen before is not what is seen after."""
    return {one.job: replace(one, recent=(), pieces=(), hot=(), calm_windows=0) for one in references}


def _next_reference(
    known: Reference | None, job: TrainingSample, calm: bool, now_s: float, config: ContentionConfig
) -> Reference:
    before = known if known is not None and known.cores == job.cores else _fresh(known, job, now_s, config)
    if job.share is None or (before.quiet_until_s is not None and now_s < before.quiet_until_s):
        return replace(before, recent=(), counted_at_s=_started(before.counted_at_s, now_s))
    since_s = _low_since_s(before, job.share, now_s, config)
    if job.share < IDLE_SHARE or (since_s is not None and now_s - since_s < config.pause_s):
        return replace(before, recent=(), low_since_s=since_s, counted_at_s=_started(before.counted_at_s, now_s))
    calm_windows = before.calm_windows + 1 if calm else 0
    hot = before.hot if calm_windows < config.windows else ()
    pieces = () if before.is_silent(now_s, config.futile_s) else before.pieces
    seen = replace(
        _with_swing(_with_noise(before, job.share)),
        recent=(*before.recent, job.share)[-2 * SPAN :],
        pieces=(*pieces, job.share)[-SPAN:],
        counted_at_s=now_s,
        hot=hot if calm else (*hot, job.share)[-SPAN:],
        calm_windows=calm_windows,
        low_since_s=since_s,
        quiet_until_s=None,
    )
    return _learned(seen, job.share, calm, now_s, config)


def _fresh(known: Reference | None, job: TrainingSample, now_s: float, config: ContentionConfig) -> Reference:
    if known is None:
        return Reference(job=job.job, cores=job.cores)
    noise, windows = known.noise, known.noise_windows
    quiet_until_s = now_s + config.quiet_s
    return Reference(
        job=job.job,
        cores=job.cores,
        noise=noise,
        noise_windows=windows,
        swing=known.swing,
        counted_at_s=known.counted_at_s,
        quiet_until_s=quiet_until_s,
    )


def _started(at_s: float | None, now_s: float) -> float:
    return now_s if at_s is None else at_s


def _low_since_s(before: Reference, share: float, now_s: float, config: ContentionConfig) -> float | None:
    """Since when the job is far below what it usually is; None while it is not."""
    usual = before.share if before.is_known(config) else mean_of(before.recent[-SPAN:])
    if share >= config.pause_share * usual:
        return None
    return now_s if before.low_since_s is None else before.low_since_s


def _with_noise(before: Reference, share: float) -> Reference:
    if len(before.recent) < 3:
        return before
    last = before.recent[-SPAN:]
    usual, count = mean_of(last), len(last)
    noise = before.noise or _FIRST_NOISE * usual
    apart = min(abs(share - usual), _OUTLIER * max(noise, _FIRST_NOISE * usual))
    weight = 1 / min(_NOISE_WINDOWS, before.noise_windows + 2)
    variance = noise**2 + weight * (apart**2 * count / (count + 1) - noise**2)
    least = LEAST_NOISE * usual
    return replace(before, noise=max(least, math.sqrt(variance)), noise_windows=before.noise_windows + 1)


def _with_swing(before: Reference) -> Reference:
    """The median difference of two spans in a row: pauses and onsets are few, and do not count by their size."""
    if len(before.recent) < 2 * SPAN:
        return before
    apart = abs(mean_of(before.recent[SPAN:]) - mean_of(before.recent[:SPAN])) / (_MEDIAN * math.sqrt(2))
    swing = max(before.swing, before.noise / math.sqrt(SPAN))
    return replace(before, swing=swing * math.exp(_SWING_STEP if apart > swing else -_SWING_STEP))


def _learned(seen: Reference, share: float, calm: bool, now_s: float, config: ContentionConfig) -> Reference:
    known, now = seen.is_known(config), mean_of(seen.recent[-SPAN:])
    full = len(seen.recent) >= SPAN
    rise = max(config.drop_share * seen.share, config.certainty * seen.error_of(SPAN, config.learn_windows))
    if known and full and now > seen.share + rise:
        return replace(seen, share=now, other_since_s=None)
    if not calm:
        return seen
    learned = min(seen.learned + 1, config.learn_windows)
    is_sure = seen.is_sure or seen.calm_windows >= config.learn_windows
    if not known:
        mean = seen.share + (share - seen.share) / (seen.learned + 1)
        return replace(seen, share=mean, learned=learned, is_sure=is_sure)
    if now < (1 - _OTHER_LEVEL) * seen.share:
        since_s = now_s if seen.other_since_s is None else seen.other_since_s
        if now_s - since_s >= config.pause_s and full:
            return replace(seen, share=now, is_sure=is_sure, other_since_s=None)
        return replace(seen, other_since_s=since_s)
    share = seen.share + (share - seen.share) / config.follow_windows
    return replace(seen, share=share, is_sure=is_sure, other_since_s=None)
