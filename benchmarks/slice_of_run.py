"""A slice of a simulated run as a trace of its own: what ran at one moment comes first, then what waited and came.

    coda simulate --policy fifo-skip --profiles recorded --out month
    python benchmarks/slice_of_run.py month/jobs.csv.gz --at-h 250 --jobs 2000 > slice.csv

The jobs that ran at that moment are submitted at 0, the largest first, and run for what was left and `--lead-s` longer.
The moment itself is `--lead-s` later: then the waiting ones are submitted, each later one as long after it as in the
run. So whoever replays or simulates the slice begins with the load of the moment.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from pathlib import Path

from coda_sim.traces.trace import COLUMNS


@dataclass(slots=True, kw_only=True)
class Job:
    """One job of the run: what it asked for, and the work that it had done by the moment."""

    job_id: str
    user: str
    kind: str
    submit_s: float
    work_s: float
    ranks: int
    gpus: int
    cores: int
    done_s: float = 0.0
    runs: bool = False
    end_s: float = inf  # of the last piece


def main() -> int:
    """Write the slice to stdout, and its size to stderr; the exit code."""
    options = _options()
    lines = list(_lines(_jobs(options.records, options.at_h * 3600), options))
    writer = csv.DictWriter(sys.stdout, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    first = sum(line["submit_s"] == 0 for line in lines)
    print(f"{first} jobs that ran, {len(lines) - first} that waited or came later", file=sys.stderr)
    return 0


def _jobs(records: Path, at_s: float) -> list[Job]:
    """The jobs of `jobs.csv.gz`, with their work until `at_s`. A piece counts once, however many nodes it has."""
    jobs: dict[str, Job] = {}
    seen: set[tuple[str, str]] = set()
    with gzip.open(records, "rt", encoding="utf-8", newline="") as text:
        for line in csv.DictReader(text):
            job = jobs.setdefault(line["job_id"], _job(line))
            if line["piece"] and (job.job_id, line["piece"]) not in seen:
                seen.add((job.job_id, line["piece"]))
                _add_piece(job, line, at_s)
    return list(jobs.values())


def _job(line: dict[str, str]) -> Job:
    return Job(
        job_id=line["job_id"],
        user=line["user"],
        kind=line["kind"],
        submit_s=float(line["submit_s"]),
        work_s=float(line["work_s"]),
        ranks=int(line["ranks"]),
        gpus=int(line["gpus_asked"]),
        cores=int(line["cores_asked"]),
    )


def _add_piece(job: Job, line: dict[str, str], at_s: float) -> None:
    start_s, job.end_s = float(line["start_s"]), float(line["end_s"])
    if start_s <= at_s < job.end_s:
        job.runs = True
        job.done_s += at_s - start_s
    elif job.end_s <= at_s and line["kept"] == "1":
        job.done_s += float(line["done_s"])


def _lines(jobs: list[Job], options: argparse.Namespace) -> Iterator[dict[str, object]]:
    at_s, lead_s = options.at_h * 3600, options.lead_s
    running = [job for job in jobs if job.runs]
    for job in sorted(running, key=lambda one: (-one.gpus, -one.cores, one.job_id)):
        yield _line(job, 0.0, max(1.0, job.work_s - job.done_s) + lead_s)
    others = sorted(
        (job for job in jobs if not job.runs and job.end_s > at_s),
        key=lambda one: (one.submit_s, one.job_id),
    )
    for job in others[: options.jobs]:
        yield _line(job, lead_s + max(0.0, job.submit_s - at_s), max(1.0, job.work_s - job.done_s))


def _line(job: Job, submit_s: float, duration_s: float) -> dict[str, object]:
    return {
        "job_id": job.job_id,
        "user": job.user,
        "virtual_cluster": "",
        "submit_s": round(submit_s, 3),
        "duration_s": round(duration_s, 3),
        "gpus": job.gpus,
        "cpus": job.cores,
        "memory_gib": "",
        "nodes_requested": job.ranks,
        "status": "passed",
        "kind": job.kind,
    }


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", type=Path, metavar="JOBS.csv.gz")
    parser.add_argument("--at-h", type=float, required=True, help="the moment, in hours from the run's start")
    parser.add_argument("--jobs", type=int, default=2000, help="that waited then or came later [2000]")
    parser.add_argument("--lead-s", type=float, default=600.0, help="from the first submission to the moment [600]")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
