"""Philly's `cluster_job_log`, a JSON list of jobs with their attempts, as rows.

A job asked for as many GPUs as its first attempt held; the source's own notebook counts the same. Its run time is the
sum over its attempts, without the waits between them. The number of servers is the choice of Philly's scheduler, not
the user's request, so `nodes_requested` stays unknown.
Source: README and notebook of msr-fiddle/philly-traces.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, TextIO

from coda_sim.durations import MAX_S
from coda_sim.traces.csv_formats import RowReading, at_least_a_second
from coda_sim.traces.fields import MAX_GPUS, Bad, moment_s, name
from coda_sim.traces.json_list import json_values
from coda_sim.traces.trace import JobKind, RecordedStatus, Row

_STATUS: Final[Mapping[str, RecordedStatus]] = {
    "Pass": RecordedStatus.PASSED,
    "Killed": RecordedStatus.KILLED,
    "Failed": RecordedStatus.FAILED,
}
_UNKNOWN = (None, "", "None")  # how the log writes an unknown time


def philly_readings(path: Path, text: TextIO, first: str, number: int) -> Iterator[tuple[int, RowReading | Bad]]:
    """Yield line and reading of each job; `first` is line `number`, read before. Raises InvalidInput for bad JSON."""
    for line, value in json_values(path, text, first, number):
        try:
            yield line, reading_from_job(line, value)
        except Bad as problem:
            yield line, problem


def reading_from_job(line: int, value: object) -> RowReading:
    """Return one member of the list as a row, with `submit_s` since 1970. Raises Bad."""
    job = _mapping(value, "the job")
    fields = {key: _text(job, key) for key in ("jobid", "submitted_time", "status", "vc", "user")}
    if fields["status"] not in _STATUS:
        raise Bad(f"status is {fields['status'][:40]!r}, must be one of {', '.join(_STATUS)}")
    attempts = [_mapping(one, f"attempts[{n}]") for n, one in enumerate(_list(job, "attempts", "attempts"))]
    if not attempts:
        raise Bad("attempts is empty: the job never ran", is_benign=True)
    gpus = _gpus(attempts[0])
    run_s, amendment = _run_time(attempts)
    duration_s, raised = at_least_a_second(run_s)
    submit_s = moment_s(fields["submitted_time"], "submitted_time")
    row = Row(
        line=line,
        job_id=name(fields, "jobid"),
        user=fields["user"],
        virtual_cluster=fields["vc"],
        submit_s=submit_s,
        duration_s=duration_s,
        gpus=gpus,
        cpus=None,
        memory_gib=None,
        nodes_requested=None,
        status=_STATUS[fields["status"]],
        kind=JobKind.GPU,
        wait_s=_wait_s(attempts[0], submit_s),
    )
    return RowReading(row=row, amendment="; ".join(part for part in (amendment, raised) if part))


def _gpus(attempt: Mapping[str, object]) -> int:
    details = _list(attempt, "detail", "attempts[0].detail")
    servers = [_mapping(detail, f"attempts[0].detail[{n}]") for n, detail in enumerate(details)]
    gpus = sum(len(_list(one, "gpus", f"attempts[0].detail[{n}].gpus")) for n, one in enumerate(servers))
    if not gpus:
        raise Bad("attempts[0].detail names no GPU: how many the job asked for is unknown", is_benign=True)
    if gpus > MAX_GPUS:
        raise Bad(f"attempts[0].detail names {gpus} GPUs, must be at most {MAX_GPUS}")
    return gpus


def _run_time(attempts: list[Mapping[str, object]]) -> tuple[float, str]:
    """The seconds over all attempts, and which ones do not count because a time is missing."""
    if attempts[-1].get("end_time") in _UNKNOWN:
        raise Bad(f"attempts[{len(attempts) - 1}].end_time is empty: the log ends before the job does", is_benign=True)
    total_s = 0.0
    unknown: list[str] = []
    for number, attempt in enumerate(attempts):
        times = [(column, attempt.get(column)) for column in ("start_time", "end_time")]
        if any(found in _UNKNOWN for _, found in times):
            unknown.append(f"attempts[{number}]")
            continue
        start_s, end_s = (moment_s(str(found), f"attempts[{number}].{column}") for column, found in times)
        if end_s < start_s:
            raise Bad(f"attempts[{number}] ends before it starts")
        total_s += end_s - start_s
    if len(unknown) == len(attempts):
        raise Bad("no attempt has both a start_time and an end_time: the run time is unknown", is_benign=True)
    if total_s > MAX_S:
        raise Bad(f"the attempts last {total_s:g} s, must be at most {MAX_S:g}")
    return total_s, f"{', '.join(unknown)} without start_time or end_time not counted" if unknown else ""


def _wait_s(first: Mapping[str, object], submit_s: float) -> float | None:
    """From submission to the first attempt; None if its start is unknown or before the submission."""
    try:
        wait_s = moment_s(str(first.get("start_time")), "start_time") - submit_s
    except Bad:
        return None
    return wait_s if wait_s >= 0 else None


def _mapping(value: object, what: str) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise Bad(f"{what} is {str(value)[:40]!r}, must be a JSON object")
    return value


def _list(of: Mapping[str, object], key: str, what: str) -> list[object]:
    value = of.get(key)
    if not isinstance(value, list):
        raise Bad(f"{what} is {str(value)[:40]!r}, must be a list")
    return value


def _text(of: Mapping[str, object], key: str) -> str:
    value = of.get(key)
    if not isinstance(value, str):
        raise Bad(f"{key} is {str(value)[:40]!r}, must be a text")
    if "\ufffd" in value or not value.isprintable():
        raise Bad(f"{key} is {value[:40]!r}, must be printable UTF-8 text")
    return value.strip()
