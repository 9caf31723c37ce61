"""Whose priority counts. PriorityClasses are cluster-wide: any user may name any of them in a pod template."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

HIGHEST_OF_USERS: Final = 1_000_000_000
"""Kubernetes refuses a PriorityClass above this, but for its own `system-` classes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PriorityRule:
    """A priority above `limit` counts only in these namespaces; elsewhere it counts as none."""

    limit: int = HIGHEST_OF_USERS
    namespaces: frozenset[str] = frozenset()

    def priority(self, namespace: str, asked: int) -> int:
        """Return the priority that counts for a job of this namespace."""
        return asked if asked <= self.limit or namespace in self.namespaces else 0
