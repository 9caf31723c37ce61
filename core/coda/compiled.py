"""Whether this process runs the compiled modules or their pure Python source. Nothing may decide by it."""

from __future__ import annotations

from coda.cycle import decide


def is_compiled() -> bool:
    """True where the planner was compiled by mypyc, for reports: what is decided is the same."""
    return not (decide.__file__ or "").endswith(".py")
