"""What stops for waiting jobs are worth: small jobs that move together (defragmentation), and time slices.

    python benchmarks/stop_study.py TRACE CLUSTER [--keep N] [--sample S ...] [--window A:B] [--resumable X ...]

Each trace is simulated under `coda` as it is, without either, and without both, with run times as recorded and costs
paid. *Gangs* ask for 8 GPUs or more. Lost work is what stopped jobs begin again, with the time of their restarts.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

from coda_sim.engine import COSTS_BY_SETTING, CostSetting
from coda_sim.results.statistics import mean, percentile
from coda_sim.runs import RunOrder, run_with_log
from rig.recorded import add_trace_options, source_from_options

GANG = 8
RUNS = (
    ("as it is", ()),
    ("nobody moves", ("migration",)),
    ("no time slices", ("time-slices",)),
    ("neither", ("migration", "time-slices")),
)


def main() -> None:
    """Print one row of a Markdown table for each run."""
    parser = argparse.ArgumentParser()
    add_trace_options(parser)
    parser.add_argument("--resumable", type=float, nargs="+", default=[0.0, 0.5, 1.0])
    options = parser.parse_args()
    print("| sample | resume | coda | wait: mean, p90 | JCT | gangs' wait: mean, p90 | lost GPU-h | moved, stopped |")
    print("|---|---|---|---|---|---|---|---|")
    for sample in options.sample:
        source = source_from_options(options, sample)
        for resumable in options.resumable:
            for title, without in RUNS:
                order = RunOrder(
                    source=source,
                    cluster=options.cluster,
                    profiles="recorded",
                    policy="coda",
                    without=without,
                    seed=1,
                    costs=replace(COSTS_BY_SETTING[CostSetting.PAID], resuming_gpu_jobs=resumable),
                )
                print(f"| {sample} | {resumable:.0%} | {title} | {_row(order)} |", flush=True)


def _row(order: RunOrder) -> str:
    outcome, log, window = run_with_log(order)
    waits_s: list[float] = []
    gang_waits_s: list[float] = []
    jcts_s: list[float] = []
    for entry in log.entries:
        row = entry.gang.row
        if not entry.gang.gpus or row.submit_s < window.from_s or entry.start_s is None or entry.end_s is None:
            continue
        waits_s.append(entry.start_s - row.submit_s)
        jcts_s.append(entry.end_s - row.submit_s)
        if entry.gang.gpus >= GANG:
            gang_waits_s.append(waits_s[-1])
    metrics = outcome.result.metrics
    lost_h = (metrics["lost_gpu_s"] or 0) / 3600
    return (
        f"{_times(waits_s)} | {mean(jcts_s) or 0:.0f} s | {_times(gang_waits_s)} ({len(gang_waits_s)}) | "
        f"{lost_h:.0f} | {metrics['migrations']:.0f}, {metrics['preemptions']:.0f}"
    )


def _times(times_s: list[float]) -> str:
    return f"{mean(times_s) or 0:.0f}, {percentile(times_s, 0.9) or 0:.0f} s"


if __name__ == "__main__":
    main()
