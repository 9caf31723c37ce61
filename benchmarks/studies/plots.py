"""The plots of the results, as small SVG files. Equal values give equal bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from coda_sim.results.summary import interval_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE: Final = "#1f6feb"
GREY: Final = "#8b949e"
PALE: Final = "#d0d7de"
LINES: Final = (BLUE, GREY, "#bf8700")
CUT: Final = 3.0
_GRID: Final[dict[str, Any]] = {"alpha": 0.3, "linewidth": 0.5}


@dataclass(frozen=True, slots=True, kw_only=True)
class Bars:
    """One panel of bars: a value for each row, None where nothing was measured."""

    title: str
    values: Sequence[float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of a panel: for each point the values of its seeds."""

    title: str
    values: Sequence[Sequence[float | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One panel of lines over the same points."""

    title: str
    lines: Sequence[Line]
    scale: float = 1.0
    is_log: bool = False


def draw_bars(
    path: Path, rows: Sequence[str], panels: Sequence[Bars], *, marked: str, pale: Sequence[str] = ()
) -> None:
    """Draw horizontal bars, one panel beside the other; the row `marked` stands out, `pale` ones are bounds.

    A bar of more than CUT medians of its panel is cut there, and says its value."""
    figure, axes = _figure(len(panels), width=2.6 * len(panels) + 1.0, height=0.6 + 0.19 * len(rows))
    colours = [BLUE if row == marked else PALE if row in pale else GREY for row in rows]
    for number, (axis, panel) in enumerate(zip(axes, panels, strict=True)):
        values = [value or 0.0 for value in panel.values]
        most = CUT * median(values)
        axis.barh(range(len(rows)), [min(value, most or value) for value in values], 0.7, color=colours)
        for row, value in enumerate(values):
            if value > most > 0:
                axis.text(most, row, f"{value:,.0f} ", ha="right", va="center", fontsize=7, color="white")
        axis.set_yticks(range(len(rows)), rows if number == 0 else [""] * len(rows))
        axis.invert_yaxis()
        axis.set_title(panel.title, fontsize=8)
        axis.xaxis.set_major_locator(_few_ticks())
        axis.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axis.grid(axis="x", **_GRID)
        axis.set_axisbelow(True)
    _save(figure, path)


def draw_lines(path: Path, points: Sequence[str], panels: Sequence[Panel], *, heading: str) -> None:
    """Draw lines over named points, at equal distances, with the 95 % interval over seeds as a bar."""
    figure, axes = _figure(len(panels), width=3.2 * len(panels), height=2.5)
    for axis, panel in zip(axes, panels, strict=True):
        for number, line in enumerate(panel.lines):
            _draw_line(axis, line, panel.scale, LINES[number % len(LINES)], 0.06 * (number - 0.5))
        axis.set_xticks(range(len(points)), points, rotation=25 if max(map(len, points)) > 6 else 0, ha="center")
        axis.set_title(panel.title, fontsize=8)
        axis.set_xlabel(heading)
        if panel.is_log:
            axis.set_yscale("symlog", linthresh=10)
            axis.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        else:
            axis.set_ylim(bottom=0)
        axis.grid(**_GRID)
    axes[0].legend(frameon=False, fontsize=7)
    _save(figure, path)


def _draw_line(axis: Axes, line: Line, scale: float, colour: str, aside: float) -> None:
    found = [(place, one) for place, values in enumerate(line.values) if values and (one := interval_of(values))]
    places = [place + aside for place, _ in found]
    means = [scale * one.mean for _, one in found]
    halves = [0.0 if one.high is None else scale * (one.high - one.mean) for _, one in found]
    axis.errorbar(
        places, means, halves, color=colour, marker="o", markersize=3, linewidth=1, capsize=2, label=line.title
    )


def _few_ticks() -> Any:
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator(3)


def _figure(panels: int, *, width: float, height: float) -> tuple[Figure, list[Axes]]:
    import matplotlib as mpl  # takes half a second, which no test of the harness should wait for
    from matplotlib.figure import Figure

    mpl.rcParams.update(
        {
            "svg.hashsalt": "coda",
            "svg.fonttype": "none",
            "font.size": 7,
            "axes.spines.top": False,
            "axes.spines.right": False,
        }
    )
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, list(figure.subplots(1, panels, squeeze=False).flat)


def _save(figure: Figure, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None})
