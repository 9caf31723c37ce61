"""What CPU jobs of a span waited for, used and gave back: tables over the lines of the history store."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from coda.history.cpu_jobs import CpuEnding, CpuLine, CpuUse


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuRow:
    """CPU jobs that have something in common. Seconds; a share is 0..1."""

    name: str
    jobs: int
    wait_mean_s: float
    wait_longest_s: float
    run_mean_s: float  # of those that got their cores
    core_s: float  # held
    borrowed_share: float  # of the core time
    reclaimed: int  # ended because they gave borrowed cores back
    failed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuWaitRow:
    """One cause of waits."""

    cause: str
    wait_s: float
    share: float  # of all waiting


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuReport:
    """All tables; largest first, ties by name."""

    use: CpuUse
    endings: tuple[CpuRow, ...]
    waits: tuple[CpuWaitRow, ...]
    owners: tuple[CpuRow, ...]


@dataclass(slots=True)
class _Group:
    jobs: int = 0
    started: int = 0
    failed: int = 0
    reclaimed: int = 0
    wait_s: float = 0.0
    longest_s: float = 0.0
    run_s: float = 0.0
    core_s: float = 0.0
    borrowed_core_s: float = 0.0
    waits: dict[str, float] = field(default_factory=dict)

    def add(self, line: CpuLine) -> None:
        self.jobs += line.jobs
        self.started += line.jobs if line.held_s else 0
        self.failed += line.jobs if line.ending is CpuEnding.FAILED else 0
        self.reclaimed += line.jobs if line.ending is CpuEnding.RECLAIMED else 0
        self.wait_s += line.wait_s
        self.longest_s = max(self.longest_s, line.longest_wait_s)
        self.run_s += line.run_s
        self.core_s += line.core_s
        self.borrowed_core_s += line.borrowed_core_s
        for cause, seconds in line.waits:
            self.waits[cause] = self.waits.get(cause, 0.0) + seconds

    def row(self, name: str) -> CpuRow:
        return CpuRow(
            name=name,
            jobs=self.jobs,
            wait_mean_s=self.wait_s / self.jobs,
            wait_longest_s=self.longest_s,
            run_mean_s=self.run_s / self.started if self.started else 0.0,
            core_s=self.core_s,
            borrowed_share=self.borrowed_core_s / self.core_s if self.core_s else 0.0,
            reclaimed=self.reclaimed,
            failed=self.failed,
        )


def cpu_report(lines: Iterable[CpuLine]) -> CpuReport:
    """Return the tables of these lines, read once. O(lines)."""
    endings: dict[str, _Group] = {}
    owners: dict[str, _Group] = {}
    every, lacked_core_s = _Group(), 0.0
    for line in lines:
        lacked_core_s += line.lacked_core_s
        of_ending, of_owner = endings.setdefault(line.ending.value, _Group()), owners.setdefault(line.owner, _Group())
        for group in (every, of_ending, of_owner):
            group.add(line)
    waits = sorted(every.waits.items(), key=lambda item: (-item[1], item[0]))
    return CpuReport(
        use=CpuUse(
            jobs=every.jobs,
            core_s=every.core_s,
            borrowed_core_s=every.borrowed_core_s,
            lacked_core_s=lacked_core_s,
        ),
        endings=tuple([endings[end.value].row(end.value) for end in CpuEnding if end.value in endings]),
        waits=tuple([CpuWaitRow(cause=cause, wait_s=s, share=s / every.wait_s) for cause, s in waits if s > 0]),
        owners=tuple(
            [group.row(name) for name, group in sorted(owners.items(), key=lambda item: (-item[1].core_s, item[0]))]
        ),
    )
