"""Who may have how much of a GPU's memory: the guaranteed job as much as it needs, the others what is left.

A limit is on device memory; what does not fit lies in host memory for a moment, so that nobody fails.
Source: AntMan (OSDI 2020), local coordinator; margins and holds are ours (`SharingConfig`)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from coda.errors import InvalidInput
from coda.sharing.config import SharingConfig
from coda.sharing.memory_trial import MemoryTrials, TrialMember, tried


class MemoryControl(Enum):
    """What a job's framework can do. FRACTION: a limit without host memory behind it. NONE: nothing."""

    FULL = "Full"
    FRACTION = "Fraction"
    NONE = "None"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryUse:
    """What one job has of one GPU, in bytes. Raises InvalidInput for impossible numbers.

    peak_bytes: of the last minute, or of its history before it runs; on the device if nothing were limited
    floor_bytes: what it keeps between two mini-batches
    context_bytes: what it needs beside its tensors; nobody can limit it
    refusals: requests that found no memory since the last report
    waits_bytes: what its processes wait for; only a guaranteed job's count
    declared_bytes: the most that it says it needs (`spec.gpuMemory`); 0: it says nothing
    speed: mini-batches per second in the last period; None: not known
    is_seen: the driver tells what each job has"""

    uid: str
    peak_bytes: int
    floor_bytes: int = 0
    device_bytes: int = 0
    host_bytes: int = 0
    context_bytes: int = 0
    refusals: int = 0
    waits_bytes: int = 0
    declared_bytes: int = 0
    control: MemoryControl = MemoryControl.FULL
    speed: float | None = None
    is_seen: bool = False

    def __post_init__(self) -> None:
        sizes = (self.peak_bytes, self.floor_bytes, self.device_bytes, self.host_bytes, self.context_bytes)
        if min(*sizes, self.refusals, self.waits_bytes, self.declared_bytes) < 0:
            raise InvalidInput(f"memory of {self.uid} cannot be negative")
        if self.floor_bytes > self.peak_bytes:
            raise InvalidInput(f"{self.uid} cannot keep more memory than its peak")
        if self.speed is not None and not (math.isfinite(self.speed) and self.speed >= 0):
            raise InvalidInput(f"the speed of {self.uid} must be finite and not negative")

    @property
    def holds_memory(self) -> bool:
        """True if it has memory of the GPU, or nobody knows."""
        is_hidden = self.control is MemoryControl.NONE and not self.is_seen
        return self.peak_bytes > 0 or self.device_bytes > 0 or is_hidden


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryReport:
    """The jobs of one GPU. `arriving`: the guaranteed job has not shown yet what it needs. `period`: one has ended."""

    total_bytes: int
    guaranteed: MemoryUse | None
    opportunistic: tuple[MemoryUse, ...]
    arriving: bool = False
    period: bool = True

    def __post_init__(self) -> None:
        if self.total_bytes <= 0:
            raise InvalidInput(f"a GPU has memory, got {self.total_bytes} bytes")
        everyone = [use.uid for use in self.opportunistic] + ([self.guaranteed.uid] if self.guaranteed else [])
        if len(set(everyone)) < len(everyone):
            raise InvalidInput("a job can be on a GPU only once")


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryLimit:
    """The device memory that one opportunistic job may have, and since when it may."""

    uid: str
    device_bytes: int
    since_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryState:
    """What is remembered of one GPU.

    limits: of the opportunistic jobs, by uid; empty: none is limited
    misfits: uids of those for which the card is too small beside the others: they stand still
    crowded: of these, those that obey and hold memory of a GPU that somebody has whole, each with the time since when;
        one that nobody controls runs on, and would come back
    above: uids of those that have more than their limit, each with the time since when
    ending: uids of those that the guaranteed job waits for, and that do not give it enough: they are to be stopped
    waits_since_s: since when it waits; None: it does not
    hurried: uids of those that must give memory back now: not paced until they have, or were given up on
    drains: the guaranteed job's overflow may return to the device, once nobody is hurried
    peak_bytes, lower_since_s: what is kept for the guaranteed job, and since when it needs less
    most_bytes: the most that it had here, or says it needs: what nobody uses is the others' only beyond that
    grew_at_s, grown_bytes: when its peak last rose by more than `peak_margin`, and to what
    pressed_at_s: when its overflow last took memory from the others beyond that"""

    guaranteed: str | None = None
    limits: tuple[MemoryLimit, ...] = ()
    misfits: tuple[str, ...] = ()
    crowded: tuple[tuple[str, float], ...] = ()
    ending: tuple[str, ...] = ()
    waits_since_s: float | None = None
    above: tuple[tuple[str, float], ...] = ()
    hurried: tuple[str, ...] = ()
    drains: bool = False
    peak_bytes: int = 0
    lower_since_s: float | None = None
    most_bytes: int = 0
    grew_at_s: float = math.inf
    grown_bytes: int = -1
    pressed_at_s: float = -math.inf
    trials: MemoryTrials = field(default_factory=MemoryTrials)

    def limit_of(self, uid: str) -> int | None:
        """Return the bytes that this job may have on the device; None: as many as it finds."""
        return next((limit.device_bytes for limit in self.limits if limit.uid == uid), None)

    def to_move(self, now_s: float, config: SharingConfig) -> tuple[str, ...]:
        """Return the uids of those that are to be stopped, or were crowded out for so long that they should go on
        elsewhere, in order."""
        long = {uid for uid, since_s in self.crowded if now_s - since_s >= config.crowded_s}
        return tuple(sorted(long.union(self.ending)))


def shifted(state: MemoryState, report: MemoryReport, now_s: float, config: SharingConfig) -> MemoryState:
    """Return the next limits of one GPU. The guaranteed job is never limited.

    Limits, contexts and what is kept for the guaranteed job fit the card together. Limits fall at once, and rise at
    most once per `memory_hold_s`. Ties: the smaller uid keeps its place. O(jobs log jobs)."""
    first = report.guaranteed
    if first is not None:
        state = state if state.guaranteed == first.uid else MemoryState(guaranteed=first.uid, limits=state.limits)
        state = _with_peak(state, first, now_s, config)
    if not report.opportunistic:
        return _alone(state) if first is not None else MemoryState()
    return (
        _among_equals(state, report, now_s, config) if first is None else _beside(state, first, report, now_s, config)
    )


def _alone(state: MemoryState) -> MemoryState:
    """What is known of the guaranteed job itself is kept for whoever comes beside it."""
    return MemoryState(
        guaranteed=state.guaranteed,
        peak_bytes=state.peak_bytes,
        lower_since_s=state.lower_since_s,
        most_bytes=state.most_bytes,
        grew_at_s=state.grew_at_s,
        grown_bytes=state.grown_bytes,
    )


def _beside(
    state: MemoryState, first: MemoryUse, report: MemoryReport, now_s: float, config: SharingConfig
) -> MemoryState:
    """Cases 1 to 3: a guaranteed job comes, a neighbour comes, or the guaranteed job grows.

    It has come once its peak no longer rises, whether anybody hears it or not."""
    arriving = report.arriving and now_s - state.grew_at_s < config.memory_hold_s
    kept_bytes = math.ceil(config.peak_margin * state.peak_bytes) + first.context_bytes
    most_bytes = max(math.ceil(config.peak_margin * state.most_bytes), first.declared_bytes) + first.context_bytes
    contexts = sum(use.context_bytes for use in report.opportunistic)
    free_bytes = max(0, report.total_bytes - kept_bytes - contexts)
    overflows = first.host_bytes > 0 or first.refusals > 0 or first.waits_bytes > 0
    if overflows and not 0 <= now_s - state.pressed_at_s < config.silent_s:  # what was ordered shows in a few steps
        state = replace(state, pressed_at_s=now_s)
        free_bytes = max(0, min(free_bytes, _pressed(state, first, report.opportunistic, config)))
    growth_bytes = 0 if arriving else max(0, free_bytes - max(0, most_bytes - kept_bytes))
    wanted = [use.floor_bytes if arriving else use.peak_bytes for use in report.opportunistic]
    parts, misfits = _divided(free_bytes, report.opportunistic, wanted, growth_bytes)
    parts = _with_rest(growth_bytes, report.opportunistic, parts, misfits)
    limits = tuple(
        _limit(state, use, part, now_s, config)
        for use, part in sorted(zip(report.opportunistic, parts, strict=True), key=lambda pair: pair[0].uid)
    )
    longest_s = config.overflow_hurry_s if overflows else config.hurry_s if arriving else 0.0
    state = replace(state, limits=limits, misfits=misfits, trials=MemoryTrials())
    state = _with_harm(state, first, report.opportunistic, now_s, config)
    return replace(state, hurried=tuple(uid for uid, began_s in state.above if now_s - began_s < longest_s))


def _pressed(state: MemoryState, first: MemoryUse, others: Sequence[MemoryUse], config: SharingConfig) -> int:
    """What the others may have together once they have given back what the guaranteed job lacks: what each keeps at
    least, for who has less stands still and gives nothing back."""
    short_bytes = math.ceil(max(first.host_bytes, first.waits_bytes) * (1 + config.shrink_margin)) or config.trial_bytes
    held = sum(min(use.device_bytes, _or(state.limit_of(use.uid), use.device_bytes)) for use in others)
    return max(sum(_least_of(use) for use in others), held - short_bytes)


def _with_harm(
    state: MemoryState, first: MemoryUse, others: Sequence[MemoryUse], now_s: float, config: SharingConfig
) -> MemoryState:
    """Who holds what the guaranteed job needs, and for how long; who is to be stopped for it."""
    above_since_s, crowded_since_s = dict(state.above), dict(state.crowded)
    others = sorted(others, key=lambda use: use.uid)
    above = tuple(
        (use.uid, min(now_s, above_since_s.get(use.uid, now_s)))
        for use in others
        if use.device_bytes > _or(state.limit_of(use.uid), use.device_bytes)
    )
    crowded = tuple(
        (use.uid, min(now_s, crowded_since_s.get(use.uid, now_s)))
        for use in others
        if use.uid in state.misfits and use.peak_bytes > 0 and use.control is not MemoryControl.NONE
    )
    waits_since_s = min(now_s, now_s if state.waits_since_s is None else state.waits_since_s)
    holders = [use for use in others if use.holds_memory] if first.waits_bytes else []
    stiff = [use for use in holders if _least_of(use) >= use.device_bytes or use.uid in state.misfits]
    if not stiff and now_s - waits_since_s >= config.silent_s:  # who could give enough back had the time
        stiff = holders
    return replace(
        state,
        crowded=crowded,
        ending=tuple(use.uid for use in stiff),
        waits_since_s=waits_since_s if first.waits_bytes else None,
        above=above,
        drains=first.host_bytes > 0 and not above,
    )


def _with_peak(state: MemoryState, first: MemoryUse, now_s: float, config: SharingConfig) -> MemoryState:
    """A peak rises at once, by what lies in host memory too; it falls when it has been lower for a while."""
    need = max(first.peak_bytes, first.device_bytes + first.host_bytes)
    state = replace(state, most_bytes=max(need, state.most_bytes), grew_at_s=min(now_s, state.grew_at_s))
    if need > config.peak_margin * state.grown_bytes:
        state = replace(state, grew_at_s=now_s, grown_bytes=need)
    if need >= state.peak_bytes:
        return replace(state, peak_bytes=need, lower_since_s=None)
    since_s = now_s if state.lower_since_s is None else min(now_s, state.lower_since_s)
    if now_s - since_s >= config.memory_hold_s:
        return replace(state, peak_bytes=need, lower_since_s=None)
    return replace(state, lower_since_s=since_s)


def _divided(
    free_bytes: int, members: Sequence[MemoryUse], wanted: Sequence[int], growth_bytes: int
) -> tuple[list[int], tuple[str, ...]]:
    """Return a part of `free_bytes` for each: its least first, then what it declared, if all of that fits together into
    `growth_bytes`, the rest in proportion to what it wants beyond."""
    parts = [0] * len(members)
    misfits = []
    left = free_bytes
    for at in sorted(range(len(members)), key=lambda at: members[at].uid):
        member = members[at]
        least = _least_of(member)
        if member.control is MemoryControl.NONE or least > left:
            misfits.append(member.uid)
        else:
            parts[at] = least
            left -= least
    fitting = [at for at, member in enumerate(members) if member.uid not in misfits]
    declared = {at: max(parts[at], members[at].declared_bytes) for at in fitting}
    if sum(declared.values()) + _held_by(members, misfits) <= growth_bytes:  # the planner saw to it, if all kept to it
        left = free_bytes - sum(declared.values())
        parts = [declared.get(at, part) for at, part in enumerate(parts)]
    rest = [max(0, wanted[at] - part) if at in declared else 0 for at, part in enumerate(parts)]
    total = sum(rest)
    for at, more in enumerate(rest):
        parts[at] += more if total <= left else left * more // total
    return parts, tuple(misfits)


def _with_rest(
    free_bytes: int, members: Sequence[MemoryUse], parts: Sequence[int], misfits: Sequence[str]
) -> list[int]:
    """The parts and what nobody wants, in equal parts, so that each may grow. A few bytes are left over.

    Misfits get none of it, and keep what they have."""
    rest = max(0, free_bytes - sum(parts) - _held_by(members, misfits)) // max(1, len(members) - len(misfits))
    return [part if use.uid in misfits else part + rest for use, part in zip(members, parts, strict=True)]


def _held_by(members: Sequence[MemoryUse], misfits: Sequence[str]) -> int:
    """What misfits have, whatever their limits say."""
    return sum(
        use.peak_bytes if use.control is MemoryControl.NONE else use.device_bytes
        for use in members
        if use.uid in misfits
    )


def _least_of(use: MemoryUse) -> int:
    """What it keeps between mini-batches, or its peak if host memory cannot help it."""
    return use.floor_bytes if use.control is MemoryControl.FULL else use.peak_bytes


def _limit(state: MemoryState, use: MemoryUse, part: int, now_s: float, config: SharingConfig) -> MemoryLimit:
    before = next((limit for limit in state.limits if limit.uid == use.uid), None)
    if before is None or part < before.device_bytes:
        return MemoryLimit(uid=use.uid, device_bytes=part, since_s=now_s)
    held = 0 <= now_s - before.since_s < config.memory_hold_s and before.device_bytes >= _least_of(use)
    if part == before.device_bytes or held:
        return before
    return MemoryLimit(uid=use.uid, device_bytes=part, since_s=now_s)


def _among_equals(state: MemoryState, report: MemoryReport, now_s: float, config: SharingConfig) -> MemoryState:
    """Cases 4 and 5: nobody to protect. One job gets everything; several share by trial and error."""
    if len(report.opportunistic) == 1:
        return MemoryState()
    free_bytes = max(0, report.total_bytes - sum(use.context_bytes for use in report.opportunistic))
    fits = sum(use.peak_bytes for use in report.opportunistic) <= free_bytes
    started = _started(state, report.opportunistic, free_bytes, now_s, fits=fits)
    if not report.period or fits:
        return started
    members = [
        TrialMember(
            uid=use.uid,
            limit_bytes=_or(started.limit_of(use.uid), 0),
            least_bytes=min(_or(started.limit_of(use.uid), 0), max(_least_of(use), use.declared_bytes)),
            host_bytes=use.host_bytes,
            speed=use.speed,
        )
        for use in report.opportunistic
        if use.uid not in started.misfits
    ]
    moved, trials = tried(started.trials, members, now_s, config)
    limits = tuple(
        replace(limit, device_bytes=moved[limit.uid], since_s=now_s)
        if moved.get(limit.uid, limit.device_bytes) != limit.device_bytes
        else limit
        for limit in started.limits
    )
    return replace(started, limits=limits, trials=trials)


def _started(
    state: MemoryState, members: Sequence[MemoryUse], free_bytes: int, now_s: float, *, fits: bool
) -> MemoryState:
    """The state, or a new division if its limits cannot stay, or if somebody lacks memory that nobody needs."""
    parts, misfits = _divided(free_bytes, members, [use.peak_bytes for use in members], free_bytes)
    parts = _with_rest(free_bytes, members, parts, misfits)
    fitting = [use for use in members if use.uid not in misfits]
    same = state.guaranteed is None and {one.uid for one in state.limits} == {use.uid for use in members}
    short = any(_or(state.limit_of(use.uid), 0) < _least_of(use) for use in fitting)
    lacks = fits and any(use.host_bytes or use.refusals for use in fitting)
    too_much = sum(one.device_bytes for one in state.limits) > free_bytes
    if same and misfits == state.misfits and not (short or lacks or too_much):
        return state
    limits = tuple(
        MemoryLimit(uid=use.uid, device_bytes=part, since_s=now_s)
        for use, part in sorted(zip(members, parts, strict=True), key=lambda pair: pair[0].uid)
    )
    known = replace(state.trials, running=None) if same and misfits == state.misfits else MemoryTrials()
    return MemoryState(limits=limits, misfits=misfits, trials=known)


def _or(value: int | None, otherwise: int) -> int:
    return otherwise if value is None else value
