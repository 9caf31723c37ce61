"""What taking lent GPUs back is worth: waits of jobs within their tenant's quota, and the work that it costs.

    python benchmarks/tenant_study.py TRACE CLUSTER [--keep N] [--sample S ...] [--window A:B] [--resumable X]

Each trace is simulated under `coda` with the tree `--tenants shares`: with `fair-share` left out, with only gangs that
resume, and as it is. A job counts as owed if its team and its organisation hold no more than their own with it when it
is submitted, in the first of these runs; so the same jobs are compared.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from coda.policy import PolicyConfig
from coda.policy.config import FairShareConfig
from coda.tenants import TenantTree
from coda_sim.engine import COSTS_BY_SETTING, CostSetting
from coda_sim.engine.log import JobEntry, RunLog
from coda_sim.results.statistics import mean, percentile
from coda_sim.runs import RunOrder, run_with_log, shape_of
from coda_sim.workload import load
from coda_sim.workload.tenant_tree import SHARES, tenants_of
from rig.recorded import add_trace_options, source_from_options

RUNS = (
    ("stops nobody", ("fair-share",), FairShareConfig()),
    ("stops who resumes", (), FairShareConfig(only_resumable=True)),
    ("stops all", (), FairShareConfig()),
)


def main() -> None:
    """Print one row of a Markdown table for each run."""
    parser = argparse.ArgumentParser()
    add_trace_options(parser)
    parser.add_argument("--resumable", type=float, nargs="+", default=[0.0, 1.0])
    options = parser.parse_args()
    print("| sample | resume | fair share | owed: mean, p90 wait; JCT | others: wait, JCT | lost GPU-h | stops |")
    print("|---|---|---|---|---|---|---|")
    for sample in options.sample:
        source = source_from_options(options, sample)
        for resumable in options.resumable:
            owed: set[str] = set()
            for title, without, fair_share in RUNS:
                order = RunOrder(
                    source=source,
                    cluster=options.cluster,
                    profiles="recorded",
                    policy="coda",
                    without=without,
                    planner=PolicyConfig(fair_share=fair_share),
                    seed=1,
                    costs=replace(COSTS_BY_SETTING[CostSetting.PAID], resuming_gpu_jobs=resumable),
                    tenants=SHARES,
                )
                print(f"| {sample} | {resumable:.0%} | {title} | {_row(order, owed)} |", flush=True)


def _row(order: RunOrder, owed_ids: set[str]) -> str:
    """`owed_ids`: the jobs that count as owed; the first call fills it."""
    shape = shape_of(order)
    tenants, _ = tenants_of(SHARES, load(order.source, shape, seed=order.seed).gangs, shape.gpus)
    outcome, log, window = run_with_log(order)
    owed_ids |= set() if owed_ids else _owed(log, TenantTree(tenants))
    owed, others = _Times([], []), _Times([], [])
    for entry in log.entries:
        row = entry.gang.row
        if entry.gang.gpus and row.submit_s >= window.from_s and entry.start_s is not None and entry.end_s is not None:
            times = owed if row.job_id in owed_ids else others
            times.waits_s.append(entry.start_s - row.submit_s)
            times.jcts_s.append(entry.end_s - row.submit_s)
    metrics = outcome.result.metrics
    lost_h = (metrics["lost_gpu_s"] or 0) / 3600
    return (
        f"{mean(owed.waits_s) or 0:.0f} / {percentile(owed.waits_s, 0.9) or 0:.0f} s, {mean(owed.jcts_s) or 0:.0f} s "
        f"({len(owed.waits_s)}) | {mean(others.waits_s) or 0:.0f} s, {mean(others.jcts_s) or 0:.0f} s "
        f"({len(others.waits_s)}) | {lost_h:.0f} | {metrics['preemptions']:.0f}"
    )


class _Times(NamedTuple):
    """Of some GPU jobs: waits until the first start, and from submission to the end."""

    waits_s: list[float]
    jcts_s: list[float]


def _owed(log: RunLog, tree: TenantTree) -> set[str]:
    """The ids of the jobs that are owed GPUs when they come."""
    changes: list[tuple[float, int, JobEntry, int]] = []
    for number, entry in enumerate(log.entries):
        if entry.gang.gpus:
            changes.append((entry.gang.row.submit_s, 2 * len(log.entries) + number, entry, 0))
            for piece in entry.pieces:
                changes.append((piece.start_s, number, entry, entry.gang.gpus))
                changes.append((piece.end_s, number, entry, -entry.gang.gpus))
    held: dict[str, int] = {}
    owed: set[str] = set()
    for _, _, entry, gpus in sorted(changes, key=lambda change: change[:2]):
        path: Sequence[str] = tree.path(entry.gang.row.virtual_cluster)
        for seat in path if gpus else ():
            held[seat] = held.get(seat, 0) + gpus
        if not gpus and all(held.get(seat, 0) + entry.gang.gpus <= tree.seat(seat).own_gpus for seat in path):
            owed.add(entry.gang.row.job_id)
    return owed


if __name__ == "__main__":
    main()
