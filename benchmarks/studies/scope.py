"""What one call of `make results` covers, and what tables find of their cells."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from studies.cells import Cell, Measures


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """`traces`: the folder of the traces; None: tables of real traces are left out. `quick`: short slices, one seed.

    `seeds`: of tables with intervals; the month has twice as many. `plots`: the folder for plots; `version`: of the
    code, for the line under each table."""

    traces: Path | None
    quick: bool
    seeds: int
    plots: Path
    version: str

    @property
    def usual_seeds(self) -> tuple[int, ...]:
        """The seeds of tables with intervals. New ones: 1 to 3 are those that rules were chosen on."""
        return (11, 12) if self.quick else tuple(range(11, 11 + self.seeds))

    @property
    def month_seeds(self) -> tuple[int, ...]:
        """The seeds of the month's table."""
        return (11, 12) if self.quick else tuple(range(11, 11 + 2 * self.seeds))


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What cells measured, by name; a cell that failed is absent."""

    measures_by_name: Mapping[str, Measures]

    def value(self, cell: Cell, key: str) -> float | None:
        """Return a measure of a cell; None if it failed or measured nothing."""
        return self.measures_by_name.get(cell.name, {}).get(key)

    def values(self, cells: Sequence[Cell], key: str) -> list[float | None]:
        """Return a measure of each cell."""
        return [self.value(cell, key) for cell in cells]

    def has(self, cell: Cell) -> bool:
        """True if the cell did not fail."""
        return cell.name in self.measures_by_name


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A part of the page. `cells` has different names; `text` is Markdown, and draws its plots on the way."""

    name: str
    cells: Callable[[Scope], tuple[Cell, ...]]
    text: Callable[[Scope, Found], str]
    needs_traces: bool = False
