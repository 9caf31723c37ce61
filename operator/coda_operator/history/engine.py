"""The engines of SQLAlchemy: how SQLite and PostgreSQL are opened, and with which limits."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import URL, Dialect, ExceptionContext
from sqlalchemy.exc import DisconnectionError
from sqlalchemy.pool import ConnectionPoolEntry

from coda.errors import Outage
from coda_operator.history.address import UrlFile, whereabouts
from coda_operator.history.writer import STATEMENT_S

CONNECT_S: Final = 5
"""The limit of one connect. Our choice."""

READ_ONLY: Final = "25006"
"""PostgreSQL's error for a write to a server that may only be read, as a standby is. Source: its manual, appendix A."""

DISK_FULL: Final = "53100"
"""PostgreSQL's error for a disk without space. Source: as above."""

WHEREABOUTS: Final = "coda_whereabouts"
"""Where a connection leads, in what SQLAlchemy notes of it."""

WRITES: Final = "is_writing"
"""Of a transaction that writes, in the options of SQLAlchemy."""

RESERVE_BYTES: Final = 32 * 2**20
LARGEST_RESERVE: Final = 0.25
"""SQLite leaves so much of its volume free, but at most this share, for what is not in the file yet. Deleting takes
space first, too: without a reserve a full volume could never be emptied. A transaction of 500 lines of CPU jobs, whose
keys lie anywhere, changes up to 3000 pages of 4 KiB. Our choice."""


def engine_of(address: URL | UrlFile, *, reads_only: bool = False, ca_file: str = "") -> Engine:
    """Return the engine of a store; nothing connects yet. Who `reads_only` needs no right to write.

    `ca_file`: certificates of the authorities that sign PostgreSQL's; empty: as the URL says."""
    url = URL.create("postgresql+psycopg") if isinstance(address, UrlFile) else address
    if url.get_backend_name() == "sqlite" and reads_only:
        file = Path(url.database or "").absolute()
        engine = create_engine(url, creator=lambda: _open_to_read(file))
        event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN"))
        return engine
    if url.get_backend_name() == "sqlite":
        engine = create_engine(url, connect_args={"timeout": STATEMENT_S})
        event.listen(engine, "connect", _set_up_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
        return engine
    if isinstance(address, UrlFile):
        engine = _postgresql_engine(url, {})
        _follow(engine, address, ca_file)
        return engine
    return _postgresql_engine(url, _trust(url, ca_file))


def writing(engine: Engine) -> Engine:
    """Return the engine for transactions that write; it has the same connections.

    On SQLite they wait for another writer before they read. One that reads first could only fail: it does not wait for
    a writer, because what it has read is old by then."""
    return engine.execution_options(**{WRITES: True})


def _follow(engine: Engine, address: UrlFile, ca_file: str) -> None:
    """Connect as the file says then. A connection whose database it names no more is not used again: the history would
    go to two. One whose password alone has changed is: the server knows it already."""

    def connect(dialect: Dialect, record: ConnectionPoolEntry, _words: object, limits: dict[str, Any]) -> Any:
        url = address.url()
        record.info[WHEREABOUTS] = whereabouts(url)
        _, parameters = dialect.create_connect_args(url)
        return dialect.connect(**{**parameters, **limits, **_trust(url, ca_file)})

    def check(_connection: object, record: ConnectionPoolEntry, _user: object) -> None:
        try:
            is_left = record.info[WHEREABOUTS] != whereabouts(address.url())
        except Outage:  # the file is wrong for now
            return
        if is_left:
            raise DisconnectionError("the URL names another database")

    event.listen(engine, "do_connect", connect)
    event.listen(engine, "checkout", check)


def _trust(url: URL, ca_file: str) -> dict[str, str]:
    """What the URL leaves open: whoever names an authority wants the server's certificate and its name checked."""
    if not ca_file or "sslrootcert" in url.query:
        return {}
    mode = {} if "sslmode" in url.query else {"sslmode": "verify-full"}
    return {"sslrootcert": ca_file, **mode}


def _postgresql_engine(url: URL, trust: dict[str, str]) -> Engine:
    limits = {
        "connect_timeout": CONNECT_S,
        "tcp_user_timeout": STATEMENT_S * 1000,
        "keepalives_idle": STATEMENT_S,  # an answer is awaited in silence: nothing that TCP would miss
        "keepalives_interval": 10,
        "keepalives_count": 3,
        "application_name": "coda-operator",
        "prepare_threshold": None,  # a pooler may give each transaction another session of the server
    }
    engine = create_engine(
        url,
        connect_args={**limits, **trust},
        isolation_level="READ COMMITTED",  # each BEGIN says it: a snapshot would be older than the lock of a migration
        pool_size=2,
        max_overflow=0,
        pool_pre_ping=True,
    )
    event.listen(engine, "begin", _limit_statements)
    event.listen(engine, "handle_error", leave_read_only)
    return engine


def _limit_statements(connection: Connection) -> None:
    """For this transaction alone: PgBouncer knows no `options` at the start, and would hand a session's limits on."""
    limit = f"'{STATEMENT_S}s', true"
    connection.exec_driver_sql(f"SELECT set_config('statement_timeout', {limit}), set_config('lock_timeout', {limit})")


def leave_read_only(context: ExceptionContext) -> None:
    """Close every connection once one may not write: after a fail-over they lead to a standby, which answers pings.

    Whoever only reads, as `coda report`, may stay at a standby."""
    if getattr(context.original_exception, "sqlstate", None) == READ_ONLY:
        context.is_disconnect = True


def _open_to_read(file: Path) -> sqlite3.Connection:
    """Where neither file nor folder may be written, SQLite has no place for locks, and nobody changes the file."""
    try:
        return _opened(f"{file.as_uri()}?mode=ro")
    except sqlite3.OperationalError:
        if os.access(file, os.W_OK) or os.access(file.parent, os.W_OK):
            raise
        return _opened(f"{file.as_uri()}?immutable=1")


def _opened(uri: str) -> sqlite3.Connection:
    connection = sqlite3.connect(uri, STATEMENT_S, uri=True, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("SELECT 1 FROM sqlite_master").fetchone()
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def _set_up_sqlite(connection: Any, _record: object) -> None:
    """Readers do not stop the writer, and what was committed survives a loss of power."""
    connection.isolation_level = None
    cursor = connection.cursor()
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    """Python's module begins no transaction before a change of the schema: a migration would be done by halves."""
    _keep_reserve(connection)
    writes = connection.get_execution_options().get(WRITES, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _keep_reserve(connection: Connection) -> None:
    """Bound SQLite's file. Before each transaction, since a volume may be enlarged."""
    file = connection.engine.url.database
    if not file:
        return
    place, raw = os.statvfs(Path(file).absolute().parent), connection.connection
    used = sum(path.stat().st_size for path in (Path(file), Path(f"{file}-wal")) if path.exists())
    whole = used + place.f_bavail * place.f_frsize
    cursor = raw.cursor()
    (page_bytes,) = cursor.execute("PRAGMA page_size").fetchone()
    pages = int(whole - min(RESERVE_BYTES, LARGEST_RESERVE * whole)) // page_bytes
    cursor.execute(f"PRAGMA max_page_count={max(1, pages)}")  # never below what the file has
    cursor.close()


def lacks_space(error: Exception) -> bool:
    """True if the database has no space for what was to be written."""
    cause = getattr(error, "orig", None)
    return (
        getattr(cause, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL or getattr(cause, "sqlstate", "") == DISK_FULL
    )
