"""The page with every dashboard's picture, and every expression of its panels with the samples that it found."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from deploy.dashboards.boards import Board, Number

_INTRO: Final = """\
# Dashboards

<!-- Written by `make dashboard-pictures`. -->

Every panel of every dashboard (`installing.md` says how Grafana gets them), with the data of
`coda demo` beside jobs of six seconds, and of the accidents that follow it: a refused eviction, a
rank that fails, trials, a tenant that takes GPUs back, connections without a certificate, refused
writes, a planner process that dies, a cordoned node, the next leader, and an agent that only
observes.

The window of rates is half a minute here. A replica sees a change a moment after another one, so
states may add up to more than there is, for one scrape.

The tables have every expression, and how many samples a real Prometheus had for it in that time,
one every two seconds in each series.
"""


def page_of(boards: Sequence[Board], samples: Mapping[str, int]) -> str:
    """Return the page in Markdown. `samples`: by expression, as its board has it."""
    return _INTRO + "".join(f"\n{line}\n" for board in boards for line in _parts_of(board, samples))


def _parts_of(board: Board, samples: Mapping[str, int]) -> Iterator[str]:
    yield f"## {board.title.removeprefix('Coda / ')}"
    yield f"![{board.title}](pictures/dashboards/{board.uid}.svg)"
    lines = [f"| {panel} | `{_cell(expr)}` | {samples[expr]} |" for panel, expr in _asked(board)]
    yield "\n".join(["| panel | asks | samples |", "|---|---|---:|", *lines])


def _asked(board: Board) -> Iterator[tuple[str, str]]:
    for row in board.rows:
        for panel in row.panels:
            if isinstance(panel, Number):
                yield panel.title, panel.expr
            elif len(panel.lines) == 1:
                yield panel.title, next(iter(panel.lines.values()))
            else:
                yield from ((f"{panel.title}: {legend}", expr) for legend, expr in panel.lines.items())


def _cell(expr: str) -> str:
    return expr.replace("|", "\\|")
