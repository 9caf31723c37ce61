"""What Philly's jobs of October 2017 wait for under Coda's planner, and for how long; beside what was seen there.

    python benchmarks/philly_delays.py TRACE WAITS CLUSTER ... [--keep N] [--sample S ...] [--policy P ...] [--racks R]

The tenants are the trace's virtual clusters; how much each owns is an assumption: its part of all GPUs by what its jobs
use in the month, times `--own`. Each second of each wait is booked by `coda.history.delay_causes`, as on a cluster.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

from coda.history import Ending, FinishedJob
from coda.history.report import HistoryReport, SizeRow, report
from coda.nodes.locality import locality_from_text
from coda.policy import PolicyConfig
from coda_cli.history.trace_records import records, waits_from_file
from coda_cli.trace_options import selection_from_options
from coda_sim.engine import COSTS_BY_SETTING, CostSetting
from coda_sim.engine.log import JobEntry, RunLog
from coda_sim.runs import RunOrder, run_with_log, shape_of
from coda_sim.traces import OnError, read_trace
from coda_sim.traces.selection import select
from coda_sim.workload import WorkloadSource, load
from coda_sim.workload.virtual_clusters import virtual_clusters

PHILLY = {"fair share": (0.439, 0.216), "fragmentation": (0.561, 0.784)}
"""Table 1: shares of the delayed jobs of at most four GPUs, and of larger ones."""


def main() -> None:
    """Print Markdown tables: one row of causes for each run, and one table of sizes for each sample."""
    parser = argparse.ArgumentParser()
    parser.add_argument("trace", type=Path)
    parser.add_argument("waits", type=Path)
    parser.add_argument("clusters", nargs="+")
    parser.add_argument("--keep", type=int, default=None)
    parser.add_argument("--sample", type=int, nargs="+", default=[0])
    parser.add_argument("--policy", nargs="+", default=["yarn-cs"])
    parser.add_argument("--racks", type=int, default=1)
    parser.add_argument("--prefer", default="")
    parser.add_argument("--own", type=float, nargs="+", default=[1.0])
    options = parser.parse_args()
    print(
        "| cluster | policy | sample | owned | up to 4: fair share | more: the same | jobs | fragmentation of time |",
        end="",
    )
    print(" GPUs held | waited 10 min |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    sizes: list[str] = []
    for sample in options.sample:
        source = _source(options.trace, options.keep, sample)
        sizes += _sizes("observed", sample, report(_observed(source, options.waits)).sizes)
        for cluster, policy, own in product(options.clusters, options.policy, options.own):
            with TemporaryDirectory() as folder:
                order = RunOrder(
                    source=source,
                    cluster=cluster,
                    racks=options.racks,
                    profiles="recorded",
                    policy=policy,
                    planner=PolicyConfig(locality=locality_from_text(options.prefer)),
                    seed=1,
                    costs=COSTS_BY_SETTING[CostSetting.PAID],
                    books_delays=True,
                )
                order = replace(order, tenants=_tenants(order, own, Path(folder) / "tenants.csv"))
                outcome, log, _ = run_with_log(order)
            found = report(_simulated(log))
            held = outcome.result.metrics["gpu_active_all"] or 0
            print(f"| {cluster} | {policy} | {sample} | {own:g} ", end="")
            print(f"| {_causes(found)} | {held:.0%} | {_late(found):.1%} |", flush=True)
            sizes += _sizes(f"{policy}, {cluster}", sample, found.sizes)
    print()
    print("| waits | sample | size | jobs | run p50 | run p90 | wait p50 | wait p90 | waited 10 min |")
    print("|---|---|---|---|---|---|---|---|---|")
    print("\n".join(sizes))


def _tenants(order: RunOrder, own: float, path: Path) -> str:
    """Write what each virtual cluster of the trace owns; return the file."""
    shape = shape_of(order)
    found = virtual_clusters(load(order.source, shape, seed=order.seed).gangs, shape.gpus)
    lines = [f"{tenant.name},{round((tenant.gpus or 0) * own)}" for tenant in found]
    path.write_text("\n".join(["name,gpus", *lines]) + "\n", encoding="utf-8")
    return str(path)


def _source(trace: Path, keep: int | None, sample: int) -> WorkloadSource:
    selection = selection_from_options(
        window=None,
        gpu_jobs_only=False,
        max_gpus_per_job=None,
        keep=keep,
        sample=sample,
        limit=None,
        compress=1.0,
        max_duration=None,
    )
    return WorkloadSource(trace=trace, on_error=OnError.SKIP, selection=selection, request_table=None)


def _observed(source: WorkloadSource, waits: Path) -> Iterator[FinishedJob]:
    assert source.trace is not None
    name = source.trace.name
    rows = select(read_trace(source.trace, on_error=OnError.SKIP).rows, source.selection, name).rows
    return records(rows, name, 0.0, waits_from_file(waits))


def _simulated(log: RunLog) -> Iterator[FinishedJob]:
    for entry in log.entries:
        if entry.end_s is not None and entry.spent is not None:
            yield _record(entry, entry.end_s)


def _record(entry: JobEntry, end_s: float) -> FinishedJob:
    row, gang, spent = entry.gang.row, entry.gang, entry.spent
    assert spent is not None
    held_s = sum(piece.end_s - piece.start_s for piece in entry.pieces)
    return FinishedJob(
        uid=row.job_id,
        attempt=1,
        namespace=row.virtual_cluster or "jobs",
        owner=row.virtual_cluster,
        name=row.job_id,
        category="",
        model="",
        replicas=gang.replicas,
        gpus_per_replica=gang.gpus_per_replica,
        cores_asked=gang.cpus_per_replica,
        cores_tuned=None,
        cores_given=gang.cpus_per_replica,
        ending=Ending.SUCCEEDED,
        reason="Completed",
        failure_class="",
        queued_s=row.submit_s,
        started_s=entry.start_s or 0.0,
        ended_s=end_s,
        waits=tuple((cause.value, float(seconds)) for cause, seconds in spent.waits),
        held_s=held_s,
        run_s=held_s,
        idle_gpu_s=None,
        failures=0,
    )


def _causes(found: HistoryReport) -> str:
    if not found.philly:
        return "- | - | 0 | -"
    fair, fragmented = found.philly
    jobs = f"{fair.small + fragmented.small:,} / {fair.large + fragmented.large:,}"
    return f"{fair.small_share:.1%} | {fair.large_share:.1%} | {jobs} | {fragmented.wait_share:.1%}"


def _late(found: HistoryReport) -> float:
    return sum((row.long_wait_share or 0) * row.jobs for row in found.sizes) / found.jobs


def _sizes(what: str, sample: int, rows: Iterable[SizeRow]) -> list[str]:
    return [
        f"| {what} | {sample} | {row.size} | {row.jobs:,} | {row.run_p50_s:,.0f} | {row.run_p90_s:,.0f} "
        f"| {row.wait_p50_s or 0:,.0f} | {row.wait_p90_s or 0:,.0f} | {row.long_wait_share or 0:.1%} |"
        for row in rows
    ]


if __name__ == "__main__":
    main()
