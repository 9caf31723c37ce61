"""The measures of several runs side by side, as rows of text: for the terminal and for the report alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from coda_sim.durations import duration_from_seconds
from coda_sim.results.summary import Interval, RunResult, grouped, intervals_of

SECTIONS: Final[tuple[tuple[str, tuple[str, ...]], ...]] = (
    (
        "GPUs",
        (
            "gpu_util_all", "gpu_util_queueing", "gpu_util_active", "gpu_active_all", "gpu_active_queueing",
            "useful_gpu_hours_per_hour", "fragmentation", "fragmentation_cores", "fragmentation_scatter",
            "fragmentation_memory", "fragmentation_quota", "cpu_active_all",
        ),
    ),
    (
        "GPU jobs",
        (
            "gpu_started_10s", "gpu_started_3min", "gpu_started_10min", "gpu_started_1h", "gpu_wait_mean_s",
            "gpu_wait_p50_s", "gpu_wait_p90_s", "gpu_wait_p99_s", "gpu_jct_mean_s", "gpu_jct_p99_s",
        ),
    ),
    (
        "CPU jobs",
        (
            "cpu_started_10s", "cpu_started_3min", "cpu_started_10min", "cpu_started_1h", "cpu_wait_mean_s",
            "cpu_wait_p50_s", "cpu_wait_p90_s", "cpu_wait_p99_s", "cpu_jct_mean_s", "cpu_jct_p99_s",
        ),
    ),
    ("Users", ("user_wait_p99_worst_s", "jain_users", "makespan_s")),
    (
        "Allocator and eliminator",
        (
            "tuning_steps_mean", "cores_gained_1_5", "cores_gained_more", "cores_lost", "cores_same",
            "throttles", "victim_seconds", "aborts", "migrations", "preemptions",
            "lost_gpu_s", "lost_core_s",
        ),
    ),
    ("Jobs", ("jobs_finished", "jobs_refused", "rows_skipped", "rows_changed")),
)  # fmt: skip
"""Every measure of a summary, in the order they are shown."""

_PLAIN: Final = frozenset(
    {
        "aborts",
        "migrations",
        "preemptions",
        "throttles",
        "jobs_finished",
        "jobs_refused",
        "rows_skipped",
        "rows_changed",
    }
)
_NUMBERS: Final = frozenset({"useful_gpu_hours_per_hour", "tuning_steps_mean", "jain_users"})
_UNIT_SECONDS: Final = frozenset({"lost_gpu_s", "lost_core_s", "victim_seconds"})


def rows_of(results: Sequence[RunResult]) -> tuple[list[str], list[tuple[str, list[tuple[str, list[str]]]]]]:
    """Column titles, and per section each measure's name with one cell per group of runs."""
    groups = grouped(results)
    found = [intervals_of(group) for group in groups.values()]
    titles = [" ".join([policy, *(f"without {part}" for part in without)]) for policy, without in groups]
    return titles, [
        (section, [(name, [cell(name, intervals[name]) for intervals in found]) for name in names])
        for section, names in SECTIONS
    ]


def cell(name: str, interval: Interval | None) -> str:
    """The mean, and half the width of its interval where there are several seeds."""
    if interval is None:
        return "-"
    if interval.high is None:
        return _text(name, interval.mean)
    half = interval.high - interval.mean
    if _is_share(name):
        return f"{_text(name, interval.mean)} ±{half * 100:.1f}"
    return f"{_text(name, interval.mean)} ±{_text(name, half)}"


def show(results: Sequence[RunResult], head: dict[str, Any], console: Console) -> None:
    """Print the comparison."""
    titles, sections = rows_of(results)
    seeds = sorted({result.seed for result in results})
    table = Table(title=Text(title_of(head)), caption=Text(_caption(seeds)))
    table.add_column("measure")
    for title in titles:
        table.add_column(Text(title), justify="right")
    for section, measures in sections:
        table.add_section()
        table.add_row(Text(section, style="bold"))
        for name, cells in measures:
            table.add_row(name, *cells)
    console.print(table)
    slowest = max(results, key=lambda result: result.timing.wall_s).timing
    console.print(
        f"Slowest run: {slowest.wall_s:.1f} s of wall time, {slowest.cpu_s:.1f} s of CPU, "
        f"{slowest.peak_rss_bytes / 2**20:.0f} MiB at most.",
        highlight=False,
    )


def title_of(head: dict[str, Any]) -> str:
    """Workload, its rule, and the cluster."""
    workload = head["workload"]
    return f"{workload['name']} ({workload['rule']}) on {head['cluster']}"


def _caption(seeds: Sequence[int]) -> str:
    if len(seeds) == 1:
        return f"seed {seeds[0]}"
    return f"means over seeds {', '.join(map(str, seeds))} with the 95 % interval"


def _is_share(name: str) -> bool:
    return name not in _PLAIN | _NUMBERS | _UNIT_SECONDS and not name.endswith("_s")


def _text(name: str, value: float) -> str:
    if name in _PLAIN:
        return f"{value:,.0f}" if value == round(value) else f"{value:,.1f}"
    if name in _NUMBERS:
        return f"{value:,.2f}"
    if name in _UNIT_SECONDS:
        return f"{value:,.0f}"
    return duration_from_seconds(value) if name.endswith("_s") else f"{value:.1%}"
