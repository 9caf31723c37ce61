"""Tells whether this process runs the compiled modules or their Python source. No decision may depend on it."""

from __future__ import annotations

from coda.cycle import wait_reasons


def is_compiled() -> bool:
    """True if mypyc compiled the planner. For reports only: the decisions are the same."""
    return not (wait_reasons.__file__ or "").endswith(".py")
