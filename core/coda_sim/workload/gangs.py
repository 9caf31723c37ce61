"""From a trace row to a gang: how many replicas, what each asks for, and which rows never fit the cluster.

The simulator and `coda replay` use the same rules. A row that does not fit is a value with its reason, not an
exception.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from coda_sim.traces.request_table import RequestTable
from coda_sim.traces.trace import Row
from coda_sim.workload.cluster_shape import GIB, ClusterShape

CORES_PER_GPU = 4
"""Cores per GPU of a row without cores, if no request table is given. Our choice: within the 3.5 to 6 cores per GPU of
the clusters of the public traces, so that such a job is neither slow nor the cause of idle GPUs."""

MAX_REPLICAS = 4096  # of a TrainingJob, by its schema


class Change(Enum):
    """What a rule changed in a row."""

    REPLICAS = "replicas changed to fit the nodes"
    CORES_ROUNDED = "cores rounded up to whole ones per replica"
    CORES_ASSUMED = "cores assumed, the row names none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gang:
    """A row as a job: `replicas` equal ranks."""

    row: Row
    replicas: int
    gpus_per_replica: int
    cpus_per_replica: int
    memory_bytes_per_replica: int = 0  # 0: unknown, or the nodes have no limit
    changes: tuple[Change, ...]

    @property
    def gpus(self) -> int:
        """Of the whole gang."""
        return self.replicas * self.gpus_per_replica


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedRow:
    """A row that never fits this cluster, and why."""

    row: Row
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Cores:
    """The source of cores for rows without any: draws from `table`, each row by `seed` and its own id.

    A GPU count that the table lacks uses the ratio of the nearest count (ties: the smaller). No table: 4 per GPU."""

    table: tuple[RequestTable, ...] = ()
    seed: int = 0

    def of(self, row: Row) -> float:
        """Return the cores of the whole job. They do not depend on other rows."""
        if row.cpus is not None:
            return row.cpus
        if not self.table or not row.gpus:
            return float(CORES_PER_GPU * row.gpus) or 1.0
        nearest = min({entry.gpus for entry in self.table}, key=lambda gpus: (abs(gpus - row.gpus), gpus))
        entries = [entry for entry in self.table if entry.gpus == nearest]
        draw = random.Random(f"{self.seed}:{row.job_id}")
        drawn = draw.choices(entries, weights=[entry.jobs for entry in entries])[0]
        return drawn.cpus * row.gpus / nearest


def gang_from_row(row: Row, shape: ClusterShape, cores: Cores) -> Gang | RefusedRow:
    """Return the row as a gang that the empty cluster holds, with the fewest replicas possible; else why it never fits.

    Replicas start at `nodes_requested` (1 if unknown; at most one per GPU). They rise to the next count that divides
    the GPUs, until each rank fits a node and all ranks fit the empty cluster."""
    asked = cores.of(row)
    memory_gib = row.memory_gib or 0.0 if shape.limits_memory else 0.0
    wanted = row.nodes_requested or 1
    for replicas in _counts(row.gpus, wanted, asked):
        gpus = row.gpus // replicas
        cpus = max(1, math.ceil(asked / replicas))
        memory_bytes = math.ceil(memory_gib * GIB / replicas)
        if shape.ranks(gpus, cpus, memory_bytes) >= replicas:
            return Gang(
                row=row,
                replicas=replicas,
                gpus_per_replica=gpus,
                cpus_per_replica=cpus,
                memory_bytes_per_replica=memory_bytes,
                changes=_changes(row, replicas != wanted, replicas * cpus),
            )
    return RefusedRow(row=row, sentence=_why_never(row, asked, shape))


def gangs_from_rows(
    rows: Sequence[Row], shape: ClusterShape, cores: Cores
) -> tuple[tuple[Gang, ...], tuple[RefusedRow, ...]]:
    """Return every row as a gang or as refused, in the order of `rows`."""
    results = [gang_from_row(row, shape, cores) for row in rows]
    gangs = tuple(result for result in results if isinstance(result, Gang))
    return gangs, tuple(result for result in results if isinstance(result, RefusedRow))


def _counts(gpus: int, wanted: int, cores: float) -> Iterator[int]:
    """The replica counts to try, rising: divisors of the GPUs; for a CPU job any count up to one per core."""
    most = gpus or max(wanted, math.ceil(cores), 1)
    for replicas in range(min(wanted, most), min(most, MAX_REPLICAS) + 1):
        if gpus % replicas == 0:
            yield replicas


def _changes(row: Row, replicas_changed: bool, cores: int) -> tuple[Change, ...]:
    found = [Change.REPLICAS] if replicas_changed else []
    if row.cpus is None:
        found.append(Change.CORES_ASSUMED)
    elif row.cpus != cores:
        found.append(Change.CORES_ROUNDED)
    return tuple(found)


def _why_never(row: Row, cores: float, shape: ClusterShape) -> str:
    largest = shape.largest
    gpus = "1 GPU" if row.gpus == 1 else f"{row.gpus} GPUs"
    asks = f"asks {gpus} and {cores:g} cores"
    if shape.limits_memory and row.memory_gib:
        asks += f" with {row.memory_gib:g} GiB"
    asks += f" (nodes_requested {row.nodes_requested or 'empty'})"
    split = f"in {row.nodes_requested or 1} or more equal replicas of whole GPUs"
    memory = f" with {largest.memory_gib} GiB" if shape.limits_memory else ""
    on_largest = f"{largest.gpus} GPUs and {largest.cores} cores{memory} on its largest node"
    has = f"{shape} has {on_largest}, {shape.gpus} GPUs in all"
    return f"{asks}: {split} it never fits the cluster; {has}"
