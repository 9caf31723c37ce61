"""Which nodes have throttles in force whose agent tends them no more. What must not live here: undoing them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

LEASE_S = 180.0
"""Seconds for which what an agent said of its throttles holds: three of the minutes in which it says so again. Our
choice: a restart or an update of the agent takes less, and it undoes what it left by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tended:
    """What a node's agent said last. `renewed_s`: when."""

    node: str
    throttles: int
    renewed_s: float


def untended(nodes: Collection[Tended], now_s: float) -> tuple[str, ...]:
    """The nodes with throttles of which nothing was heard for `LEASE_S`, by name. A time in the future is believed."""
    return tuple(sorted(one.node for one in nodes if one.throttles > 0 and now_s - one.renewed_s > LEASE_S))
