"""The three CSV formats of traces: the columns of each, and their meaning for a job.

Sources: `trace.COLUMNS` is ours; README of S-Lab-System-Group/HeliosData for Helios;
README of cluster-trace-gpu-v2023 in alibaba/clusterdata for openb.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from coda_sim.durations import MAX_S
from coda_sim.traces.fields import (
    MAX_CPUS,
    MAX_GPUS,
    MAX_MEMORY_GIB,
    MAX_NODES,
    Bad,
    Fields,
    amount,
    moment_s,
    name,
    one_of,
    text,
    whole,
)
from coda_sim.traces.trace import COLUMNS, WAIT, Format, JobKind, RecordedStatus, Row

MIB_PER_GIB = 1024
MILLI = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class RowReading:
    """A row, and what the reader had to change (empty: nothing)."""

    row: Row
    amendment: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CsvFormat:
    """A CSV format. `reading_from_fields` raises Bad; `has_dates`: its `submit_s` count from 1970.

    gpu_s_from_fields: the GPU-seconds of a row that may be bad; raises Bad where it does not say them
    """

    format: Format
    columns: tuple[str, ...]
    reading_from_fields: Callable[[int, Fields], RowReading]
    gpu_s_from_fields: Callable[[Fields], float]
    has_dates: bool = False


def _common(line: int, fields: Fields) -> RowReading:
    gpus = whole(fields, "gpus", 0, MAX_GPUS)
    kind = one_of(fields, "kind", JobKind)
    if (gpus > 0) is not (kind is JobKind.GPU):
        raise Bad(f"kind is {kind.value!r} but gpus is {gpus}")
    row = Row(
        line=line,
        job_id=name(fields),
        user=text(fields, "user"),
        virtual_cluster=text(fields, "virtual_cluster"),
        submit_s=amount(fields, "submit_s", 0, MAX_S),
        duration_s=amount(fields, "duration_s", 1, MAX_S),
        gpus=gpus,
        cpus=amount(fields, "cpus", 0, MAX_CPUS) if text(fields, "cpus") else None,
        memory_gib=amount(fields, "memory_gib", 0, MAX_MEMORY_GIB) if text(fields, "memory_gib") else None,
        nodes_requested=whole(fields, "nodes_requested", 1, MAX_NODES) if text(fields, "nodes_requested") else None,
        status=one_of(fields, "status", RecordedStatus) if text(fields, "status") else RecordedStatus.OTHER,
        kind=kind,
        wait_s=_wait_s(lambda: amount(fields, WAIT, 0, MAX_S)) if WAIT in fields else None,
    )
    return RowReading(row=row)


def _common_gpu_s(fields: Fields) -> float:
    return whole(fields, "gpus", 0, MAX_GPUS) * amount(fields, "duration_s", 0, MAX_S)


_STATUS_BY_HELIOS_STATE: Final[Mapping[str, RecordedStatus]] = {
    "COMPLETED": RecordedStatus.PASSED,
    "CANCELLED": RecordedStatus.KILLED,
    "FAILED": RecordedStatus.FAILED,
    "NODE_FAIL": RecordedStatus.FAILED,  # as the source's own analysis counts it
    "TIMEOUT": RecordedStatus.TIMEOUT,
    "OUT_OF_MEMORY": RecordedStatus.FAILED,  # this and the rest: Slurm's states that Helios' own logs lack
    "BOOT_FAIL": RecordedStatus.FAILED,
    "PREEMPTED": RecordedStatus.KILLED,
    "DEADLINE": RecordedStatus.TIMEOUT,
}
_UNFINISHED = ("RUNNING", "SUSPENDED", "PENDING")  # the log ends before the job does


def _helios(line: int, fields: Fields) -> RowReading:
    state = text(fields, "state")
    if state.startswith("CANCELLED by "):  # Slurm names the user id
        state = "CANCELLED"
    if state in _UNFINISHED:
        raise Bad(f"state is {state!r}: the log ends before the job does", is_benign=True)
    if state not in _STATUS_BY_HELIOS_STATE:
        raise Bad(f"state is {state[:40]!r}, must be one of {', '.join(_STATUS_BY_HELIOS_STATE)}")
    gpus = whole(fields, "gpu_num", 0, MAX_GPUS)
    duration_s, amendment = at_least_a_second(amount(fields, "duration", 0, MAX_S))
    row = Row(
        line=line,
        job_id=name(fields),
        user=text(fields, "user"),
        virtual_cluster=text(fields, "vc"),
        submit_s=moment_s(text(fields, "submit_time"), "submit_time"),
        duration_s=duration_s,
        gpus=gpus,
        cpus=amount(fields, "cpu_num", 0, MAX_CPUS),
        memory_gib=None,
        nodes_requested=whole(fields, "node_num", 1, MAX_NODES),
        status=_STATUS_BY_HELIOS_STATE[state],
        kind=JobKind.GPU if gpus else JobKind.CPU,
        wait_s=_wait_s(lambda: _helios_wait_s(fields)),
    )
    return RowReading(row=row, amendment=amendment)


def _helios_wait_s(fields: Fields) -> float:
    if fields.get("queue", "").strip():
        return amount(fields, "queue", 0, MAX_S)
    start = fields.get("start_time", "").strip()
    return moment_s(start, "start_time") - moment_s(text(fields, "submit_time"), "submit_time")


def _helios_gpu_s(fields: Fields) -> float:
    return whole(fields, "gpu_num", 0, MAX_GPUS) * amount(fields, "duration", 0, MAX_S)


_STATUS_BY_POD_PHASE: Final[Mapping[str, RecordedStatus]] = {
    "Succeeded": RecordedStatus.PASSED,
    "Failed": RecordedStatus.FAILED,
    "Running": RecordedStatus.OTHER,  # deleted by its owner while it ran
}


def _openb(line: int, fields: Fields) -> RowReading:
    phase = text(fields, "pod_phase")
    if phase == "Pending":
        raise Bad("pod_phase is 'Pending': the pod was never scheduled and has no run time", is_benign=True)
    if phase not in _STATUS_BY_POD_PHASE:
        raise Bad(f"pod_phase is {phase[:40]!r}, must be one of Pending, {', '.join(_STATUS_BY_POD_PHASE)}")
    scheduled_s = amount(fields, "scheduled_time", 0, MAX_S)
    deleted_s = amount(fields, "deletion_time", 0, MAX_S)
    if deleted_s < scheduled_s:
        raise Bad(f"deletion_time {deleted_s:g} is before scheduled_time {scheduled_s:g}")
    gpus = whole(fields, "num_gpu", 0, MAX_GPUS)
    duration_s, raised = at_least_a_second(deleted_s - scheduled_s)
    row = Row(
        line=line,
        job_id=name(fields, "name"),
        user="",
        virtual_cluster=text(fields, "qos"),
        submit_s=amount(fields, "creation_time", 0, MAX_S),
        duration_s=duration_s,
        gpus=gpus,
        cpus=amount(fields, "cpu_milli", 0, MAX_CPUS * MILLI) / MILLI,
        memory_gib=round(amount(fields, "memory_mib", 0, MAX_MEMORY_GIB * MIB_PER_GIB) / MIB_PER_GIB, 2),
        nodes_requested=1,  # a pod is on one node
        status=_STATUS_BY_POD_PHASE[phase],
        kind=JobKind.GPU if gpus else JobKind.CPU,
        wait_s=_wait_s(lambda: scheduled_s - amount(fields, "creation_time", 0, MAX_S)),
    )
    amendments = (_share_of_a_gpu(fields, gpus), _any_product(fields, gpus), raised)
    return RowReading(row=row, amendment="; ".join(part for part in amendments if part))


def _openb_gpu_s(fields: Fields) -> float:
    ran_s = amount(fields, "deletion_time", 0, MAX_S) - amount(fields, "scheduled_time", 0, MAX_S)
    return whole(fields, "num_gpu", 0, MAX_GPUS) * max(0.0, ran_s)


def _share_of_a_gpu(fields: Fields, gpus: int) -> str:
    milli = whole(fields, "gpu_milli", 0, MILLI)
    return f"gpu_milli is {milli}: a share of one GPU, counted as a whole one" if gpus and milli < MILLI else ""


def _any_product(fields: Fields, gpus: int) -> str:
    spec = fields.get("gpu_spec", "").strip()
    return f"gpu_spec is {spec[:40]!r}: GPUs of any product are taken" if gpus and spec else ""


def _wait_s(read: Callable[[], float]) -> float | None:
    """What `read` returns; None if the row does not say it, or says less than nothing: that is no reason to drop it."""
    try:
        seconds = read()
    except Bad:
        return None
    return seconds if seconds >= 0 else None


def at_least_a_second(duration_s: float) -> tuple[float, str]:
    """Return a run time of at least 1 s, and what was changed: sources round down to whole seconds."""
    return (duration_s, "") if duration_s >= 1 else (1.0, f"a run time of {duration_s:g} s is counted as 1 s")


CSV_FORMATS: Final = (
    CsvFormat(format=Format.COMMON, columns=COLUMNS, reading_from_fields=_common, gpu_s_from_fields=_common_gpu_s),
    CsvFormat(
        format=Format.HELIOS,
        columns=("job_id", "user", "vc", "gpu_num", "cpu_num", "node_num", "state", "submit_time", "duration"),
        reading_from_fields=_helios,
        gpu_s_from_fields=_helios_gpu_s,
        has_dates=True,
    ),
    CsvFormat(
        format=Format.OPENB,
        columns=(
            "name",
            "cpu_milli",
            "memory_mib",
            "num_gpu",
            "gpu_milli",
            "qos",
            "pod_phase",
            "creation_time",
            "deletion_time",
            "scheduled_time",
        ),
        reading_from_fields=_openb,
        gpu_s_from_fields=_openb_gpu_s,
    ),
)
"""If a header fits two formats equally well, the first one counts."""
