"""The values of traces: one row per job, the same for every file format."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from coda.errors import InvalidInput
from coda.wording import counted

COLUMNS = (
    "job_id",
    "user",
    "virtual_cluster",
    "submit_s",
    "duration_s",
    "gpus",
    "cpus",
    "memory_gib",
    "nodes_requested",
    "status",
    "kind",
)
"""The common schema: a CSV file with this header, plain or gzip, amounts of the whole job, empty = unknown."""

WAIT: Final = "wait_s"
"""A column that the common schema may have, too: seconds from submission to the first start."""

NAMED = 20  # bad rows that a refusal names one by one
REASONS = 8  # that an account names; few traces have more
_VALUE = re.compile(r"'(?:[^'\\]|\\.)*'|\"[^\"]*\"|\d+(?:\.\d+)?")  # what differs between lines with one reason


class OnError(Enum):
    """What to do about bad rows."""

    SKIP = "skip"
    REFUSE = "refuse"


class RecordedStatus(Enum):
    """How the job ended in the source; OTHER: not recorded."""

    PASSED = "passed"
    KILLED = "killed"
    FAILED = "failed"
    TIMEOUT = "timeout"
    OTHER = "other"


class JobKind(Enum):
    """Whether the job asked for GPUs."""

    GPU = "gpu"
    CPU = "cpu"


class Format(Enum):
    """The recognised format of a file; the value is for people."""

    COMMON = "the common schema"
    PHILLY = "Philly's cluster_job_log (JSON)"
    HELIOS = "Helios' cluster_log.csv"
    OPENB = "Alibaba's openb pod list"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One job of the source; amounts are of the whole job. `None` is unknown."""

    line: int
    job_id: str
    user: str
    virtual_cluster: str
    submit_s: float  # seconds from the start of the window
    duration_s: float  # run time once started, at least 1
    gpus: int
    cpus: float | None
    memory_gib: float | None
    nodes_requested: int | None
    status: RecordedStatus
    kind: JobKind
    wait_s: float | None = None  # before its first start, as observed in the source; no simulation knows it


@dataclass(frozen=True, slots=True, kw_only=True)
class BadRow:
    """A line without a row, and why. `is_benign`: nothing is wrong with it, but the job has no usable run time."""

    line: int
    sentence: str
    is_benign: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Amendment:
    """What the reader had to change about a line to make it a row."""

    line: int
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """The rows of one file by (submit_s, line).

    bad: every line left out
    amended: every line that became a row only with a change
    was_sorted: the file had the rows in this order
    began: the date of second 0, as `2017-10-01`; empty if the source has no dates
    bad_gpu_s: GPU-seconds of the lines left out, as far as these say them
    """

    path: str
    rows: tuple[Row, ...]
    bad: tuple[BadRow, ...]
    was_sorted: bool
    format: Format = Format.COMMON
    amended: tuple[Amendment, ...] = ()
    began: str = ""
    bad_gpu_s: float = 0.0

    def account(self) -> str:
        """Say which format was read, and how many lines were left out or changed and why, each reason with its first.

        What is wrong with a line comes before what is only of no use."""
        since = f" from {self.began} on" if self.began else ""
        said = [f"{self.path}: read as {self.format.value}: {len(self.rows)} rows{since}"]
        by_reason = [*_counts("left out", self.bad)], [*_counts("changed", self.amended)]
        said += [*by_reason[0], *by_reason[1]]
        if share := self.bad_share():
            said.append(f"what was left out has {share} of the GPU-hours that the rows name")
        return ("; " if all(len(counts) < 2 for counts in by_reason) else "\n  ").join(said)

    def bad_share(self) -> str:
        """Return the part of all GPU-hours that was left out, as `99.8 %`; empty if no line left out says any."""
        kept_s = sum(row.gpus * row.duration_s for row in self.rows)
        return f"{100 * self.bad_gpu_s / (self.bad_gpu_s + kept_s):.1f} %" if self.bad_gpu_s else ""

    def left_out(self) -> str:
        """Return how much was left out, for the title of a result; empty if nothing was."""
        if not self.bad:
            return ""
        share = self.bad_share()
        return f"{counted(len(self.bad), 'line')} left out{f', {share} of the GPU-hours' if share else ''}"


def _counts(what: str, lines: Sequence[BadRow | Amendment]) -> Iterator[str]:
    """Yield a part of the account for each reason, with its first line: what is harmful first, then the most lines."""
    lines_by_reason: dict[tuple[bool, str], list[BadRow | Amendment]] = {}
    for line in lines:
        is_benign = isinstance(line, BadRow) and line.is_benign
        lines_by_reason.setdefault((is_benign, _VALUE.sub("", line.sentence)), []).append(line)
    ordered = sorted(lines_by_reason.items(), key=lambda item: (item[0][0], -len(item[1]), item[1][0].line))
    for _, alike in ordered[:REASONS]:
        yield f"{len(alike)} {what}, as line {alike[0].line}: {alike[0].sentence}"
    if rest := ordered[REASONS:]:
        yield f"{sum(len(alike) for _, alike in rest)} {what} for {len(rest)} more reasons"


class BadRows(InvalidInput):
    """A trace that was refused because of its bad rows; all are in `bad`, the first 20 in the sentence."""

    def __init__(self, path: str, bad: tuple[BadRow, ...]) -> None:
        named = [f"{path}:{row.line}: {row.sentence}" for row in bad[:NAMED]]
        more = [f"... and {len(bad) - NAMED} more"] if len(bad) > NAMED else []
        super().__init__("\n".join([f"{path}: {len(bad)} bad rows, nothing was used:", *named, *more]))
        self.bad = bad
