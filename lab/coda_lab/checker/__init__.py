"""The invariant checker: an independent referee. It reads only the API server, and uses no code of Coda's decisions.

    checker = Checker(client)
    async with checker.watching():
        ...                             # checker.breaches grows
    breaches = await check_once(client)

Read `report` (the invariants and the answer), `objects` and `view` (the cluster as seen), `invariants`, `capacity` and
`history` (the checks), `suspicion` and `suspicion_clock` (when a suspicion becomes a breach), then `checker`.
"""

from __future__ import annotations

from coda_lab.checker.checker import Checker, check_once
from coda_lab.checker.report import Breach, Counts, Invariant, Report

__all__ = ["Breach", "Checker", "Counts", "Invariant", "Report", "check_once"]
