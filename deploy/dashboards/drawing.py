"""Draws a dashboard as a picture, from what Prometheus answered: for docs/, where there is no Grafana."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from deploy.dashboards.boards import Board, Chart, Number

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLUMNS: Final = 3  # as on the dashboard
_MOST_LEGENDS: Final = 8
_UNITS: Final[Mapping[str, Callable[[float], str]]] = {
    "percentunit": lambda value: f"{100 * value:.3g} %",
    "s": lambda value: f"{value:.3g} s" if value >= 1 or not value else f"{1000 * value:.3g} ms",
    "bytes": lambda value: f"{value / 2**30:.3g} GiB" if value >= 2**30 else f"{value / 2**20:.3g} MiB",
    "Bps": lambda value: f"{value / 1e9:.3g} GB/s",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One line: its labels, and its values by time, in seconds since the picture begins."""

    labels: Mapping[str, str]
    points: Sequence[tuple[float, float]]


def draw(board: Board, series_by_expression: Mapping[str, Sequence[Series]], path: Path) -> None:
    """Write the picture of all panels, in their order, as SVG; a number is the last value of its first line.

    A panel whose expressions have no sample says so."""
    import matplotlib as mpl  # takes half a second, which no test of the dashboards should wait for
    from matplotlib.figure import Figure

    mpl.rcParams.update({"svg.hashsalt": "coda", "svg.fonttype": "none", "font.size": 7})
    lines = [line for row in board.rows for line in _lines_of(row.panels)]
    heights = [0.55 if isinstance(line[0], Number) else 1.9 for line in lines]
    figure = Figure(figsize=(10, sum(heights) + 0.5), layout="constrained")
    figure.suptitle(board.title, fontsize=10)
    grid = figure.add_gridspec(len(lines), 12, height_ratios=heights)
    for number, line in enumerate(lines):
        width = 12 // (6 if isinstance(line[0], Number) else COLUMNS)
        for place, panel in enumerate(line):
            axes = figure.add_subplot(grid[number, place * width : (place + 1) * width])
            if isinstance(panel, Number):
                _draw_number(axes, panel, series_by_expression[panel.expr])
            else:
                _draw_chart(axes, panel, series_by_expression)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None})


def _lines_of(panels: Sequence[Number | Chart]) -> list[list[Number | Chart]]:
    """Panels beside each other: numbers stand six in a line, charts three."""
    lines: list[list[Number | Chart]] = []
    for panel in panels:
        most = 6 if isinstance(panel, Number) else COLUMNS
        if not lines or type(lines[-1][0]) is not type(panel) or len(lines[-1]) == most:
            lines.append([])
        lines[-1].append(panel)
    return lines


def _draw_number(axes: Axes, number: Number, found: Sequence[Series]) -> None:
    axes.set_axis_off()
    points = found[0].points if found else ()
    value = words(points[-1][1], number.unit) if points else "no data"
    is_bad = bool(points) and number.is_bad(points[-1][1])
    axes.text(0.5, 0.45, value, ha="center", va="center", fontsize=12, color="#cf222e" if is_bad else "#1a7f37")
    axes.set_title("\n".join(textwrap.wrap(number.title, 24)), fontsize=7)


def _draw_chart(axes: Axes, chart: Chart, series_by_expression: Mapping[str, Sequence[Series]]) -> None:
    named = [
        (legend_of(legend, one.labels), one)
        for legend, expr in chart.lines.items()
        for one in series_by_expression[expr]
        if one.points
    ]
    named.sort(key=lambda item: item[0])
    if chart.stacked and named:
        times = sorted({at_s for _, one in named for at_s, _ in one.points})
        rows = [[dict(one.points).get(at_s, 0.0) for at_s in times] for _, one in named]
        axes.stackplot(times, *rows, labels=[name for name, _ in named], alpha=0.6, linewidth=0)
    for name, one in () if chart.stacked else named:
        axes.plot(*zip(*one.points, strict=True), label=name, linewidth=1)
    axes.set_title(chart.title, fontsize=8)
    axes.yaxis.set_major_formatter(lambda value, _: words(value, chart.unit))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0f} s")
    axes.grid(alpha=0.3, linewidth=0.5)
    axes.set_ylim(bottom=0, top=chart.most)
    if named:
        handles, labels = axes.get_legend_handles_labels()
        axes.legend(handles[:_MOST_LEGENDS], labels[:_MOST_LEGENDS], fontsize=5, ncols=2, loc="best", framealpha=0.6)
    else:
        axes.text(0.5, 0.5, "nothing of this happened", ha="center", va="center", transform=axes.transAxes)


def legend_of(template: str, labels: Mapping[str, str]) -> str:
    """A legend with the values of its labels in it."""
    return re.sub(r"\{\{(\w+)\}\}", lambda match: labels.get(match[1], ""), template)


def words(value: float, unit: str) -> str:
    """A value with its unit, in three digits."""
    return _UNITS[unit](value) if unit in _UNITS else f"{value:,.4g}"
