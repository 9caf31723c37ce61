"""The options that select and scale the rows of a workload. They mean the same in every command."""

from __future__ import annotations

import math
from typing import Annotated

import typer

from coda.errors import InvalidInput
from coda_sim.durations import seconds_from_duration
from coda_sim.traces import Selection, days_from_window

LimitOption = Annotated[int | None, typer.Option(min=1, help="Take only the first N jobs, after all filters.")]
MaxDurationOption = Annotated[str | None, typer.Option(help="Cut longer run times to this, as 6h.")]
WindowOption = Annotated[
    str | None, typer.Option(help="Take only jobs that are submitted within these days, FIRST:LAST, as 0:7.")
]
CompressOption = Annotated[float, typer.Option(help="Divide submit times by this number, but not run times.")]
KeepOption = Annotated[int | None, typer.Option(min=0, max=1000, help="Keep N of 1000 GPU jobs, chosen by their hash.")]
SampleOption = Annotated[int, typer.Option(min=0, max=999, help="With --keep: another choice of as many jobs.")]
GpuJobsOnlyOption = Annotated[bool, typer.Option("--gpu-jobs-only", help="Leave CPU jobs out.")]
MaxGpusOption = Annotated[int | None, typer.Option(min=1, help="Leave out jobs with more GPUs.")]


def selection_from_options(
    *,
    window: str | None,
    gpu_jobs_only: bool,
    max_gpus_per_job: int | None,
    keep: int | None,
    sample: int,
    limit: int | None,
    compress: float,
    max_duration: str | None,
) -> Selection:
    """Return the options as a selection. Raises InvalidInput."""
    if sample and keep is None:
        raise InvalidInput(f"--sample {sample}: there is nothing to choose without --keep")
    return Selection(
        window_days=None if window is None else days_from_window(window),
        gpu_jobs_only=gpu_jobs_only,
        max_gpus_per_job=max_gpus_per_job,
        keep=keep,
        sample=sample,
        limit=limit,
        compress=positive("--compress", compress),
        max_duration_s=None if max_duration is None else seconds_from_duration(max_duration),
    )


def positive(option: str, number: float) -> float:
    """Return the number. Raises InvalidInput unless it is finite and above 0."""
    if not 0 < number < math.inf:
        raise InvalidInput(f"{option} {number}: must be a number above 0")
    return number
