"""An independent check of a simulated run from its `jobs.csv.gz` alone, without code of the simulator.

It proves that no node ever held more than it has, and that every job held what it asked for and did all of its work.
It also computes some metrics again, in other ways.
"""

from __future__ import annotations

import csv
import gzip
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

TOLERANCE = 1e-9  # relative, of sums of work


Amounts = tuple[int, int, int]
"""GPUs, cores, bytes of memory."""


@dataclass(slots=True)
class AuditedPiece:
    """One stretch of time of one job, with what it held on each node."""

    start_s: float
    end_s: float
    done_s: float
    kept: bool
    held: list[tuple[str, Amounts]] = field(default_factory=list)  # on each node


@dataclass(slots=True)
class AuditedJob:
    """One job of the file."""

    job_id: str
    kind: str
    submit_s: float
    work_s: float
    gpus: int
    finished: bool
    pieces: dict[int, AuditedPiece] = field(default_factory=dict)

    @property
    def spans(self) -> list[AuditedPiece]:
        """Its pieces in order."""
        return [piece for _, piece in sorted(self.pieces.items())]


def read_jobs(path: Path) -> list[AuditedJob]:
    """The jobs of the file, in its order."""
    jobs: dict[str, AuditedJob] = {}
    with gzip.open(path, "rt", encoding="utf-8", newline="") as text:
        for line in csv.DictReader(text):
            job = jobs.get(line["job_id"])
            if job is None:
                job = jobs[line["job_id"]] = _job(line)
            if line["piece"]:
                piece = job.pieces.setdefault(int(line["piece"]), _piece(line))
                piece.held.append((line["node"], (int(line["gpus"]), int(line["cores"]), int(line["memory_bytes"]))))
    return list(jobs.values())


def _job(line: Mapping[str, str]) -> AuditedJob:
    return AuditedJob(
        job_id=line["job_id"],
        kind=line["kind"],
        submit_s=float(line["submit_s"]),
        work_s=float(line["work_s"]),
        gpus=int(line["gpus_asked"]),
        finished=line["finished"] == "1",
    )


def _piece(line: Mapping[str, str]) -> AuditedPiece:
    return AuditedPiece(
        start_s=float(line["start_s"]),
        end_s=float(line["end_s"]),
        done_s=float(line["done_s"]),
        kept=line["kept"] == "1",
    )


def breaches(jobs: Sequence[AuditedJob], size_by_node: Mapping[str, Amounts]) -> list[str]:
    """Return everything that is impossible, one sentence each. A node memory of 0 means no limit.

    O(pieces log pieces)."""
    return [*_of_nodes(jobs, size_by_node), *(breach for job in jobs for breach in _of_job(job))]


def _of_nodes(jobs: Sequence[AuditedJob], size_by_node: Mapping[str, Amounts]) -> Iterator[str]:
    """Sweep each node through time; of the same time, ends go before starts."""
    changes: dict[str, list[tuple[float, int, Amounts, str]]] = {}
    for job in jobs:
        for piece in job.spans:
            for node, held in piece.held:
                if piece.end_s > piece.start_s:
                    of_node = changes.setdefault(node, [])
                    of_node.append((piece.start_s, 1, held, job.job_id))
                    of_node.append((piece.end_s, 0, held, job.job_id))
    for node, of_node in sorted(changes.items()):
        if node not in size_by_node:
            yield f"{node} is no node of the cluster"
            continue
        most_gpus, most_cores, most_bytes = size_by_node[node]
        gpus = cores = memory_bytes = 0
        for moment_s, begins, held, job_id in sorted(of_node):
            sign = 1 if begins else -1
            gpus, cores, memory_bytes = gpus + sign * held[0], cores + sign * held[1], memory_bytes + sign * held[2]
            if gpus > most_gpus or cores > most_cores or (most_bytes and memory_bytes > most_bytes):
                what = f"{gpus} GPUs, {cores} cores and {memory_bytes} bytes of memory"
                yield f"{node} holds {what} at {moment_s} when {job_id} starts"


def _of_job(job: AuditedJob) -> Iterator[str]:
    before_s = job.submit_s
    for piece in job.spans:
        if piece.start_s < before_s or piece.end_s < piece.start_s:
            yield f"{job.job_id} is in two places at {piece.start_s}, or ran before it was submitted"
        before_s = piece.end_s
        if sum(held[0] for _, held in piece.held) != job.gpus or min(held[1] for _, held in piece.held) < 1:
            yield f"{job.job_id} held other GPUs than it asked for, or no core, from {piece.start_s}"
    done_s = math.fsum(piece.done_s for piece in job.spans if piece.kept)
    if job.finished and not math.isclose(done_s, job.work_s, rel_tol=TOLERANCE):
        yield f"{job.job_id} ended after {done_s} s of {job.work_s} s of work"


def measures(jobs: Sequence[AuditedJob], gpus: int, cores: int, from_s: float, to_s: float) -> dict[str, float | None]:
    """Return some metrics under their names in `summary.json`, computed in other ways than the simulator's."""
    counted = [job for job in jobs if job.kind == "gpu" and from_s <= job.submit_s <= to_s]
    waits = [_waited_s(job) for job in counted if job.pieces]
    firsts = [job.spans[0].start_s - job.submit_s for job in counted if job.pieces]
    spent = [job.spans[-1].end_s - job.submit_s for job in counted if job.finished]
    queueing = _united(_waits_of([job for job in jobs if job.kind == "gpu"], to_s), from_s, to_s)
    queueing_s = math.fsum(end_s - start_s for start_s, end_s in queueing)
    held = [(p.start_s, p.end_s, sum(amounts[0] for _, amounts in p.held)) for job in jobs for p in job.spans]
    held_cores = [(p.start_s, p.end_s, sum(amounts[1] for _, amounts in p.held)) for job in jobs for p in job.spans]
    ends = [job.spans[-1].end_s for job in jobs if job.finished]
    all_s = to_s - from_s
    return {
        "gpu_active_all": _over(_within(held, [(from_s, to_s)]), all_s * gpus),
        "gpu_active_queueing": _over(_within(held, queueing), queueing_s * gpus),
        "cpu_active_all": _over(_within(held_cores, [(from_s, to_s)]), all_s * cores),
        "gpu_wait_mean_s": _over(math.fsum(waits), len(waits)),
        "gpu_started_10min": _over(sum(wait <= 600 for wait in firsts), len(counted)),
        "gpu_jct_mean_s": _over(math.fsum(spent), len(spent)),
        "makespan_s": max(ends) - min(job.submit_s for job in jobs) if ends else None,
        "jobs_finished": sum(job.finished for job in jobs),
    }


def _waited_s(job: AuditedJob) -> float:
    """All the time in which it neither ran nor had ended: the whole, less its pieces."""
    spans = job.spans
    return spans[-1].end_s - job.submit_s - math.fsum(piece.end_s - piece.start_s for piece in spans)


def _waits_of(jobs: Sequence[AuditedJob], to_s: float) -> Iterator[tuple[float, float]]:
    """From submission to the first start, and between pieces; to the end of the window for a job that never ran."""
    for job in jobs:
        before_s = job.submit_s
        for piece in job.spans:
            yield before_s, piece.start_s
            before_s = piece.end_s
        if not job.finished:
            yield before_s, max(before_s, to_s)


def _united(spans: Iterator[tuple[float, float]], from_s: float, to_s: float) -> list[tuple[float, float]]:
    """The times of the window that are in any of the spans, as spans that do not touch."""
    united: list[tuple[float, float]] = []
    for start_s, end_s in sorted((max(start_s, from_s), min(end_s, to_s)) for start_s, end_s in spans):
        if end_s <= start_s:
            continue
        if united and start_s <= united[-1][1]:
            united[-1] = (united[-1][0], max(end_s, united[-1][1]))
        else:
            united.append((start_s, end_s))
    return united


def _within(held: Sequence[tuple[float, float, int]], windows: Sequence[tuple[float, float]]) -> float:
    """Unit-seconds held within the windows (in order, not overlapping), by one sweep over all ends."""
    steps = [(start_s, amount, 0) for start_s, _, amount in held] + [(end_s, -amount, 0) for _, end_s, amount in held]
    steps += [(start_s, 0, 1) for start_s, _ in windows] + [(end_s, 0, -1) for _, end_s in windows]
    parts: list[float] = []
    amount = inside = 0
    before_s = 0.0
    for moment_s, more, door in sorted(steps):
        if inside and moment_s > before_s:
            parts.append(amount * (moment_s - before_s))
        amount, inside, before_s = amount + more, inside + door, moment_s
    return math.fsum(parts)


def _over(part: float, whole: float) -> float | None:
    return part / whole if whole else None
