"""The workload of a run: the generated month or a trace file, selected, scaled and made into gangs for one cluster."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from coda.errors import InvalidInput
from coda_sim.traces.reader import read_trace
from coda_sim.traces.request_table import read_request_table
from coda_sim.traces.selection import Selection, select
from coda_sim.traces.trace import OnError, Row, Trace
from coda_sim.workload.cluster_shape import ClusterShape
from coda_sim.workload.gangs import CORES_PER_GPU, Cores, Gang, RefusedRow, gangs_from_rows
from coda_sim.workload.month import coda_month
from coda_sim.workload.month_config import MonthConfig

MONTH = "coda-month"
DAY_S = 86_400.0
_LONG_S = 10 * DAY_S


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadSource:
    """The source of the rows. `trace` None: the generated month, with the numbers of `month` and the run's seed."""

    trace: Path | None = None
    month: MonthConfig = field(default_factory=MonthConfig)
    on_error: OnError = OnError.SKIP
    selection: Selection = field(default_factory=Selection)
    request_table: Path | None = None

    @property
    def name(self) -> str:
        """The name of the workload, for people."""
        return MONTH if self.trace is None else str(self.trace)


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The jobs of one run, and the rows that were refused, left out or changed."""

    gangs: tuple[Gang, ...]
    refused: tuple[RefusedRow, ...]
    rows: int
    left_out: int
    durations_cut: int
    trace: Trace | None

    @property
    def submits_s(self) -> list[float]:
        """The submit times of the gangs, in their order."""
        return [gang.row.submit_s for gang in self.gangs]

    @property
    def rows_skipped(self) -> int:
        """The number of lines without a usable row."""
        return len(self.trace.bad) if self.trace else 0

    @property
    def rows_changed(self) -> int:
        """The number of rows that were changed: split to fit the nodes, or with cores rounded or assumed."""
        return sum(bool(gang.changes) for gang in self.gangs)


def load(source: WorkloadSource, shape: ClusterShape, *, seed: int) -> Load:
    """Return the workload of one seed. Raises InvalidInput if no job is left."""
    trace = None if source.trace is None else read_trace(source.trace, on_error=source.on_error)
    rows = _month(source.month, seed) if trace is None else trace.rows
    table = read_request_table(source.request_table) if source.request_table else ()
    selected = select(rows, source.selection, source.name)
    gangs, refused = gangs_from_rows(selected.rows, shape, Cores(table=table, seed=seed))
    if not gangs:
        why = "every one can never fit the cluster" if refused else "the selection leaves none"
        raise InvalidInput(f"{source.name}: no job to simulate: {why} ({source.selection.rule()}; cluster {shape})")
    return Load(
        gangs=gangs,
        refused=refused,
        rows=len(rows),
        left_out=selected.left_out,
        durations_cut=selected.durations_cut,
        trace=trace,
    )


@lru_cache(maxsize=1)  # a study simulates the same month under one policy after the other, and its rows take a second
def _month(config: MonthConfig, seed: int) -> tuple[Row, ...]:
    return coda_month(config, seed=seed)


def default_shape(source: WorkloadSource) -> str | None:
    """Return the cluster of a workload; None for a trace: the user must name one."""
    return source.month.cluster if source.trace is None else None


def default_warmup_s(found: Load) -> float:
    """Return a day if submissions span ten days or more, else 0: a short slice begins empty, as a replay does."""
    submits_s = found.submits_s
    return DAY_S if max(submits_s) - min(submits_s) >= _LONG_S else 0.0


def json_from_source(source: WorkloadSource, found: Load) -> dict[str, Any]:
    """Return how the rows were selected and scaled, for every result."""
    table = source.request_table
    return {
        "name": source.name,
        "rule": source.selection.rule(),
        "cores": f"drawn from {table}" if table else f"{CORES_PER_GPU} per GPU",
        "rows": found.rows,
        "rows_left_out": found.left_out,
        "durations_cut": found.durations_cut,
        "was_sorted": found.trace.was_sorted if found.trace else True,
    }
