"""The options that choose and scale the rows of a workload: the same words, with the same effect, in every command."""

from __future__ import annotations

import math
from typing import Annotated

import typer

from coda.errors import InvalidInput
from coda_sim.durations import seconds_from_duration
from coda_sim.traces.selection import Selection, days_from_window

LimitOption = Annotated[int | None, typer.Option(min=1, help="Only the first so many jobs, after all filters.")]
MaxDurationOption = Annotated[str | None, typer.Option(help="Cut longer run times, as 6h.")]
WindowOption = Annotated[str | None, typer.Option(help="Only jobs submitted within FIRST:LAST days, as 0:7.")]
CompressOption = Annotated[float, typer.Option(help="Divide submit times, but not run times.")]
KeepOption = Annotated[int | None, typer.Option(min=0, max=1000, help="Keep so many of 1000 GPU jobs, by their hash.")]
MaxGpusOption = Annotated[int | None, typer.Option(min=1, help="Leave larger jobs out.")]


def selection_from_options(
    *,
    window: str | None,
    gpu_jobs_only: bool,
    max_gpus_per_job: int | None,
    keep: int | None,
    limit: int | None,
    compress: float,
    max_duration: str | None,
) -> Selection:
    """The options as a selection. Raises InvalidInput."""
    return Selection(
        window_days=days_from_window(window) if window else None,
        gpu_jobs_only=gpu_jobs_only,
        max_gpus_per_job=max_gpus_per_job,
        keep=keep,
        limit=limit,
        compress=positive("--compress", compress),
        max_duration_s=seconds_from_duration(max_duration) if max_duration else None,
    )


def positive(option: str, number: float) -> float:
    """The number itself. Raises InvalidInput for one that is not finite and above 0."""
    if not 0 < number < math.inf:
        raise InvalidInput(f"{option} {number}: must be a number above 0")
    return number
