"""The measures of several runs side by side: cells as text for terminal and report, and the tables of the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from coda_sim.durations import duration_from_seconds
from coda_sim.results.measure_names import MEASURE_BY_KEY, SECTIONS, Measure, Unit
from coda_sim.results.summary import Interval, RunResult, grouped, intervals_of
from coda_sim.traces import Selection
from coda_sim.workload.model_profiles import RECORDED
from coda_sim.workload.workload import MONTH

OVERVIEW: Final = {
    "gpu_util_all": "GPUs\nbusy",
    "gpu_active_queueing": "GPUs held\nwhile jobs wait",
    "fragmentation_cores": "GPUs idle,\ncores short",
    "gpu_started_10s": "GPU jobs\nwithin 10 s",
    "gpu_wait_mean_s": "mean wait,\nGPU jobs",
    "gpu_wait_p90_s": "p90 wait,\nGPU jobs",
    "gpu_jct_mean_s": "mean JCT,\nGPU jobs",
    "cpu_started_3min": "CPU jobs\nwithin 3 min",
}
"""The measures that a platform team compares first (our choice), with the titles of their columns."""

LOSSES: Final = {
    "lost_gpu_s": "GPU hours\nlost",
    "lost_core_s": "core hours\nlost",
    "aborts": "aborts",
    "migrations": "migrations",
    "preemptions": "pre-\nemptions",
}
"""What each policy's own stops cost, with the titles of their columns: work that was thrown away, and restarts."""

REFUSED: Final = "jobs_refused"

_NARROW: Final = 7  # width of the overview's columns where the terminal is narrow: `±16m42s`
_NAMES: Final = 31  # where the terminal is narrow, longer names of measures take two lines
_WIDE: Final = 120
_GAP: Final = 2  # between two columns


class Comparison(NamedTuple):
    """Each group of runs: its title (a policy, perhaps with parts left out), and its intervals by key of a measure."""

    titles: list[str]
    intervals: list[dict[str, Interval | None]]

    def cells(self, measure: Measure) -> list[str]:
        """The measure of every group as text."""
        return [cell(measure, intervals[measure.key]) for intervals in self.intervals]


def comparison_of(results: Sequence[RunResult]) -> Comparison:
    """The runs by policy, in the order given."""
    groups = grouped(results)
    titles = [" ".join([policy, *(f"without {part}" for part in without)]) for policy, without in groups]
    return Comparison(titles, [intervals_of(group) for group in groups.values()])


def cell(measure: Measure, interval: Interval | None) -> str:
    """The mean, and half the width of its interval where there are several seeds."""
    if interval is None:
        return "-"
    if interval.high is None:
        return _text(measure, interval.mean)
    half = interval.high - interval.mean
    spread = f"{half * 100:.1f}" if measure.unit is Unit.SHARE else _text(measure, half)
    return f"{_text(measure, interval.mean)} ±{spread}"


def refused_jobs(comparison: Comparison) -> Iterator[str]:
    """Yield a sentence for each number of refused jobs, with the policies that have it; none where all jobs ran.

    Waits count jobs that started: a policy that never starts the slow ones would look good."""
    titles_by_amount: dict[str, list[str]] = {}
    for title, intervals in zip(comparison.titles, comparison.intervals, strict=True):
        interval = intervals.get(REFUSED)
        if interval is not None and interval.mean:
            titles_by_amount.setdefault(cell(MEASURE_BY_KEY[REFUSED], interval), []).append(title)
    for amount, titles in titles_by_amount.items():
        under = "" if len(titles) == len(comparison.titles) else f" under {', '.join(titles)}"
        jobs = "1 job that never runs" if amount == "1" else f"{amount} jobs that never run"
        yield f"Refused{under}: {jobs} here and that no measure of waits or completion times counts ({REFUSED})."


def empty_measures(comparison: Comparison) -> Iterator[str]:
    """Yield a sentence for each kind of measure that has no value, with the reason."""

    def lack(key: str) -> list[str]:
        pairs = zip(comparison.titles, comparison.intervals, strict=True)
        return [title for title, intervals in pairs if intervals.get(key) is None]

    if lack("cpu_active_all") == comparison.titles:
        yield "Empty (-): shares of GPUs and cores, since no time passes between the first submission and the last."
    elif lack("gpu_util_all") == comparison.titles:
        yield "Empty (-): shares of GPUs, since the cluster has none."
    elif titles := lack("gpu_active_queueing"):
        yield f"Empty (-): measures while GPU jobs wait, since under {', '.join(titles)} none waits."
    for kind, key in (("GPU", "gpu_started_10s"), ("CPU", "cpu_started_3min")):
        if lack(key) == comparison.titles:
            yield f"Empty (-): measures of {kind} jobs, since none is submitted in the measured time."


def show(
    results: Sequence[RunResult], head: dict[str, Any], console: Console, *, all_measures: bool, left_out: str = ""
) -> None:
    """Print the comparison: the overview or, where asked for, all measures. `left_out` as in `title_of`."""
    comparison = comparison_of(results)
    seeds = sorted({result.seed for result in results})
    console.print(Text(title_of(head, left_out), style="bold"))
    console.print(Text(_caption(seeds)))
    for sentence in (*same_jobs(results, head), *assumed_speeds(results, head)):
        console.print(Text(sentence))
    console.print()
    if all_measures:
        _show_measures(comparison, SECTIONS, console)
    elif len(comparison.titles) == 1 or not _show_policies(comparison, console):
        keys = (*OVERVIEW, *LOSSES, *((REFUSED,) if any(refused_jobs(comparison)) else ()))
        _show_measures(comparison, (("", tuple(map(MEASURE_BY_KEY.__getitem__, keys))),), console)
    else:
        _show_losses(comparison, console)
    for sentence in (*empty_measures(comparison), *refused_jobs(comparison)):
        console.print(f"\n{sentence}", markup=False, highlight=False)
    if not all_measures:
        console.print(
            f"\n--all-measures shows all {len(MEASURE_BY_KEY)} measures, --out FOLDER writes them to files.",
            highlight=False,
        )
    slowest = max(results, key=lambda result: result.timing.wall_s).timing
    console.print(
        f"Slowest run: {slowest.wall_s:.1f} s of wall time, {slowest.cpu_s:.1f} s of CPU, "
        f"{slowest.peak_rss_bytes / 2**20:.0f} MiB at most.",
        highlight=False,
    )


def title_of(head: dict[str, Any], left_out: str = "") -> str:
    """Workload, its rule, the cluster, where speeds come from, and who pays for stops.

    `left_out`: what the file has besides and no run had, in words; empty: nothing."""
    workload = head["workload"]
    some = "" if head["resumable"] == 1 else f", {head['resumable']:.0%} of GPU jobs resume"
    if every_s := head.get("save_every_s"):
        some += f", saved every {duration_from_seconds(every_s)}"
    speeds = "run times as recorded" if (name := workload["profiles"]) == RECORDED else f"speeds assumed ({name})"
    rule = workload["rule"]
    if left_out:
        rule = f"{left_out}; {'all others as they are' if rule == Selection().rule() else rule}"
    return f"{workload['name']} ({rule}) on {head['cluster']}, {speeds}, costs {head['costs']}{some}"


def same_jobs(results: Sequence[RunResult], head: dict[str, Any]) -> Iterator[str]:
    """Yield a sentence on what the intervals over seeds of a trace are not; none for one seed, or for the month."""
    if head["workload"]["name"] != MONTH and len({result.seed for result in results}) > 1:
        yield (
            "All seeds have the same jobs at the same times; a seed draws what they train. "
            "So ± says nothing about other weeks: for that, simulate several (--window)."
        )


def assumed_speeds(results: Sequence[RunResult], head: dict[str, Any]) -> Iterator[str]:
    """Yield a sentence on what the comparison owes to assumed speeds; none where run times are as recorded.

    It is about the policy and the seed with the largest gain of one job."""
    known = [(result, result.gain) for result in results if result.gain is not None]
    profiles = head["workload"]["profiles"]
    if profiles == RECORDED or not known:
        return
    result, gain = max(known, key=lambda one: one[1].most)
    if round(100 * gain.most) < 1:
        return
    on_average = f"{abs(gain.mean):.0%} {'faster' if gain.mean >= 0 else 'slower'} on average".replace("%", " %")
    yield (
        f"GPU jobs run up to {100 * gain.most:.0f} % faster than recorded under {result.policy}, {on_average}: "
        f"how cores change their speed is assumed ({profiles}). "
        "--profiles recorded shows what order and placement do alone."
    )


def _show_policies(comparison: Comparison, console: Console) -> bool:
    """One row per policy, one column per measure of the overview; below it what the columns are called elsewhere.

    False, and nothing is printed, where the terminal is too narrow for it."""
    unlimited = console.options.update(width=1000)
    tables = (_policies(comparison), _policies(comparison, gap=1, width=_NARROW))
    fitting = (table for table in tables if console.measure(table, options=unlimited).maximum <= console.width)
    table = next(fitting, None)
    if table is None:
        return False
    console.print(table)
    console.print("\nThe columns, with their keys in summary.json:")
    legend = _table(*(Column(overflow="fold") for _ in range(3)))
    legend.show_header = False
    for key, title in OVERVIEW.items():
        legend.add_row(title.replace("\n", " "), key, MEASURE_BY_KEY[key].name)
    console.print(legend)
    return True


def _show_losses(comparison: Comparison, console: Console) -> None:
    """One row per policy that stopped a job; a line of text if none did."""
    rows = [
        (title, [_loss(key, intervals[key]) for key in LOSSES])
        for title, intervals in zip(comparison.titles, comparison.intervals, strict=True)
        if any(one is not None and one.mean for one in (intervals[key] for key in LOSSES))
    ]
    console.print()
    if not rows:
        console.print("No policy stopped a job, so no work was lost.")
        return
    table = _table(Column("lost by stops", overflow="fold"), *map(_right, LOSSES.values()))
    for title, cells in rows:
        table.add_row(title, *cells)
    console.print(table)
    if len(rows) < len(comparison.titles):
        console.print("The other policies stopped no job.")


def _loss(key: str, interval: Interval | None) -> str:
    """Amounts in unit-seconds as hours, without an interval: the whole of them is in summary.json."""
    if interval is None:
        return "-"
    measure = MEASURE_BY_KEY[key]
    if measure.unit is Unit.UNIT_SECONDS:
        return f"{interval.mean / 3600:,.1f}"
    return _text(measure, interval.mean)


def _policies(comparison: Comparison, *, gap: int = _GAP, width: int | None = None) -> Table:
    longest = max(len(word) for title in comparison.titles for word in title.split())
    policy = Column("policy", min_width=longest, max_width=width and longest)
    table = _table(policy, *(_right(title, width) for title in OVERVIEW.values()), gap=gap)
    columns = [_compact(comparison.cells(MEASURE_BY_KEY[key])) for key in OVERVIEW]
    for title, *cells in zip(comparison.titles, *columns, strict=True):
        table.add_row(title, *cells)
    return table


def _compact(cells: list[str]) -> list[str]:
    """Spans without a space, and the width of the interval on a line of its own."""
    return ["\n±".join(part.replace(" ", "") for part in text.split("±")) for text in cells]


def _show_measures(
    comparison: Comparison, sections: Sequence[tuple[str, tuple[Measure, ...]]], console: Console
) -> None:
    """One row per measure, one column per policy; several tables, one below the other, where one is too wide."""
    measures = [measure for _, found in sections for measure in found]
    widths = [
        max(len(text) for text in (*title.split(), *(cell(measure, intervals[measure.key]) for measure in measures)))
        for title, intervals in zip(comparison.titles, comparison.intervals, strict=True)
    ]
    keys = max(len(measure.key) for measure in measures)
    names = max(len(measure.name) for measure in measures)
    fixed = keys + (names if console.width >= _WIDE else min(names, _NAMES))
    for first, last in _blocks(widths, console.width - fixed - _GAP):
        part = Comparison(comparison.titles[first:last], comparison.intervals[first:last])
        table = _table(
            Column("measure", overflow="fold"),
            *map(_right, part.titles),
            Column("key in summary.json", overflow="fold"),
        )
        for section, found in sections:
            if section:
                table.add_row()
                table.add_row(Text(section, style="bold"))
            for measure in found:
                table.add_row(measure.name, *part.cells(measure), measure.key)
        if first:
            console.print()
        console.print(table)


def _blocks(widths: Sequence[int], space: int) -> list[tuple[int, int]]:
    """Neighbouring columns that fit into `space` together, as first and last index; at least one column each."""
    found = []
    first, used = 0, 0
    for index, width in enumerate(widths):
        if index > first and used + width + _GAP > space:
            found.append((first, index))
            first, used = index, 0
        used += width + _GAP
    return [*found, (first, len(widths))]


def _right(title: str, width: int | None = None) -> Column:
    """A column of numbers. Nothing in it is ever cut: a text that is too long goes on in the next line."""
    return Column(Text(title), justify="right", vertical="bottom", overflow="fold", max_width=width)


def _table(*columns: Column, gap: int = _GAP) -> Table:
    return Table(*columns, box=None, pad_edge=False, padding=(0, gap, 0, 0))


def _caption(seeds: Sequence[int]) -> str:
    if len(seeds) == 1:
        return f"seed {seeds[0]}"
    return f"means over seeds {', '.join(map(str, seeds))}; ± is half the width of the 95 % interval"


def _text(measure: Measure, value: float) -> str:
    match measure.unit:
        case Unit.SHARE:
            return f"{value:.1%}"
        case Unit.SPAN:
            return duration_from_seconds(value)
        case Unit.COUNT:
            return f"{value:,.0f}" if value == round(value) else f"{value:,.1f}"
        case Unit.NUMBER:
            return f"{value:,.2f}"
        case Unit.UNIT_SECONDS:
            return f"{value:,.0f}"
