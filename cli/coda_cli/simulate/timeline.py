"""A timeline of GPU jobs on nodes, from the records of a run (`jobs.csv.gz`), as a drawing of SVG."""

from __future__ import annotations

import csv
import gzip
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from typing import Final

from coda_sim.durations import duration_from_seconds

MOST_NODES: Final = 32
MOST_BARS: Final = 1500
"""Of one drawing: a page with more is slow to open, and its bars are thinner than a pixel."""

WIDTH: Final = 1060.0  # of all bars together, in pixels
LEFT: Final = 110.0  # for the names of nodes
LANE: Final = 5.0  # the height of one GPU
GAP: Final = 6.0  # between two nodes


@dataclass(frozen=True, slots=True)
class Bar:
    """A job on a node, for as long as it held the same GPUs there. Times are seconds of the run."""

    job: str
    user: str
    node: str
    gpus: int
    cores: int
    submit_s: float
    start_s: float
    end_s: float
    finished: bool


@dataclass(frozen=True, slots=True)
class View:
    """What part of a run is drawn; two runs are compared over the same one."""

    from_s: float
    to_s: float
    nodes: tuple[str, ...]


def read_bars(records: Path) -> list[Bar]:
    """Return the bars of a run's records, by start. Pieces that only differ in cores are one bar."""
    open_by_place: dict[tuple[str, str], Bar] = {}
    found: list[Bar] = []
    with gzip.open(records, "rt", encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if not row["piece"] or not int(row["gpus"]):
                continue
            bar = _bar(row)
            place = (bar.job, bar.node)
            before = open_by_place.get(place)
            if before is not None and before.end_s == bar.start_s and before.gpus == bar.gpus:
                open_by_place[place] = replace(bar, start_s=before.start_s)
                continue
            if before is not None:
                found.append(before)
            open_by_place[place] = bar
    return sorted([*found, *open_by_place.values()], key=lambda bar: (bar.start_s, bar.node, bar.job))


def _bar(row: Mapping[str, str]) -> Bar:
    return Bar(
        job=row["job_id"],
        user=row["user"],
        node=row["node"],
        gpus=int(row["gpus"]),
        cores=int(row["cores"]),
        submit_s=float(row["submit_s"]),
        start_s=float(row["start_s"]),
        end_s=float(row["end_s"]),
        finished=row["finished"] == "1",
    )


def view_of(runs: Sequence[Sequence[Bar]]) -> View | None:
    """Return the part to draw of all runs: the busiest nodes of the first, and as much time as gives `MOST_BARS` bars.

    A first run that is too long is shown around the middle of its bars. None if it has no bar."""
    bars = runs[0] if runs else ()
    held: dict[str, float] = defaultdict(float)
    for bar in bars:
        held[bar.node] += bar.gpus * (bar.end_s - bar.start_s)
    nodes = tuple(sorted(sorted(held, key=lambda name: (-held[name], name))[:MOST_NODES]))
    shown = [bar for bar in bars if bar.node in set(nodes)]
    if not shown:
        return None
    if len(shown) <= MOST_BARS:
        everything = [bar for run in runs for bar in run]
        return View(min(bar.start_s for bar in everything), max(bar.end_s for bar in everything), nodes)
    first = (len(shown) - MOST_BARS) // 2
    return View(shown[first].start_s, shown[first + MOST_BARS - 1].start_s, nodes)


def drawn(bars: Iterable[Bar], view: View, title: str) -> str:
    """Return the drawing of one run. A pointer over a bar shows its job; a colour is a user's."""
    by_node: dict[str, list[Bar]] = defaultdict(list)
    for bar in bars:
        if bar.node in view.nodes and bar.end_s > view.from_s and bar.start_s < view.to_s:
            by_node[bar.node].append(bar)
    parts, top = [], 6.0
    for node in view.nodes:
        lanes = [*_lanes(by_node[node])]
        height = LANE * max([8, *(lane + gpus for _, lane, gpus in lanes)])
        parts.append(f'<text x="{LEFT - 8:g}" y="{top + height / 2 + 4:g}" text-anchor="end">{escape(node)}</text>')
        parts.append(f'<rect class="node" x="{LEFT:g}" y="{top:g}" width="{WIDTH:g}" height="{height:g}"/>')
        parts += [_rect(bar, view, top + lane * LANE, gpus) for bar, lane, gpus in lanes]
        top += height + GAP
    marks = "".join(_mark(view, step, top) for step in range(6))
    return (
        f'<svg class="timeline" viewBox="0 0 {LEFT + WIDTH + 30:g} {top + 24:g}" role="img">'
        f"<title>{escape(title)}</title>{''.join(parts)}{marks}</svg>"
    )


def _lanes(bars: Sequence[Bar]) -> Iterator[tuple[Bar, int, int]]:
    """Yield each bar with its first GPU and their number: the lowest that are free, since no record says which.

    A bar comes several times where these are not beside each other."""
    busy_until: list[float] = []
    for bar in sorted(bars, key=lambda bar: (bar.start_s, -bar.gpus, bar.job)):
        free = [lane for lane, until_s in enumerate(busy_until) if until_s <= bar.start_s][: bar.gpus]
        free += range(len(busy_until), len(busy_until) + bar.gpus - len(free))
        busy_until += [0.0] * (max(free) + 1 - len(busy_until))
        first = free[0]
        for lane, following in zip(free, [*free[1:], -1], strict=True):
            busy_until[lane] = bar.end_s
            if following != lane + 1:
                yield bar, first, lane + 1 - first
                first = following


def _x(view: View, at_s: float) -> float:
    length_s = max(view.to_s - view.from_s, 1e-9)
    return LEFT + WIDTH * (min(max(at_s, view.from_s), view.to_s) - view.from_s) / length_s


def _rect(bar: Bar, view: View, y: float, gpus: int) -> str:
    left = _x(view, bar.start_s)
    width = max(0.7, _x(view, bar.end_s) - left)
    hue = zlib.crc32(bar.user.encode()) % 360
    said = (
        f"{bar.job} of {bar.user or 'nobody'}: {bar.gpus} GPUs and {bar.cores} cores on {bar.node}; submitted at "
        f"{duration_from_seconds(bar.submit_s)}, here from {duration_from_seconds(bar.start_s)} to "
        f"{duration_from_seconds(bar.end_s)}{'' if bar.finished else '; it did not finish'}"
    )
    return (
        f'<rect class="job" x="{left:.1f}" y="{y:g}" width="{width:.1f}" height="{gpus * LANE - 0.5:g}" '
        f'style="--hue:{hue}"><title>{escape(said)}</title></rect>'
    )


def _mark(view: View, step: int, y: float) -> str:
    at_s = view.from_s + (view.to_s - view.from_s) * step / 5
    x = _x(view, at_s)
    return (
        f'<line x1="{x:.1f}" y1="2" x2="{x:.1f}" y2="{y:g}"/>'
        f'<text x="{x:.1f}" y="{y + 14:g}" text-anchor="middle">{duration_from_seconds(round(at_s))}</text>'
    )
