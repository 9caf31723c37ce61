"""The values of traces: one row per job, the same for every file format."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from coda.errors import InvalidInput

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

NAMED = 20  # bad rows that a refusal names one by one


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
    """

    path: str
    rows: tuple[Row, ...]
    bad: tuple[BadRow, ...]
    was_sorted: bool
    format: Format = Format.COMMON
    amended: tuple[Amendment, ...] = ()
    began: str = ""

    def account(self) -> str:
        """Say which format was read, and how many lines were left out or changed, with the first of each."""
        since = f" from {self.began} on" if self.began else ""
        out: tuple[tuple[str, Sequence[BadRow | Amendment]], ...] = (("left out", self.bad), ("changed", self.amended))
        counts = [f"{len(lines)} {what}, as line {lines[0].line}: {lines[0].sentence}" for what, lines in out if lines]
        return "; ".join([f"{self.path}: read as {self.format.value}: {len(self.rows)} rows{since}", *counts])


class BadRows(InvalidInput):
    """A trace that was refused because of its bad rows; all are in `bad`, the first 20 in the sentence."""

    def __init__(self, path: str, bad: tuple[BadRow, ...]) -> None:
        named = [f"{path}:{row.line}: {row.sentence}" for row in bad[:NAMED]]
        more = [f"... and {len(bad) - NAMED} more"] if len(bad) > NAMED else []
        super().__init__("\n".join([f"{path}: {len(bad)} bad rows, nothing was used:", *named, *more]))
        self.bad = bad
