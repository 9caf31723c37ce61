"""The database of finished jobs: SQLite (one file) or PostgreSQL, by SQLAlchemy Core.

Every method may wait for the database, so none is called on an event loop. A record is written once: one with the same
uid and attempt is there already, and stays as it is. Errors name the database without its password.
"""

from __future__ import annotations

import fcntl
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from sys import intern
from typing import Any, Final

from sqlalchemy import (
    Column,
    Connection,
    delete,
    func,
    inspect,
    literal,
    literal_column,
    select,
    text,
    tuple_,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import URL
from sqlalchemy.exc import DataError, IntegrityError, SQLAlchemyError

from coda.errors import InvalidInput, Outage
from coda.history import FinishedJob, FinishedRun
from coda.history.cpu_jobs import CpuUse
from coda.history.record import Ending, worked_s
from coda.history.run_groups import PARTS
from coda_operator.history.address import UrlFile, shown
from coda_operator.history.cpu_job_table import CpuJobTable
from coda_operator.history.engine import engine_of, lacks_space, writing
from coda_operator.history.schema import first_line, upgrade
from coda_operator.history.tables import FINISHED_JOB_WAITS, FINISHED_JOBS
from coda_operator.history.writer import RecordRefused, StoreFull

LOCK_ID: Final = 0x636F6461  # of PostgreSQL's advisory lock while the schema changes: "coda"
BATCH: Final = 500
"""Rows that a question has in memory at a time, or a statement names: a busy week has 100 000, and SQLite before 3.32
takes 999 values. Our choice."""
MOST_OF_KIND: Final = 400
"""Runs of one owner, category and number of GPUs that are taught: as many as `RunTimes` counts before older ones count
half. Our choice: without it a burst of one kind would be all that a planner learns when it begins."""
TAUGHT_S: Final = 90 * 86400.0
"""Runs that ended longer before the newest one are not taught: people's work changes. The span that start points of
tuning have, too. Our choice."""
OLD_OF_KIND: Final = PARTS
"""The last runs of each kind that are taught however old they are. Without them the first run after a quiet summer, or
one of a clock that was ahead, would be all that is known. Fewer say nothing of a kind's spread. Our choice."""
MOST_READ: Final = 200_000
"""Runs that are looked through for those that are taught: half a second of a core, two busy weeks. Our choice."""
MOST_DELETED: Final = 50_000
"""Records that go in one call: it takes seconds, and millions may be old at once. Our choice."""

_JOBS, _WAITS = FINISHED_JOBS, FINISHED_JOB_WAITS
_OWNER: Final = func.coalesce(func.nullif(_JOBS.c.owner, literal_column("''")), _JOBS.c.namespace)
_INSERTS: Final[dict[str, Callable[[Any], Any]]] = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}


class Store:
    """One database. Connections are made when they are needed, and again after they were lost.

    Who `reads_only` calls neither `migrate` nor `write`, and reads what a store of an older version has.
    `ca_file`: as of `engine_of`."""

    def __init__(self, address: URL | UrlFile, *, reads_only: bool = False, ca_file: str = "") -> None:
        self._address = address
        self._engine = engine_of(address, reads_only=reads_only, ca_file=ca_file)
        self._writing = writing(self._engine)
        self._reads_only = reads_only
        self._insert = _INSERTS[self._engine.dialect.name]
        self.cpu_jobs = CpuJobTable(self._engine, self._insert, self._errors)

    def migrate(self) -> None:
        """Bring the schema up to date; two processes at once do it one after the other. Raises Outage.

        A newer schema stays as it is, and is written if it has all that this version needs."""
        with self._errors(), self._alone(), self._writing.connect() as connection:
            if self._engine.dialect.name == "postgresql":  # until the commit: a pooler would keep a session's lock
                connection.execute(text("SELECT pg_advisory_xact_lock(:id)"), {"id": LOCK_ID})
            upgrade(connection, self._name)
            connection.commit()

    def write(self, jobs: Sequence[FinishedJob]) -> int:
        """Write the records that are not there yet, all or none; return how many these were.

        Raises Outage, or RecordRefused if one of them cannot be written."""
        rows = [_row(job) for job in jobs]
        if not rows:
            return 0
        new = self._insert(_JOBS).values(rows).on_conflict_do_nothing().returning(_JOBS.c.uid, _JOBS.c.attempt)
        with self._errors(), self._writing.begin() as connection:
            written = {(uid, attempt) for uid, attempt in connection.execute(new)}
            waits = [
                {"uid": job.uid, "attempt": job.attempt, "cause": cause, "seconds": seconds}
                for job in jobs
                if (job.uid, job.attempt) in written
                for cause, seconds in job.waits
            ]
            if waits:
                connection.execute(self._insert(_WAITS).on_conflict_do_nothing(), waits)
        return len(written)

    def jobs(self, from_s: float, to_s: float) -> Iterator[FinishedJob]:
        """Yield the jobs that ended in [from_s, to_s), by end, with `BATCH` of them in memory.

        Raises Outage, or InvalidInput if it `reads_only` and there is no history."""
        order = (_JOBS.c.ended_s, _JOBS.c.uid, _JOBS.c.attempt)
        left = (_JOBS.c.ended_s >= from_s) & (_JOBS.c.ended_s < to_s)
        columns: list[Column[Any]] = []
        while True:
            with self._errors(), self._engine.connect() as connection:
                columns = columns or self._columns(connection)
                batch = select(*columns).where(left).order_by(*order).limit(BATCH)
                rows = [row._asdict() for row in connection.execute(batch)]
                has_waits = not self._reads_only or inspect(connection).has_table(_WAITS.name)
                waits_by_key = _waits_of(rows, connection) if has_waits else {}
            for row in rows:
                yield _job(row, waits_by_key.get((row["uid"], row["attempt"]), ()))
            if len(rows) < BATCH:
                return
            last = tuple(rows[-1][column.name] for column in order)
            beyond = tuple_(*order) > tuple_(*map(literal, last))
            left = (_JOBS.c.ended_s >= last[0]) & (_JOBS.c.ended_s < to_s) & beyond  # the first part: for the index

    def _columns(self, connection: Connection) -> list[Column[Any]]:
        """Those that there are: a store that is only read may be of an older version."""
        if not self._reads_only:
            return list(_JOBS.columns)
        found = inspect(connection)
        if not found.has_table(_JOBS.name):
            raise InvalidInput(f"{self._name} has no history: it has no table {_JOBS.name}")
        there = {column["name"] for column in found.get_columns(_JOBS.name)}
        return [column for column in _JOBS.columns if column.name in there]

    def runs(self, most: int) -> list[FinishedRun]:
        """Return the runs of the jobs that ended last, of `most` jobs at most, oldest first. Raises Outage.

        Of each owner, category and number of GPUs the last `OLD_OF_KIND`, and up to `MOST_OF_KIND` of those that ended
        at most `TAUGHT_S` before the newest run. All are among the last `MOST_READ`."""
        gpus = (_JOBS.c.replicas * _JOBS.c.gpus_per_replica).label("gpus")
        ran = (_JOBS.c.run_s > 0) & _JOBS.c.ending.in_((Ending.SUCCEEDED.value, Ending.FAILED.value))
        times = (_JOBS.c.held_s, _JOBS.c.run_s, _JOBS.c.lost_s)
        latest = select(_JOBS.c.ended_s, _OWNER, _JOBS.c.category, gpus, *times).where(ran)
        latest = latest.order_by(_JOBS.c.ended_s.desc(), _JOBS.c.uid, _JOBS.c.attempt).limit(MOST_READ)
        runs: list[FinishedRun] = []
        found: Counter[tuple[str, str, int]] = Counter()
        newest_s: float | None = None
        with (
            self._errors(),
            self._engine.connect() as connection,
            connection.execute(latest, execution_options={"yield_per": BATCH}) as rows,
        ):
            for ended_s, owner, category, asked, *times_s in rows:
                newest_s = ended_s if newest_s is None else newest_s
                kind = (owner, category, asked)
                found[kind] += 1
                if found[kind] <= (MOST_OF_KIND if newest_s - ended_s <= TAUGHT_S else OLD_OF_KIND):
                    runs.append(FinishedRun(intern(owner), intern(category), asked, worked_s(*times_s)))
                if len(runs) >= most:
                    break
        return runs[::-1]

    def tuned(self, since_s: float) -> list[tuple[str, str, int, int]]:
        """Return owner, category, GPUs per rank and the most cores per rank that tuning found since. Raises Outage."""
        columns = (_OWNER, _JOBS.c.category, _JOBS.c.gpus_per_replica)
        taught = (_JOBS.c.cores_tuned.is_not(None)) & (_JOBS.c.ended_s >= since_s)
        most = select(*columns, func.max(_JOBS.c.cores_tuned)).where(taught).group_by(*columns).order_by(*columns)
        with self._errors(), self._engine.connect() as connection:
            return [(owner, category, gpus, cores) for owner, category, gpus, cores in connection.execute(most)]

    def delete_before(self, ended_s: float) -> int:
        """Delete the records of jobs that ended before, and their waits; return how many. Raises Outage.

        `BATCH` of them in a transaction, and `MOST_DELETED` in all: the rest goes with the next call."""
        old, deleted = _JOBS.c.ended_s < ended_s, 0
        while deleted < MOST_DELETED:
            with self._errors(), self._writing.begin() as connection:
                uids = connection.scalars(select(_JOBS.c.uid).where(old).limit(BATCH)).all()
                if uids:
                    deleted += connection.execute(delete(_JOBS).where(_JOBS.c.uid.in_(uids) & old)).rowcount
            if len(uids) < BATCH:
                break
        return deleted

    def cpu_use(self, from_s: float, to_s: float) -> CpuUse:
        """Return what the CPU jobs used that ended in [from_s, to_s). Raises Outage."""
        return self.cpu_jobs.use(from_s, to_s)

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()

    @property
    def _name(self) -> str:
        return shown(self._address)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Lock SQLite's file against another process of this machine that changes its schema."""
        file = self._engine.url.database
        if self._engine.dialect.name != "sqlite" or not file:
            yield
            return
        Path(file).absolute().parent.mkdir(parents=True, exist_ok=True)
        with Path(f"{file}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (DataError, IntegrityError) as error:
            raise RecordRefused(f"{self._name}: {first_line(error)}") from error
        except (SQLAlchemyError, OSError) as error:
            raise (StoreFull if lacks_space(error) else Outage)(f"{self._name}: {first_line(error)}") from error


_ENDINGS: Final = frozenset(ending.value for ending in Ending)
_FIELD_BY_COLUMN: Final = {column.name: column.name for column in FINISHED_JOBS.columns if column.name != "ending"} | {
    "held_gpu_s": "summed_gpu_s",
    "lost_gpu_s": "summed_lost_gpu_s",
}


def _waits_of(rows: list[dict[str, Any]], connection: Connection) -> dict[tuple[str, int], list[tuple[str, float]]]:
    """Return cause and seconds of each wait, by cause, of the jobs of these rows, and of other ends of these jobs.

    By uid alone: for pairs of values SQLite uses no index, and reads the whole table."""
    found = select(_WAITS).where(_WAITS.c.uid.in_([row["uid"] for row in rows])).order_by(_WAITS.c.cause)
    waits_by_key: dict[tuple[str, int], list[tuple[str, float]]] = {}
    for wait in connection.execute(found):
        waits_by_key.setdefault((wait.uid, wait.attempt), []).append((wait.cause, wait.seconds))
    return waits_by_key


def _row(job: FinishedJob) -> dict[str, Any]:
    return {column: getattr(job, field) for column, field in _FIELD_BY_COLUMN.items()} | {"ending": job.ending.value}


def _job(row: dict[str, Any], waits: Iterable[tuple[str, float]]) -> FinishedJob:
    owner, word = row.get("owner") or row["namespace"], row["ending"]
    fields = {_FIELD_BY_COLUMN.get(column, column): value for column, value in row.items()}
    fields |= {"owner": owner, "waits": tuple(waits)}
    if word not in _ENDINGS:  # a newer operator's: reports show it as a failure, by its word
        return FinishedJob(**(fields | {"ending": Ending.FAILED, "failure_class": row["failure_class"] or word}))
    return FinishedJob(**(fields | {"ending": Ending(word)}))
