"""`jobs.csv.gz`: every piece of every job, so that the whole run can be checked from this file alone.

One line per piece and node; the values of the piece and of the job are on each of its lines. A job that never ran has
one line without a piece. Numbers read back exactly, and the same log gives the same bytes.
"""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Iterator
from pathlib import Path

from coda_sim.engine.log import JobEntry, RunLog

COLUMNS = (
    "job_id",
    "user",
    "kind",
    "submit_s",
    "work_s",  # seconds of the recorded run time
    "ranks",
    "gpus_asked",
    "cores_asked",  # of the whole job, as both
    "piece",  # from 1; empty: never ran
    "attempt",
    "start_s",
    "end_s",
    "node",
    "gpus",  # held on this node
    "cores",
    "memory_bytes",  # 0: unknown, or the nodes have no limit
    "done_s",  # of the work, in this piece
    "busy_gpu_s",  # of the piece, on all its nodes
    "kept",  # 1: the work counted; 0: it was thrown away
    "finished",  # 1: the job ended well with its last piece
)


def write_records(log: RunLog, path: Path) -> None:
    """Write the records of a run. O(pieces)."""
    with (
        path.open("wb") as raw,
        gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0, compresslevel=6) as packed,
        io.TextIOWrapper(packed, encoding="utf-8", newline="") as text,
    ):
        lines = csv.writer(text, lineterminator="\n")
        lines.writerow(COLUMNS)
        for entry in log.entries:
            lines.writerows(_lines(entry, log.node_names))


def _lines(entry: JobEntry, node_names: tuple[str, ...]) -> Iterator[tuple[object, ...]]:
    gang, row = entry.gang, entry.gang.row
    cores_asked = gang.cpus_per_replica * gang.replicas
    asked = (row.job_id, row.user, row.kind.value, row.submit_s, row.duration_s, gang.replicas, gang.gpus, cores_asked)
    finished = int(entry.end_s is not None)
    if not entry.pieces:
        yield (*asked, *[""] * 11, finished)
    for number, piece in enumerate(entry.pieces, 1):
        for node, ranks in piece.nodes:
            memory_bytes = ranks * gang.memory_bytes_per_replica
            held = (node_names[node], ranks * gang.gpus_per_replica, ranks * piece.cores, memory_bytes)
            span = (number, piece.attempt, piece.start_s, piece.end_s)
            yield (*asked, *span, *held, piece.work_s, piece.busy_gpu_s, int(piece.kept), finished)
