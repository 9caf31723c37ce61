"""What is kept of CPU jobs that ended: pods of one owner and one shape that ended alike in one hour are one line.

A CPU job is a pod, and a Job may have 10 000 of them. So no pod has a record of its own: a line has their number, and
sums. What a line cannot say is the spread of its pods' times, except for the longest wait.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from coda.model.decision import WaitCode

LINE_S: Final = 3600
"""The time of one line. Our choice: reports over hours stay exact, and a Job that runs for a day has 24 lines."""

NO_CAUSE: Final = "Queued"
"""The cause of a wait of which no planner said more: most pods start at once."""

LACKS_CORES: Final = frozenset({WaitCode.INSUFFICIENT_CPU.value, WaitCode.HELD_BY_POLICY.value})
"""The causes of a wait that more cores for the CPU array would end: no node has them free, or the arrays or a promise
keep them for others.

Quotas, labels, memory, and several resources at once are left out: a user who waits for these wants no more cores. So
are causes that nobody knows."""


class CpuEnding(Enum):
    """How a CPU job ended; spelled as in the store."""

    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    RECLAIMED = "Reclaimed"  # evicted while it had borrowed cores
    EVICTED = "Evicted"  # evicted from cores of its array, or before it had started
    DELETED = "Deleted"  # somebody deleted it before it had ended


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedCpuJob:
    """One CPU job that ended. Times are seconds since 1970, 0 for never."""

    uid: str
    namespace: str
    owner: str  # its user: who asked for it, else its namespace
    kind: str  # of its controller, as `batch/Job`; `v1/Pod` without one
    name: str  # of its controller; empty without one
    controller: str  # the uid of its controller; empty without one
    category: str  # Batch or Service
    cpu_m: int
    memory_bytes: int
    ending: CpuEnding
    queued_s: float
    released_s: float  # when it got its place; 0: it only waited
    ended_s: float
    waits: tuple[tuple[str, float], ...]  # cause and seconds, by cause: what the planner said while it waited
    run_s: float  # with a container started
    borrows: bool
    reclaimed: int  # how often in a row the pods that it replaces gave borrowed cores back

    @property
    def wait_s(self) -> float:
        """Seconds that it waited, of all causes."""
        return max(0.0, (self.released_s or self.ended_s) - self.queued_s)

    @property
    def held_s(self) -> float:
        """Seconds that it held its cores."""
        return max(0.0, self.ended_s - self.released_s) if self.released_s else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuLine:
    """Pods of one owner and one shape that ended alike in one hour. All but the first ten fields are sums over them."""

    hour: int  # since 1970, in which they ended
    namespace: str
    owner: str
    kind: str
    name: str
    controller: str
    category: str
    cpu_m: int  # of one pod
    memory_bytes: int
    ending: CpuEnding
    jobs: int
    wait_s: float
    longest_wait_s: float  # of one pod
    held_s: float
    run_s: float
    borrowed_jobs: int
    borrowed_s: float  # held on borrowed cores
    reclaimed: int  # of the pods that they replace
    ended_s: float  # the last one
    waits: tuple[tuple[str, float], ...]  # cause and seconds, by cause; together `wait_s`

    @property
    def key(self) -> str:
        """40 characters that no other line has."""
        parts = (self.hour, self.namespace, self.owner, self.kind, self.name, self.controller)
        parts_of_shape = (self.category, self.cpu_m, self.memory_bytes, self.ending.value)
        return hashlib.sha256("\0".join(map(str, parts + parts_of_shape)).encode()).hexdigest()[:40]

    @property
    def core_s(self) -> float:
        """Core-seconds held."""
        return self.held_s * self.cpu_m / 1000

    @property
    def borrowed_core_s(self) -> float:
        """Of these, on cores that the CPU array had borrowed."""
        return self.borrowed_s * self.cpu_m / 1000

    @property
    def lacked_core_s(self) -> float:
        """Core-seconds waited for cores, as the planner said."""
        return sum(seconds for cause, seconds in self.waits if cause in LACKS_CORES) * self.cpu_m / 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuUse:
    """What CPU jobs used in a span, in core-seconds."""

    jobs: int = 0
    core_s: float = 0.0  # held
    borrowed_core_s: float = 0.0  # of these, on borrowed cores
    lacked_core_s: float = 0.0  # waited for, for want of cores

    @property
    def wanted_share(self) -> float:
        """The part of all that CPU jobs wanted that their own array did not give them, 0..1."""
        wanted_s = self.core_s + self.lacked_core_s
        return (self.borrowed_core_s + self.lacked_core_s) / wanted_s if wanted_s else 0.0


def cpu_lines(jobs: Iterable[FinishedCpuJob]) -> tuple[CpuLine, ...]:
    """Return the lines of these jobs, by key. A pod without controller is in a line of its user's bare pods."""
    lines: dict[str, CpuLine] = {}
    for job in jobs:
        line = _line(job)
        known = lines.get(key := line.key)
        lines[key] = line if known is None else joined(known, line)
    return tuple([lines[key] for key in sorted(lines)])


def joined(one: CpuLine, other: CpuLine) -> CpuLine:
    """Return the line of the jobs of both, which have one key."""
    return replace(
        one,
        jobs=one.jobs + other.jobs,
        wait_s=one.wait_s + other.wait_s,
        longest_wait_s=max(one.longest_wait_s, other.longest_wait_s),
        held_s=one.held_s + other.held_s,
        run_s=one.run_s + other.run_s,
        borrowed_jobs=one.borrowed_jobs + other.borrowed_jobs,
        borrowed_s=one.borrowed_s + other.borrowed_s,
        reclaimed=one.reclaimed + other.reclaimed,
        ended_s=max(one.ended_s, other.ended_s),
        waits=summed((*one.waits, *other.waits)),
    )


def summed(waits: Iterable[tuple[str, float]]) -> tuple[tuple[str, float], ...]:
    """Return one entry for each cause, by cause."""
    seconds_by_cause: dict[str, float] = {}
    for cause, seconds in waits:
        seconds_by_cause[cause] = seconds_by_cause.get(cause, 0.0) + seconds
    return tuple(sorted(seconds_by_cause.items()))


def explained_waits(wait_s: float, seconds_by_cause: Mapping[str, float]) -> tuple[tuple[str, float], ...]:
    """Return the causes of a wait, by cause; together they are `wait_s`, and what no cause explains is `NO_CAUSE`.

    Causes of more than the whole count in proportion: two clocks differ."""
    said_s = sum(seconds_by_cause.values())
    part = min(1.0, wait_s / said_s) if said_s else 1.0
    waits = [(cause, seconds * part) for cause, seconds in seconds_by_cause.items() if seconds > 0]
    return summed([*waits, (NO_CAUSE, left_s)] if (left_s := wait_s - said_s) > 0 else waits)


def _line(job: FinishedCpuJob) -> CpuLine:
    return CpuLine(
        hour=int(job.ended_s // LINE_S),
        namespace=job.namespace,
        owner=job.owner,
        kind=job.kind,
        name=job.name,
        controller=job.controller,
        category=job.category,
        cpu_m=job.cpu_m,
        memory_bytes=job.memory_bytes,
        ending=job.ending,
        jobs=1,
        wait_s=job.wait_s,
        longest_wait_s=job.wait_s,
        held_s=job.held_s,
        run_s=job.run_s,
        borrowed_jobs=int(job.borrows),
        borrowed_s=job.held_s if job.borrows else 0.0,
        reclaimed=job.reclaimed,
        ended_s=job.ended_s,
        waits=summed(job.waits),
    )
