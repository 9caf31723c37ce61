"""The CPU jobs that ended, in the store: lines of pods that are alike, each pod counted once.

Which pods are counted is kept as long as somebody may tell of them again: while they are in the API server, and a
day. So the table of lines grows with owners and hours, and the table of counted pods with the pods of a day.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final

from sqlalchemy import Connection, Engine, delete, func, inspect, literal, select, tuple_

from coda.history.cpu_jobs import LACKS_CORES, CpuEnding, CpuLine, CpuUse, FinishedCpuJob, cpu_lines
from coda_operator.history.engine import writing
from coda_operator.history.tables import COUNTED_CPU_JOBS, FINISHED_CPU_JOB_WAITS, FINISHED_CPU_JOBS

BATCH: Final = 500
"""Rows that one question has in memory, or one statement names: SQLite takes 32 766 values. Our choice."""

_LINES, _WAITS, _COUNTED = FINISHED_CPU_JOBS, FINISHED_CPU_JOB_WAITS, COUNTED_CPU_JOBS
_SUMS: Final = ("jobs", "wait_s", "held_s", "run_s", "borrowed_jobs", "borrowed_s", "reclaimed")
_MOST: Final = ("longest_wait_s", "ended_s")
_ENDINGS: Final = frozenset(ending.value for ending in CpuEnding)
_SIMPLE: Final = tuple(column.name for column in _LINES.columns if column.name not in ("line", "ending"))


class CpuJobTable:
    """Part of a `Store`: like its methods these may wait for the database, and raise Outage."""

    def __init__(
        self, engine: Engine, insert: Callable[[Any], Any], errors: Callable[[], AbstractContextManager[None]]
    ) -> None:
        self._engine = engine
        self._writing = writing(engine)
        self._insert = insert
        self._errors = errors

    def write(self, jobs: Sequence[FinishedCpuJob], now_s: float) -> int:
        """Count the jobs that are not counted yet, all or none; return how many these were.

        Raises Outage, or RecordRefused if one of them cannot be written. `BATCH` jobs at most."""
        if not jobs:
            return 0
        rows = [{"uid": uid, "counted_s": now_s} for uid in sorted({job.uid for job in jobs})]
        count = self._insert(_COUNTED).values(rows).on_conflict_do_nothing().returning(_COUNTED.c.uid)
        with self._errors(), self._writing.begin() as connection:
            new = {uid for (uid,) in connection.execute(count)}
            first = {job.uid: job for job in reversed(jobs) if job.uid in new}
            lines = cpu_lines(first.values())
            if lines:
                self._add_lines(connection, lines)
        return len(new)

    def _add_lines(self, connection: Connection, lines: Sequence[CpuLine]) -> None:
        """In the order of keys: two processes at once wait for each other, and never in a circle."""
        add: Any = self._insert(_LINES)
        most = func.max if self._engine.dialect.name == "sqlite" else func.greatest
        values = {name: _LINES.c[name] + add.excluded[name] for name in _SUMS}
        values |= {name: most(_LINES.c[name], add.excluded[name]) for name in _MOST}
        connection.execute(add.on_conflict_do_update(index_elements=["line"], set_=values), [*map(_row, lines)])
        waits = [
            {"line": line.key, "cause": cause, "seconds": seconds} for line in lines for cause, seconds in line.waits
        ]
        if waits:
            add = self._insert(_WAITS)
            sums = {"seconds": _WAITS.c.seconds + add.excluded.seconds}
            connection.execute(add.on_conflict_do_update(index_elements=["line", "cause"], set_=sums), waits)

    def lines(self, from_s: float, to_s: float) -> Iterator[CpuLine]:
        """Yield the lines whose last job ended in [from_s, to_s), by end, with `BATCH` of them in memory.

        A store that no operator of this version has opened has none."""
        order = (_LINES.c.ended_s, _LINES.c.line)
        left = (_LINES.c.ended_s >= from_s) & (_LINES.c.ended_s < to_s)
        while True:
            with self._errors(), self._engine.connect() as connection:
                if not inspect(connection).has_table(_LINES.name):
                    return
                rows = [
                    row._asdict()
                    for row in connection.execute(select(_LINES).where(left).order_by(*order).limit(BATCH))
                ]
                waits_by_line = _waits_of(rows, connection)
            for row in rows:
                yield _line(row, waits_by_line.get(row["line"], ()))
            if len(rows) < BATCH:
                return
            ended_s, key = rows[-1]["ended_s"], rows[-1]["line"]
            beyond = tuple_(*order) > tuple_(literal(ended_s), literal(key))
            left = (_LINES.c.ended_s >= ended_s) & (_LINES.c.ended_s < to_s) & beyond

    def use(self, from_s: float, to_s: float) -> CpuUse:
        """Return what the jobs of the lines of `lines` used. The database adds it up."""
        within = (_LINES.c.ended_s >= from_s) & (_LINES.c.ended_s < to_s)
        cores = _LINES.c.cpu_m / 1000.0
        held = func.sum(_LINES.c.held_s * cores)
        sums = select(func.sum(_LINES.c.jobs), held, func.sum(_LINES.c.borrowed_s * cores)).where(within)
        for_cores = within & _WAITS.c.cause.in_(sorted(LACKS_CORES))
        lacked = select(func.sum(_WAITS.c.seconds * cores))
        waited = lacked.join_from(_WAITS, _LINES, _WAITS.c.line == _LINES.c.line).where(for_cores)
        with self._errors(), self._engine.connect() as connection:
            jobs, core_s, borrowed_core_s = connection.execute(sums).one()
            lacked_core_s = connection.execute(waited).scalar_one()
        return CpuUse(
            jobs=int(jobs or 0),
            core_s=float(core_s or 0.0),
            borrowed_core_s=float(borrowed_core_s or 0.0),
            lacked_core_s=float(lacked_core_s or 0.0),
        )

    def forget_counted(self, before_s: float, existing: Collection[str]) -> int:
        """Forget the pods that were counted before, and do not exist; return how many. O(pods counted before)."""
        order, forgotten = (_COUNTED.c.counted_s, _COUNTED.c.uid), 0
        left = _COUNTED.c.counted_s < before_s
        while True:
            with self._errors(), self._writing.begin() as connection:
                rows = connection.execute(select(*order).where(left).order_by(*order).limit(BATCH)).all()
                gone = [uid for _, uid in rows if uid not in existing]
                if gone:
                    connection.execute(delete(_COUNTED).where(_COUNTED.c.uid.in_(gone)))
                forgotten += len(gone)
            if len(rows) < BATCH:
                return forgotten
            beyond = tuple_(*order) > tuple_(literal(rows[-1].counted_s), literal(rows[-1].uid))
            left = (_COUNTED.c.counted_s < before_s) & beyond

    def delete_before(self, ended_s: float) -> int:
        """Delete the lines whose last job ended before; return how many.

        `BATCH` of them in a transaction: after a shorter retention millions go, and a statement has its limit."""
        old, deleted = _LINES.c.ended_s < ended_s, 0
        while True:
            with self._errors(), self._writing.begin() as connection:
                lines = connection.scalars(select(_LINES.c.line).where(old).limit(BATCH)).all()
                if lines:
                    gone = connection.execute(delete(_LINES).where(_LINES.c.line.in_(lines) & old))
                    deleted += gone.rowcount
            if len(lines) < BATCH:
                return deleted


def _row(line: CpuLine) -> dict[str, Any]:
    return {name: getattr(line, name) for name in _SIMPLE} | {"line": line.key, "ending": line.ending.value}


def _line(row: dict[str, Any], waits: Sequence[tuple[str, float]]) -> CpuLine:
    fields = {name: row[name] for name in _SIMPLE}
    ending = CpuEnding(row["ending"]) if row["ending"] in _ENDINGS else CpuEnding.FAILED  # a newer operator's word
    return CpuLine(**fields, ending=ending, waits=tuple(waits))


def _waits_of(rows: Sequence[dict[str, Any]], connection: Connection) -> dict[str, list[tuple[str, float]]]:
    """Return cause and seconds of each wait, by cause, of these lines."""
    keys = [row["line"] for row in rows]
    waits_by_line: dict[str, list[tuple[str, float]]] = {}
    for wait in connection.execute(select(_WAITS).where(_WAITS.c.line.in_(keys)).order_by(_WAITS.c.cause)):
        waits_by_line.setdefault(wait.line, []).append((wait.cause, wait.seconds))
    return waits_by_line
