"""Writes small.csv, a small trace to try things with: `python examples/traces/generate.py > examples/traces/small.csv`.

Everything is drawn from one seed; nothing comes from a real trace. 70 GPU jobs and 20 CPU-only jobs within four hours,
mostly small and short with a few large and long ones, so that on 4 nodes of 8 GPUs and 48 cores some of them wait.
"""

from __future__ import annotations

import csv
import math
import random
import sys

SEED = 2024
HOURS = 4
GPU_JOBS = 70
CPU_JOBS = 20
COLUMNS = (
    "job_id",
    "user",
    "virtual_cluster",
    "submit_s",
    "duration_s",
    "gpus",
    "cpus",
    "memory_gib",
    "nodes_requested",
    "status",
    "kind",
)


def rows(draw: random.Random) -> list[list[object]]:
    """Every job, by its moment of submission."""
    moments_s = sorted(draw.randrange(HOURS * 3600) for _ in range(GPU_JOBS + CPU_JOBS))
    kinds = draw.sample(["gpu"] * GPU_JOBS + ["cpu"] * CPU_JOBS, GPU_JOBS + CPU_JOBS)
    return [
        [f"demo-{number:03d}", f"user-{draw.randrange(8)}", "demo", moment_s, *_job(draw, kind), _status(draw), kind]
        for number, (moment_s, kind) in enumerate(zip(moments_s, kinds, strict=True), 1)
    ]


def _job(draw: random.Random, kind: str) -> tuple[int, int, int, int, int]:
    """Seconds, GPUs, cores, GiB, nodes of one job."""
    if kind == "cpu":
        cores = draw.choice([1, 1, 2, 4])
        return max(1, round(draw.lognormvariate(math.log(120), 1.2))), 0, cores, 4 * cores, 1
    gpus = draw.choices([1, 2, 4, 8, 16, 24], weights=[40, 15, 15, 18, 9, 3])[0]
    cores = gpus * draw.choice([1, 2, 4, 5])
    seconds = min(2 * 3600, max(20, round(draw.lognormvariate(math.log(1200), 1.1))))
    return seconds, gpus, cores, 8 * gpus, math.ceil(gpus / 8)


def _status(draw: random.Random) -> str:
    return draw.choices(["passed", "failed", "killed"], weights=[80, 12, 8])[0]


if __name__ == "__main__":
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(rows(random.Random(SEED)))
