"""How numbers and tables are written: Markdown, a dash where nothing was measured."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from textwrap import fill

from coda_sim.results.summary import Interval, interval_of

DASH = "-"


def markdown_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join(
        "| " + " | ".join(cells) + " |" if cells[0] != "---" else "|---" * len(cells) + "|" for cells in lines
    )


def paragraph(text: str) -> str:
    """Return prose wrapped as pages are."""
    return fill(text, width=100, break_long_words=False, break_on_hyphens=False)


def item(text: str) -> str:
    """Return one item of a list, wrapped."""
    return fill(
        text, width=100, initial_indent="- ", subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )


def command(text: str) -> str:
    """Return a command as a code block."""
    return f"    {text}"


def percent(value: float | None) -> str:
    """A share as percent."""
    return DASH if value is None else f"{100 * value:.1f}"


def seconds(value: float | None) -> str:
    """Whole seconds."""
    return DASH if value is None else f"{value:,.0f}"


def hours(value: float | None) -> str:
    """Seconds as hours."""
    return DASH if value is None else f"{value / 3600:,.1f}"


def number(value: float | None) -> str:
    """A number without a unit: two decimals, none from a hundred on."""
    if value is None:
        return DASH
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.2f}"


def count(value: float | None) -> str:
    """How many."""
    return DASH if value is None else f"{value:,.0f}"


def interval_text(values: Sequence[float | None], scale: float, decimals: int = 1) -> str:
    """Mean and half the width of its 95 % interval, each times `scale`."""
    found = interval_of(values) if values else None
    return DASH if found is None else _text(found, scale, decimals)


def _text(found: Interval, scale: float, decimals: int) -> str:
    middle = f"{scale * found.mean:,.{decimals}f}"
    return middle if found.high is None else f"{middle} ± {scale * (found.high - found.mean):,.{decimals}f}"


def difference_text(values: Sequence[float | None], others: Sequence[float | None], scale: float) -> str:
    """Mean difference of pairs (same seed) with its interval; `≈` marks one that is within noise."""
    pairs = [(one, other) for one, other in zip(values, others, strict=True) if one is not None and other is not None]
    found = interval_of([one - other for one, other in pairs]) if pairs else None
    if found is None:
        return DASH
    text = f"{scale * found.mean:+,.1f}"
    if found.low is None or found.high is None:
        return text
    return f"{text} ± {scale * (found.high - found.mean):,.1f}{' ≈' if found.low <= 0 <= found.high else ''}"


def source_line(words: str, seeds: Sequence[int], version: str) -> str:
    """The line under a table: command, seeds, version."""
    named = f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {seeds[0]} to {seeds[-1]}"
    return (
        paragraph(f"`{words}`; {named}; {version}.")
        if len(words) < 70
        else f"{command(words)}\n\n{paragraph(f'{named.capitalize()}; {version}.')}"
    )
