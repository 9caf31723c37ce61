"""Whether the history has every job of a run that ended: once, whatever happened to the operator and its database.

A restore of etcd takes back what the history keeps: the job ends again, in another attempt. Both records are true.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sqlalchemy.engine import URL

from coda_lab.experiments.load.account import Account
from coda_lab.experiments.load.plans import End
from coda_operator.history.store import Store

EVER_S: Final = 2e10
RECORDED: Final = (End.SUCCEEDED, End.FAILED)
_LOOK_S: Final = 0.5
_TRY_S: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """What the history has at the end. `missing`: jobs that ended; `twice`: those with more records than ends."""

    jobs: int
    missing: tuple[str, ...]
    twice: tuple[str, ...]

    def problems(self) -> tuple[str, ...]:
        """A sentence for each problem."""
        found = [f"job {name} ended, and the history has no record of it" for name in self.missing]
        return (*found, *(f"the history has more records of job {name} than it has ends" for name in self.twice))

    def as_json(self) -> dict[str, Any]:
        """For the report."""
        return {"jobs": self.jobs, "missing": list(self.missing), "twice": list(self.twice)}


async def recorded(file: Path, account: Account, *, limit_s: float) -> Recorded:
    """Wait until every job that ended is recorded, for `limit_s` at most, and say what the history has."""
    until_s = time.monotonic() + limit_s
    while True:
        found = compare(await asyncio.to_thread(_names, file), account)
        if not found.missing or time.monotonic() >= until_s:
            return found
        await asyncio.sleep(_LOOK_S)


def compare(names: Iterable[str], account: Account) -> Recorded:
    """Compare the names in the history with the jobs of the run. Jobs of others are nobody's business."""
    counts = Counter(name for name in names if name in account.jobs)
    ended = [name for name, entry in account.jobs.items() if entry.end in RECORDED]
    return Recorded(
        jobs=len(counts),
        missing=tuple(name for name in ended if not counts[name]),
        twice=tuple(sorted(name for name, count in counts.items() if count > 1 + account.jobs[name].restores)),
    )


@asynccontextmanager
async def locked(file: Path) -> AsyncIterator[None]:
    """While the block lasts nobody can write to the database."""
    connection = await asyncio.to_thread(_lock, file)
    with closing(connection):
        yield
        connection.rollback()


def _lock(file: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(file, timeout=_TRY_S, isolation_level=None, check_same_thread=False)
    connection.execute("BEGIN EXCLUSIVE")
    return connection


def _names(file: Path) -> list[str]:
    store = Store(URL.create("sqlite", database=str(file)))
    try:
        return [job.name for job in store.jobs(0.0, EVER_S)]
    finally:
        store.close()
