"""The invariant checker: an independent referee that sees only the API server, and never Coda's own memory.

    checker = Checker(client)
    async with checker.watching():
        ...                             # checker.breaches grows
    breaches = await check_once(client)

What an invariant says is in `invariants`, `capacity` and `history`; when a suspicion becomes a breach, in `docket`.
"""

from __future__ import annotations

from coda_lab.checker.checker import Checker, check_once
from coda_lab.checker.report import Breach, Counts, Invariant, Report

__all__ = ["Breach", "Checker", "Counts", "Invariant", "Report", "check_once"]
