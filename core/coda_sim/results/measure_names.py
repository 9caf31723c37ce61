"""The measures as people read them: each key of `summary.json` with its name and unit, in the order they are shown."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final


class Unit(Enum):
    """What the number of a measure counts; how it is written is the reader's choice."""

    SHARE = "share"  # 0..1, shown in percent
    SPAN = "seconds"  # a time that passes, shown as 1h 30m
    COUNT = "count"
    NUMBER = "number"  # has no unit
    UNIT_SECONDS = "unit-seconds"  # GPU, core or job seconds: never shown as a span of time


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """One measure. `key` is its name in `summary.json`, `name` its name for people."""

    key: str
    name: str
    unit: Unit


def _measures(unit: Unit, **name_by_key: str) -> tuple[Measure, ...]:
    return tuple(Measure(key=key, name=name, unit=unit) for key, name in name_by_key.items())


def _of_jobs(kind: str) -> tuple[Measure, ...]:
    """Starts, waits and completion times of GPU jobs or CPU jobs."""
    jobs = f"{kind.upper()} jobs"
    started = {"10s": "10 s", "3min": "3 min", "10min": "10 min", "1h": "1 h"}
    waits = {"mean": "mean", "p50": "median", "p90": "p90", "p99": "p99", "most": "longest"}
    return (
        *_measures(
            Unit.SHARE, **{f"{kind}_started_{key}": f"{jobs} started within {text}" for key, text in started.items()}
        ),
        *_measures(Unit.SPAN, **{f"{kind}_wait_{key}_s": f"{text} wait of {jobs}" for key, text in waits.items()}),
        *_measures(
            Unit.SPAN,
            **{
                f"{kind}_first_wait_{key}_s": f"{key} wait of {jobs} until their first start" for key in ("mean", "p99")
            },
        ),
        *_measures(Unit.SPAN, **{f"{kind}_jct_{key}_s": f"{key} completion time of {jobs}" for key in ("mean", "p99")}),
    )


SECTIONS: Final[tuple[tuple[str, tuple[Measure, ...]], ...]] = (
    (
        "GPUs",
        (
            *_measures(
                Unit.SHARE,
                gpu_util_all="GPU utilisation",
                gpu_util_queueing="GPU utilisation while a GPU job waits",
                gpu_util_active="utilisation of held GPUs",
                gpu_active_all="GPUs held",
                gpu_active_queueing="GPUs held while a GPU job waits",
            ),
            *_measures(Unit.NUMBER, useful_gpu_hours_per_hour="useful GPU hours per hour"),
            *_measures(
                Unit.SHARE,
                fragmentation="GPUs idle while a GPU job waits",
                fragmentation_cores="GPUs idle for lack of cores",
                fragmentation_scatter="GPUs idle because scattered",
                fragmentation_memory="GPUs idle for lack of memory",
                fragmentation_quota="GPUs idle because of quota or policy",
                cpu_active_all="cores held",
            ),
        ),
    ),
    (
        "GPU jobs",
        (
            *_of_jobs("gpu"),
            *_measures(
                Unit.NUMBER,
                gpu_slowdown_mean="mean bounded slowdown of GPU jobs",
                gpu_slowdown_1="bounded slowdown with 1 GPU",
                gpu_slowdown_2_7="bounded slowdown with 2 to 7 GPUs",
                gpu_slowdown_8_up="bounded slowdown with 8 or more GPUs",
            ),
        ),
    ),
    ("CPU jobs", _of_jobs("cpu")),
    (
        "Users",
        (
            *_measures(Unit.SPAN, user_wait_p99_worst_s="p99 wait of the unluckiest user"),
            *_measures(Unit.NUMBER, jain_users="fairness among users (Jain, 1 is best)"),
            *_measures(Unit.SPAN, makespan_s="first submission to last end"),
        ),
    ),
    (
        "Allocator and eliminator",
        (
            *_measures(Unit.NUMBER, tuning_steps_mean="mean tuning steps of a tuned job"),
            *_measures(
                Unit.SHARE,
                cores_gained_1_5="GPU jobs that gained 1 to 5 cores",
                cores_gained_more="GPU jobs that gained more cores",
                cores_lost="GPU jobs that lost cores",
                cores_same="GPU jobs that kept their cores",
            ),
            *_measures(Unit.COUNT, throttles="throttles"),
            *_measures(
                Unit.UNIT_SECONDS,
                victim_seconds="job seconds slowed by neighbours",
                victim_lost_gpu_s="GPU seconds lost to neighbours",
            ),
            *_measures(Unit.COUNT, aborts="aborts", migrations="migrations", preemptions="preemptions"),
            *_measures(
                Unit.UNIT_SECONDS, lost_gpu_s="GPU seconds of lost work", lost_core_s="core seconds of lost work"
            ),
            *_measures(
                Unit.UNIT_SECONDS,
                promised_gpu_s="GPU seconds kept idle for promised jobs",
                promised_most_gpu_s="the most for one job",
            ),
        ),
    ),
    (
        "Jobs",
        _measures(
            Unit.COUNT,
            jobs_finished="jobs finished",
            jobs_refused="jobs refused",
            rows_skipped="trace rows skipped",
            rows_changed="trace rows changed",
        ),
    ),
)
"""Every measure of a summary."""

MEASURE_BY_KEY: Final = {measure.key: measure for _, measures in SECTIONS for measure in measures}
