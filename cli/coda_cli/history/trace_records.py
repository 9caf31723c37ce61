"""Rows of a trace as records of finished jobs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Final

from coda.errors import InvalidInput
from coda.history import Ending, FinishedJob
from coda.history.delay_causes import DelayCause
from coda.history.record import WAIT_NOT_RECORDED
from coda.history.report import NOT_RECORDED
from coda_sim.durations import MAX_S
from coda_sim.traces import JobKind, RecordedStatus, Row
from coda_sim.traces.fields import Bad, amount, text
from coda_sim.traces.text_lines import csv_columns, csv_records, numbered_lines, opened

NAMESPACE: Final = "imported"

_ENDINGS: Final[Mapping[RecordedStatus, tuple[Ending, str]]] = {
    RecordedStatus.PASSED: (Ending.SUCCEEDED, "Completed"),
    RecordedStatus.KILLED: (Ending.DELETED, "Deleted"),
    RecordedStatus.FAILED: (Ending.FAILED, "Failed"),
    RecordedStatus.TIMEOUT: (Ending.FAILED, "DeadlineExceeded"),
    RecordedStatus.OTHER: (Ending.SUCCEEDED, NOT_RECORDED),
}


def records(rows: tuple[Row, ...], source: str, begins_s: float, waits_s: Mapping[str, float]) -> Iterator[FinishedJob]:
    """Yield the record of each GPU job of a trace whose second 0 is `begins_s`; `waits_s`: by job id, else the row's.

    `source` names the trace: the same rows of the same source are the same records, another row is another one."""
    for row in rows:
        if row.kind is not JobKind.GPU:
            continue
        known_s = wait_of(row, waits_s)
        wait_s = known_s or 0.0
        queued_s = begins_s + row.submit_s
        replicas = row.nodes_requested if row.nodes_requested and row.gpus % row.nodes_requested == 0 else 1
        ending, reason = _ENDINGS[row.status]
        yield FinishedJob(
            uid=_uid(row, source),
            attempt=1,
            namespace=NAMESPACE,
            owner=row.user or row.virtual_cluster or NAMESPACE,
            name=row.job_id[:253],
            category="",
            model="",
            replicas=replicas,
            gpus_per_replica=row.gpus // replicas,
            cores_asked=None if row.cpus is None else round(row.cpus / replicas),
            cores_tuned=None,
            cores_given=0 if row.cpus is None else round(row.cpus / replicas),
            ending=ending,
            reason=reason,
            failure_class="",
            queued_s=queued_s,
            started_s=queued_s + wait_s,
            ended_s=queued_s + wait_s + row.duration_s,
            waits=_waits(known_s),
            held_s=row.duration_s,
            run_s=row.duration_s,
            idle_gpu_s=None,
            failures=int(ending is Ending.FAILED),
        )


def _uid(row: Row, source: str) -> str:
    """Of the row's content, too: tools number the jobs of each export from 1, and name the file alike."""
    said = (row.user, row.virtual_cluster, row.submit_s, row.duration_s, row.gpus, row.cpus, row.status.value)
    return sha256(f"{source}/{row.job_id}/{row.line}/{said}".encode()).hexdigest()[:32]


def wait_of(row: Row, waits_s: Mapping[str, float]) -> float | None:
    """Return the wait of a job in seconds: by `waits_s`, else as the trace says; None if neither says it."""
    return waits_s.get(row.job_id, row.wait_s)


def _waits(known_s: float | None) -> tuple[tuple[str, float], ...]:
    if known_s is None:
        return ((WAIT_NOT_RECORDED, 0.0),)
    return ((DelayCause.UNSEEN.value, known_s),) if known_s > 0 else ()


def waits_from_file(path: Path) -> dict[str, float]:
    """Read a CSV file, plain or gzip, with `job_id` and `observed_wait_s`; below 0 is 0. Raises InvalidInput."""
    found: dict[str, float] = {}
    with opened(path) as lines_of:
        lines = numbered_lines(path, lines_of)
        columns = csv_columns(path, next(lines, (0, ""))[1], ("job_id", "observed_wait_s"))
        for line, fields in csv_records(columns, lines):
            try:
                if isinstance(fields, Bad):
                    raise fields
                found[text(fields, "job_id")] = max(0.0, amount(fields, "observed_wait_s", -MAX_S, MAX_S))
            except Bad as problem:
                needs = "it needs job_id and observed_wait_s, a number of seconds"
                raise InvalidInput(f"{path}:{line}: {needs}: {problem}") from None
    return found
