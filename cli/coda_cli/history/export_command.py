"""`coda history export`: finished jobs as a trace, so that the simulator can try policies on them."""

from __future__ import annotations

import csv
import io
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Final, NamedTuple

import typer
from rich.console import Console

from coda.errors import InvalidInput
from coda.history import Ending, FinishedJob
from coda.history.report import NOT_RECORDED
from coda.wording import counted
from coda_cli.exit_codes import one_sentence
from coda_cli.history.store_option import StoreOption, opened_store
from coda_cli.out_files import check_writable, write_whole
from coda_cli.output import printable
from coda_sim.durations import seconds_from_duration
from coda_sim.traces import JobKind, RecordedStatus
from coda_sim.traces.trace import COLUMNS, WAIT

_STATUS_BY_ENDING: Final[Mapping[Ending, RecordedStatus]] = {
    Ending.SUCCEEDED: RecordedStatus.PASSED,
    Ending.FAILED: RecordedStatus.FAILED,
    Ending.DELETED: RecordedStatus.KILLED,
}
_STATUS_BY_REASON: Final[Mapping[str, RecordedStatus]] = {
    NOT_RECORDED: RecordedStatus.OTHER,
    "DeadlineExceeded": RecordedStatus.TIMEOUT,
}


def export_command(
    since: Annotated[str, typer.Option(help="How far back, as 30d or 12h; all: everything.")] = "30d",
    history: StoreOption = None,
    out: Annotated[Path | None, typer.Option(help="Write it to this file instead of stdout.")] = None,
) -> None:
    """Write the finished jobs of a history store as a trace, in the common schema (docs/own-traces.md).

    Jobs that never had their GPUs are left out, and those that were submitted before --since: of the others of their
    time it has none. CPU jobs are stored as sums, so none is in it. Exit code 0: written;
    1: the store is away; 2: wrong usage."""
    console = Console(stderr=True)
    with one_sentence(console):
        if out is not None:
            check_writable(out)
        now_s = time.time()
        from_s = 0.0 if since == "all" else now_s - seconds_from_duration(since)
        lines: list[_Line] = []
        found = had_gpus = 0
        with opened_store(history) as store:
            for job in store.jobs(from_s, now_s + 1):
                found += 1
                had_gpus += job.held_s > 0
                if job.held_s > 0 and job.queued_s >= from_s:
                    lines.append(_line(job))
        if not had_gpus:
            raise InvalidInput(f"--since {since}: no job that had its GPUs has ended since then; all takes everything")
        if not lines:
            raise InvalidInput(f"--since {since}: all jobs that ended were submitted before; all takes everything")
        text = _trace_of(lines)
        if out is None:
            print(text, end="")
        else:
            write_whole(out, text.encode())
        told = [f"{counted(len(lines), 'job')} written"]
        if never := found - had_gpus:
            told.append(f"{counted(never, 'job')} without GPUs left out")
        if old := had_gpus - len(lines):
            were = "was" if old == 1 else "were"
            told.append(f"{counted(old, 'job')} left out that ended within --since {since} and {were} submitted before")
        console.print("; ".join(told), highlight=False, soft_wrap=True)


class _Line(NamedTuple):
    """What is kept of a job: all of them are put in order. The columns before and after that of the submission."""

    queued_s: float
    uid: str
    attempt: int
    before: str
    after: str


def _line(job: FinishedJob) -> _Line:
    return _Line(job.queued_s, job.uid, job.attempt, _csv(_fields_before(job)), _csv(_fields_after(job)))


def _trace_of(lines: list[_Line]) -> str:
    """Return the jobs as CSV of the common schema with `wait_s`, by submission; the first one is at second 0."""
    lines.sort()
    begins_s = lines[0].queued_s
    file = io.StringIO()
    file.write(f"{_csv((*COLUMNS, WAIT))}\n")
    for line in lines:
        file.write(f"{line.before},{_seconds(line.queued_s - begins_s)},{line.after}\n")
    return file.getvalue()


def _csv(fields: Iterable[str]) -> str:
    file = io.StringIO()
    csv.writer(file, lineterminator="").writerow(fields)
    return file.getvalue()


def _fields_before(job: FinishedJob) -> tuple[str, ...]:
    return (
        printable(job.uid if job.attempt == 1 else f"{job.uid}-{job.attempt}"),  # names come again
        printable(job.owner),
        printable(job.namespace),
    )


def _fields_after(job: FinishedJob) -> tuple[str, ...]:
    cores = job.cores_asked or job.cores_given  # what is automatic ran with those that it was given
    status = _STATUS_BY_REASON.get(job.reason, _STATUS_BY_ENDING[job.ending])
    return (
        _seconds(max(1.0, job.held_s - job.lost_s)),  # a simulation loses work by stops of its own
        str(job.gpus),
        str(cores * job.replicas) if cores else "",
        "",
        str(job.replicas),
        status.value,
        (JobKind.GPU if job.gpus else JobKind.CPU).value,
        _seconds(job.wait_s) if job.wait_is_known else "",
    )


def _seconds(amount: float) -> str:
    return f"{amount:.3f}".rstrip("0").rstrip(".")
