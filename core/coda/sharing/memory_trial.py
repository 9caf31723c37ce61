"""Trial and error over memory: moves some of it between opportunistic jobs, and keeps a move that made them faster.

What is compared is the sum of speeds, each relative to the best that the job has shown.
Source: AntMan (OSDI 2020), local coordinator, "no guaranteed job"; sizes and holds are ours (`SharingConfig`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from coda.sharing.config import SharingConfig

_LONGEST_HOLD_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialMember:
    """One job: its limit, the least it can have, what lies in host memory, and its speed (None: not known)."""

    uid: str
    limit_bytes: int
    least_bytes: int
    host_bytes: int
    speed: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningTrial:
    """A move that is being judged: `before` is the sum of normalised speeds without it."""

    giver: str
    taker: str
    moved_bytes: int
    before: float
    periods: int = 0
    sum_after: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedPair:
    """A pair that gained nothing: not tried again until then; the next hold is twice as long."""

    giver: str
    taker: str
    until_s: float
    hold_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryTrials:
    """What is remembered: the best speed of each job, what a byte cost its givers, the running trial, failed pairs."""

    best: tuple[tuple[str, float], ...] = ()
    losses: tuple[tuple[str, float], ...] = ()
    running: RunningTrial | None = None
    failed: tuple[FailedPair, ...] = ()


def tried(
    trials: MemoryTrials, members: Sequence[TrialMember], now_s: float, config: SharingConfig
) -> tuple[Mapping[str, int], MemoryTrials]:
    """Return the limit of each member by uid, and what to remember, after one period. The limits' sum stays the same.

    Ties: least loss per byte gives, most in host memory takes, then the smaller uid. O(members squared)."""
    limits = {member.uid: member.limit_bytes for member in members}
    if any(member.speed is None for member in members):
        return limits, trials
    best = {uid: speed for uid, speed in trials.best if uid in limits}
    if trials.running is None or best.keys() != limits.keys():  # one trial is judged by one measure
        best = {member.uid: max(best.get(member.uid, 0.0), member.speed or 0.0) for member in members}
    speeds = {member.uid: (member.speed or 0.0) / (best[member.uid] or 1.0) for member in members}
    trials = replace(trials, best=tuple(sorted(best.items())))
    if trials.running is None:
        return _begun(trials, members, limits, sum(speeds.values()), now_s, config)
    if {trials.running.giver, trials.running.taker} - limits.keys():
        return limits, replace(trials, running=None)
    running = replace(
        trials.running,
        periods=trials.running.periods + 1,
        sum_after=trials.running.sum_after + sum(speeds.values()),
    )
    if running.periods < config.trial_periods:
        return limits, replace(trials, running=running)
    return _judged(replace(trials, running=None), running, limits, now_s, config)


def _begun(
    trials: MemoryTrials,
    members: Sequence[TrialMember],
    limits: dict[str, int],
    total: float,
    now_s: float,
    config: SharingConfig,
) -> tuple[Mapping[str, int], MemoryTrials]:
    losses = dict(trials.losses)
    held = {(pair.giver, pair.taker) for pair in trials.failed if now_s < pair.until_s}
    givers = sorted(members, key=lambda member: (losses.get(member.uid, 0.0), member.uid))
    takers = sorted(members, key=lambda member: (-member.host_bytes, member.uid))
    for taker in takers:
        for giver in givers:
            size = max(config.trial_bytes, int(config.trial_share * giver.limit_bytes))
            size = min(size, giver.limit_bytes - giver.least_bytes)
            if taker.host_bytes and size > 0 and giver.uid != taker.uid and (giver.uid, taker.uid) not in held:
                limits[giver.uid] -= size
                limits[taker.uid] += size
                running = RunningTrial(giver=giver.uid, taker=taker.uid, moved_bytes=size, before=total)
                return limits, replace(trials, running=running)
    return limits, trials


def _judged(
    trials: MemoryTrials, running: RunningTrial, limits: dict[str, int], now_s: float, config: SharingConfig
) -> tuple[Mapping[str, int], MemoryTrials]:
    after = running.sum_after / running.periods
    gained = after - running.before
    losses = {**dict(trials.losses), running.giver: -gained / running.moved_bytes}
    losses = {uid: loss for uid, loss in losses.items() if uid in limits}
    trials = replace(trials, losses=tuple(sorted(losses.items())))
    if gained > config.trial_gain:
        return limits, trials
    limits[running.giver] += running.moved_bytes
    limits[running.taker] -= running.moved_bytes
    known = next((one for one in trials.failed if (one.giver, one.taker) == (running.giver, running.taker)), None)
    hold_s = config.trial_hold_s if known is None else min(_LONGEST_HOLD_S, 2 * known.hold_s)
    failed = FailedPair(giver=running.giver, taker=running.taker, until_s=now_s + hold_s, hold_s=hold_s)
    others = (one for one in trials.failed if one is not known and {one.giver, one.taker} <= limits.keys())
    return limits, replace(trials, failed=(*others, failed))
