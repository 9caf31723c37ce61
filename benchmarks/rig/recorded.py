"""The part of a recorded trace that a study simulates, as its command line says it."""

from __future__ import annotations

import argparse
from pathlib import Path

from coda_cli.trace_options import selection_from_options
from coda_sim.traces import OnError
from coda_sim.workload import WorkloadSource


def add_trace_options(parser: argparse.ArgumentParser) -> None:
    """Add the trace, the cluster, and which jobs of the trace are taken."""
    parser.add_argument("trace", type=Path)
    parser.add_argument("cluster")
    parser.add_argument("--keep", type=int, default=None)
    parser.add_argument("--sample", type=int, nargs="+", default=[0])
    parser.add_argument("--window", default=None)
    parser.add_argument("--max-gpus", type=int, default=None)


def source_from_options(options: argparse.Namespace, sample: int) -> WorkloadSource:
    """Return the jobs of one sample."""
    selection = selection_from_options(
        window=options.window,
        gpu_jobs_only=False,
        max_gpus_per_job=options.max_gpus,
        keep=options.keep,
        sample=sample,
        limit=None,
        compress=1.0,
        max_duration=None,
    )
    return WorkloadSource(trace=options.trace, on_error=OnError.SKIP, selection=selection, request_table=None)
