"""What a dashboard is made of, and the expressions that most panels need. Values only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

WINDOW: Final = "$__rate_interval"
"""Grafana puts in at least four scrapes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """One value as it is now. From `bad_from` on it is red, and below `good_from`."""

    title: str
    says: str
    expr: str
    unit: str = "short"
    bad_from: float | None = None
    good_from: float | None = None

    def is_bad(self, value: float) -> bool:
        """True if it is shown in red."""
        is_low = self.good_from is not None and value < self.good_from
        return is_low or (self.bad_from is not None and value >= self.bad_from)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Lines over time: by legend, the expression. A stacked one shows parts of a whole."""

    title: str
    says: str
    lines: Mapping[str, str]
    unit: str = "short"
    stacked: bool = False
    most: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Panels under one heading."""

    title: str
    panels: tuple[Number | Chart, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What a reader may choose: the values of a label of a metric. `pattern` takes a part of each value."""

    name: str
    values_of: str
    pattern: str = ""
    many: bool = True  # several at once, and all


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """A dashboard. `uid` is a part of its address, and the name of its file."""

    uid: str
    title: str
    says: str
    rows: tuple[Row, ...]
    choices: tuple[Choice, ...] = ()

    @property
    def expressions(self) -> tuple[str, ...]:
        """Every expression, in the order of the panels."""
        panels = [panel for row in self.rows for panel in row.panels]
        return tuple(
            expr for panel in panels for expr in ((panel.expr,) if isinstance(panel, Number) else panel.lines.values())
        )


def quantile(share: float, histogram: str, *by: str, where: str = "") -> str:
    """The value that this share of the observations do not exceed."""
    labels = ", ".join(("le", *by))
    chosen = f"{{{where}}}" if where else ""
    return f"histogram_quantile({share:g}, sum by ({labels}) (rate({histogram}_bucket{chosen}[{WINDOW}])))"


def quantiles(histogram: str) -> dict[str, str]:
    """The lines that show a delay: half of all, and all but one in a hundred."""
    return {"p50": quantile(0.5, histogram), "p99": quantile(0.99, histogram)}


def per_second(counter: str, *by: str) -> str:
    """How often it counts, in sum."""
    return f"sum{_by(by)} (rate({counter}[{WINDOW}]))"


def most(gauge: str, *by: str) -> str:
    """A gauge that all replicas show, or the leader alone."""
    return f"max{_by(by)} ({gauge})"


def _by(labels: tuple[str, ...]) -> str:
    return f" by ({', '.join(labels)})" if labels else ""
