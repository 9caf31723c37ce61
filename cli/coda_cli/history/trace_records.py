"""Rows of a trace as records of finished jobs."""

from __future__ import annotations

import csv
import gzip
from collections.abc import Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Final

from coda.errors import InvalidInput
from coda.history import Ending, FinishedJob
from coda.history.delay_causes import DelayCause
from coda.history.report import NOT_RECORDED
from coda_sim.traces import JobKind, RecordedStatus, Row

NAMESPACE: Final = "imported"

_ENDINGS: Final[Mapping[RecordedStatus, tuple[Ending, str]]] = {
    RecordedStatus.PASSED: (Ending.SUCCEEDED, "Completed"),
    RecordedStatus.KILLED: (Ending.DELETED, "Deleted"),
    RecordedStatus.FAILED: (Ending.FAILED, "Failed"),
    RecordedStatus.TIMEOUT: (Ending.FAILED, "DeadlineExceeded"),
    RecordedStatus.OTHER: (Ending.SUCCEEDED, NOT_RECORDED),
}


def records(rows: tuple[Row, ...], source: str, begins_s: float, waits_s: Mapping[str, float]) -> Iterator[FinishedJob]:
    """Yield the record of each GPU job of a trace whose second 0 is `begins_s`; `waits_s`: by job id, 0 if not known.

    `source` names the trace: the same rows of the same source are the same records."""
    for row in rows:
        if row.kind is not JobKind.GPU:
            continue
        wait_s = waits_s.get(row.job_id, 0.0)
        queued_s = begins_s + row.submit_s
        replicas = row.nodes_requested if row.nodes_requested and row.gpus % row.nodes_requested == 0 else 1
        ending, reason = _ENDINGS[row.status]
        yield FinishedJob(
            uid=sha256(f"{source}/{row.job_id}/{row.line}".encode()).hexdigest()[:32],
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
            waits=((DelayCause.UNSEEN.value, wait_s),) if wait_s > 0 else (),
            held_s=row.duration_s,
            run_s=row.duration_s,
            idle_gpu_s=None,
            failures=int(ending is Ending.FAILED),
        )


def waits_from_file(path: Path) -> dict[str, float]:
    """Read a CSV file, plain or gzip, with `job_id` and `observed_wait_s`. Raises InvalidInput."""
    found: dict[str, float] = {}
    try:
        with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as text:
            for number, row in enumerate(csv.DictReader(text), 2):
                try:
                    found[row["job_id"]] = max(0.0, float(row["observed_wait_s"]))
                except (KeyError, TypeError, ValueError):
                    raise InvalidInput(f"{path}:{number}: it needs job_id and observed_wait_s, a number") from None
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{path}: it cannot be read: {error}") from error
    return found
