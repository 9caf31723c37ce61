"""A chart of columns for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

BLOCKS: Final = " ▁▂▃▄▅▆▇█"
ASCII: Final = " .:-=+*#@"
"""How much of a cell is full, in eighths; the second where the terminal knows ASCII alone."""

MARGIN: Final = 6


def bar_chart(values: Sequence[float], *, top: float, rows: int, ascii_only: bool = False) -> Iterator[str]:
    """Yield the lines of a chart from top to bottom: a column for each value, `rows` high at `top`, and a base line.

    A value above 0 has at least an eighth of a cell. Raises ValueError if `top` or `rows` is not above 0."""
    if top <= 0 or rows <= 0:
        raise ValueError(f"a chart of {rows} rows up to {top:g} shows nothing")
    signs, edge, corner, line = (ASCII, "|", "+", "-") if ascii_only else (BLOCKS, "┤", "└", "─")
    full = [0 if value <= 0 else min(8 * rows, max(1, round(value / top * 8 * rows))) for value in values]
    for row in reversed(range(rows)):
        label = f"{top:.0f}" if row == rows - 1 else ""
        cells = "".join(signs[max(0, min(8, eighths - 8 * row))] for eighths in full)
        yield f"{label:>{MARGIN}} {edge}{cells}".rstrip()
    yield f"{'0':>{MARGIN}} {corner}{line * len(full)}"


def hours_line(columns: int, hours: float, every: float) -> str:
    """Return the line below a chart: the hours from its beginning, each below its column."""
    text = " " * (MARGIN + 2)
    for step in range(int(hours / every) + 1):
        at = MARGIN + 2 + round(step * every / hours * columns)
        text = text.ljust(at) + f"{step * every:g} h"
    return text
