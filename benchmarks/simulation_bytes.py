"""The bytes of small simulations under every policy, and their CPU time: a change that only saves time changes none.

`python benchmarks/simulation_bytes.py > new.txt`, the same with PYTHONPATH set to another tree's `core` for old.txt,
and `diff old.txt new.txt` finds nothing. Times and cycles go to stderr. Three workloads: two slices of the month, and
gangs of up to three nodes in three racks on an overloaded cluster.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from coda.policy.policies import POLICIES
from coda_sim.engine import Costs, RunLog, Simulation
from coda_sim.results.job_records import write_records
from coda_sim.runs import PARTS_BY_POLICY, config_of, simulation_config_of, without_collecting
from coda_sim.traces import JobKind, RecordedStatus, Row
from coda_sim.workload import (
    ClusterShape,
    Cores,
    JobModelConfig,
    JobModelDraws,
    MonthConfig,
    gangs_from_rows,
    profile_set,
    shape_from_text,
)
from coda_sim.workload.month import coda_month
from coda_sim.workload.month_config import lengthened, widened

Workload = tuple[tuple[Row, ...], ClusterShape]
Variant = tuple[str, tuple[str, ...], Costs]
"""A policy, the parts left out, and what restarts cost."""

LOST = Costs(resuming_cpu_jobs=0.0)


def month(days: int, width: float, seed: int, jobs: int) -> Workload:
    config = widened(lengthened(MonthConfig(), days / MonthConfig().days), width)
    return coda_month(config, seed=seed)[:jobs], config.shape


def gangs(jobs: int, seed: int) -> Workload:
    """Gangs and CPU jobs of three tenants; every seventh comes together with the one before."""
    rng, at_s, rows = random.Random(seed), 0.0, list[Row]()
    for number in range(jobs):
        at_s += round(rng.expovariate(1 / 55)) if number % 7 else 0.0
        gpus = rng.choice((0, 0, 0, 1, 1, 2, 4, 8, 8, 16, 24))
        nodes = gpus // 8 if gpus > 8 else rng.choice((1, 2)) if gpus > 1 else 1
        row = Row(
            line=number + 2,
            job_id=f"j{number:05}",
            user=f"u{rng.randrange(6)}",
            virtual_cluster=f"vc{rng.randrange(3)}",
            submit_s=at_s,
            duration_s=round(rng.lognormvariate(7.3, 1.4), 1) + 1,
            gpus=gpus,
            cpus=float(rng.choice((1, 2, 4, 8)) * nodes),
            memory_gib=None,
            nodes_requested=nodes,
            status=RecordedStatus.PASSED,
            kind=JobKind.GPU if gpus else JobKind.CPU,
        )
        rows.append(row)
    return tuple(rows), replace(shape_from_text("8x4x28,6x8x48"), racks=3)


def variants() -> Iterator[Variant]:
    yield from ((policy, (), Costs()) for policy in POLICIES)
    yield from (("coda", (part.value,), Costs()) for part in PARTS_BY_POLICY["coda"])
    yield "coda", ("borrowing", "migration"), Costs()
    yield "coda", (), LOST


def simulated(workload: Workload, variant: Variant) -> tuple[RunLog, float]:
    """The log, and the CPU seconds it took."""
    (rows, shape), (policy, without, costs) = workload, variant
    profiles = profile_set("paper")
    found, _ = gangs_from_rows(rows, shape, Cores(seed=1))
    setting = simulation_config_of(config_of(policy, without, racks=shape.racks), shape, profiles, costs)
    simulation = Simulation(setting, found, JobModelDraws(profiles, JobModelConfig(), seed=1))
    with without_collecting():
        began_s = time.process_time()
        return simulation.run(), time.process_time() - began_s


def digest(log: RunLog) -> str:
    """Of jobs.csv.gz, and of what it does not say: refusals, tuning steps, time as a victim, and the trail of usage."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "jobs.csv.gz"
        write_records(log, path)
        found = hashlib.sha256(path.read_bytes())
    rest = [(entry.refusal, entry.end_s, entry.victim_s, entry.tuning_steps) for entry in log.entries]
    found.update(repr((rest, sorted(vars(log.trail).items()))).encode())
    return found.hexdigest()[:16]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--times", type=int, default=1, help="how many times as many jobs (default 1)")
    parser.add_argument("--policy", action="append", help="(repeatable; default: every policy)")
    options = parser.parse_args()
    workloads = {
        "month": month(2, 0.25, 3, 450 * options.times),
        "gangs": gangs(220 * options.times, 5),
        "wider month": month(1, 0.5, 7, 350 * options.times),
    }
    for name, workload in workloads.items():
        for variant in variants():
            policy, without, costs = variant
            if options.policy and policy not in options.policy:
                continue
            log, cpu_s = simulated(workload, variant)
            title = f"{name}: {policy} without {', '.join(without) or 'nothing'}{', work lost' * (costs is LOST)}"
            print(f"{title}: {digest(log)}", flush=True)
            print(f"{title}: {cpu_s:.2f} s, {log.cycles} cycles", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
