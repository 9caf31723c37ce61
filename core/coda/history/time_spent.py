"""How a job's time goes: what it waits for, and how long it has its GPUs.

The account is in the job's status, so it survives whoever keeps it. It counts whole seconds of one clock, the API
server's: each second between two moments is in one place, and all of them together are the whole time. Where the clock
goes back nothing is added, and nothing is taken away. Who finds a job without an account begins one in the middle: what
is missing then is a wait of its own cause, `UNSEEN`. GPU-seconds have a clock of their own: the pods of an attempt that
was stopped may still hold GPUs while the job waits, or after it has ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum

from coda.history.delay_causes import DelayCause


class Doing(Enum):
    """What a job does with its time; spelled as in the status."""

    WAITING = "Waiting"
    HOLDING = "Holding"  # it has its GPUs, and not all ranks have started
    RUNNING = "Running"
    ENDED = "Ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldGpus:
    """GPU-seconds up to `since_s`, in whole seconds; from then on `ranks` hold GPUs."""

    since_s: int
    ranks: int = 0
    gpus_per_rank: int = 0  # 0 while no rank holds any, as the status has it
    gpu_s: int = 0

    @property
    def gpus(self) -> int:
        """GPUs that it holds now."""
        return self.ranks * self.gpus_per_rank


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeSpent:
    """The account of one job, in whole seconds. `cause` is set while it waits."""

    began_s: int  # the account; the job may be older
    since_s: int  # it does the present thing; all before is counted
    doing: Doing
    cause: DelayCause | None = None
    waits: tuple[tuple[DelayCause, int], ...] = ()  # by name; none without a second
    held_s: int = 0
    run_s: int = 0  # of these, with all ranks started
    gpus: HeldGpus | None = None  # by a clock of its own; None: nobody has summed it, and `held_s` says it

    @property
    def wait_s(self) -> int:
        """Seconds that are booked, of all causes."""
        return sum(seconds for _, seconds in self.waits)


def begun(doing: Doing, cause: DelayCause | None, now_s: float) -> TimeSpent:
    """Return the account of a job that has none."""
    at_s = int(now_s)
    return TimeSpent(began_s=at_s, since_s=at_s, doing=doing, cause=cause if doing is Doing.WAITING else None)


def moved_on(spent: TimeSpent, doing: Doing, cause: DelayCause | None, now_s: float) -> TimeSpent:
    """Return the account of a job that does this from now on. The same account if nothing changed. O(causes).

    The time until now is booked as what it was before, also where that was long ago."""
    cause = cause if doing is Doing.WAITING else None
    if doing is spent.doing and cause is spent.cause:
        return spent
    return replace(counted(spent, now_s), doing=doing, cause=cause)


def counted(spent: TimeSpent, now_s: float) -> TimeSpent:
    """Return the account with everything up to now. Twice at one moment is as once; a clock put back adds nothing."""
    at_s = max(int(now_s), spent.since_s)
    passed_s = at_s - spent.since_s
    if not passed_s:
        return spent
    if spent.doing is Doing.ENDED:
        return replace(spent, since_s=at_s)
    if spent.doing is Doing.WAITING:
        assert spent.cause is not None
        return replace(spent, since_s=at_s, waits=with_wait(spent.waits, spent.cause, passed_s))
    ran_s = passed_s if spent.doing is Doing.RUNNING else 0
    return replace(spent, since_s=at_s, held_s=spent.held_s + passed_s, run_s=spent.run_s + ran_s)


def summed(held: HeldGpus, now_s: float) -> HeldGpus:
    """Return the sum up to now. Twice at one moment is as once; a clock put back adds nothing."""
    at_s = max(int(now_s), held.since_s)
    return replace(held, since_s=at_s, gpu_s=held.gpu_s + (at_s - held.since_s) * held.gpus)


def holding(held: HeldGpus, ranks: int, gpus_per_rank: int, now_s: float) -> HeldGpus:
    """Return the sum of a job of which so many ranks hold GPUs from now on. The same sum if nothing changed."""
    if ranks * gpus_per_rank == held.gpus:
        return held
    return replace(summed(held, now_s), ranks=ranks, gpus_per_rank=gpus_per_rank if ranks else 0)


def with_wait(
    waits: tuple[tuple[DelayCause, int], ...], cause: DelayCause, seconds: int
) -> tuple[tuple[DelayCause, int], ...]:
    """Return the waits with so many seconds more for a cause, by its name."""
    known = dict(waits)
    known[cause] = known.get(cause, 0) + seconds
    return tuple(sorted(known.items(), key=lambda item: item[0].value))


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusTimes:
    """The times in a job's status: 0 for none. `started_s` is of its first attempt that ran, the launch of its last.

    `gpus`: of its gang now."""

    queued_s: float
    launched_s: float
    started_s: float
    ended_s: float
    gpus: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """The whole time of a finished job. `waits` and `held_s` sum up to it; `run_s` is part of `held_s`."""

    waits: tuple[tuple[str, float], ...]
    held_s: float
    run_s: float
    gpu_s: float | None = None  # GPU-seconds as they were summed; None: nobody did


def split_of(spent: TimeSpent | None, times: StatusTimes) -> Split:
    """Return how the job's time went, from its account and the times in its status.

    An account that saw the last launch is believed; else the status says how long the last attempt had its GPUs.
    Where the two leave a gap it is `UNSEEN`; where they are too long, waits are cut in proportion. O(causes)."""
    total_s = max(0.0, times.ended_s - times.queued_s) if times.queued_s else 0.0
    closed = counted(spent, times.ended_s) if spent is not None else None
    held_s = float(closed.held_s) if closed is not None else 0.0
    run_s = float(closed.run_s) if closed is not None else 0.0
    if times.launched_s and (closed is None or closed.began_s > times.launched_s):
        held_s = max(held_s, times.ended_s - times.launched_s)
        if times.started_s:
            run_s = max(run_s, times.ended_s - max(times.launched_s, times.started_s))
    gpu_s = None
    if closed is not None and closed.gpus is not None:
        gpu_s = summed(closed.gpus, times.ended_s).gpu_s + max(0.0, held_s - closed.held_s) * times.gpus
    held_s = min(max(0.0, held_s), total_s)
    run_s = min(max(0.0, run_s), held_s)
    waits: Mapping[str, float] = {} if closed is None else {cause.value: seconds for cause, seconds in closed.waits}
    seen_s, left_s = sum(waits.values()), total_s - held_s
    if seen_s > left_s:
        waits = {cause: seconds * left_s / seen_s for cause, seconds in waits.items()}
    elif seen_s < left_s:
        unseen = DelayCause.UNSEEN.value
        waits = {**waits, unseen: waits.get(unseen, 0.0) + left_s - seen_s}
    return Split(
        waits=tuple(sorted(wait for wait in waits.items() if wait[1] > 0)), held_s=held_s, run_s=run_s, gpu_s=gpu_s
    )
