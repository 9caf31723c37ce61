"""PostgreSQL behind a pooler such as PgBouncer, where each transaction may meet another session of the server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import create_engine, event, text
from sqlalchemy.engine import URL, Engine

from coda.errors import Outage
from coda_operator.history.address import UrlFile
from coda_operator.history.engine import engine_of
from coda_operator.history.store import LOCK_ID, Store
from tests.operator_tests.history.databases import PostgreSQL
from tests.operator_tests.history.records import record
from tests.operator_tests.history.test_store import change

LIMITS = "SELECT current_setting('statement_timeout'), current_setting('lock_timeout')"


@contextmanager
def heard(name: str, hear: Callable[..., None]) -> Iterator[None]:
    """Hear this event of every engine."""
    event.listen(Engine, name, hear)
    try:
        yield
    finally:
        event.remove(Engine, name, hear)


@contextmanager
def closing_engine(address: URL | UrlFile) -> Iterator[Engine]:
    """An engine whose connections are closed at the end."""
    engine = engine_of(address)
    try:
        yield engine
    finally:
        engine.dispose()


def test_no_start_parameter_and_no_prepared_statement_ties_it_to_a_session(server: PostgreSQL) -> None:
    store, asked = Store(server.new_database()), list[dict[str, Any]]()

    def note(_dialect: object, _record: object, _words: object, parameters: dict[str, Any]) -> None:
        asked.append(dict(parameters))

    with heard("do_connect", note):
        store.migrate()
    store.close()
    assert [("options" in each, each.get("prepare_threshold", "default")) for each in asked] == [(False, None)]


def test_limits_are_those_of_a_transaction(server: PostgreSQL) -> None:
    engine = engine_of(server.new_database())
    with engine.connect() as connection:
        with connection.begin():
            assert tuple(connection.execute(text(LIMITS)).one()) == ("30s", "30s")
        session: Any = connection.connection.dbapi_connection
        assert session.execute(LIMITS).fetchone() == ("0", "0")
    engine.dispose()


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_operators_that_start_at_once_meet_no_old_snapshot(server: PostgreSQL, level: str) -> None:
    """Whatever the database's default is: who waited for the lock of a migration must see what the other one made."""
    database = server.new_database()
    change(database, f"ALTER DATABASE {database.database} SET default_transaction_isolation = '{level}'")
    stores = [Store(database) for _ in range(4)]
    with ThreadPoolExecutor(len(stores)) as threads:
        list(threads.map(Store.migrate, stores))
        assert sum(threads.map(lambda store: store.write([record(1)]), stores)) == 1
    for store in stores:
        store.close()
    with closing_engine(database) as engine, engine.connect() as connection:
        assert connection.scalar(text("SHOW transaction_isolation")) == "read committed"
        session: Any = connection.connection.dbapi_connection
        connection.rollback()
        assert session.execute("SHOW default_transaction_isolation").fetchone() == (level,)


def test_the_lock_of_a_migration_is_its_transactions(server: PostgreSQL) -> None:
    """A pooler keeps the session, and so would a session's lock be kept."""
    store, said = Store(server.new_database()), list[str]()

    def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        said.append(statement)

    with heard("before_cursor_execute", note):
        store.migrate()
    store.close()
    assert [words.partition("(")[0] for words in said if "advisory" in words] == ["SELECT pg_advisory_xact_lock"]


@pytest.mark.parametrize(
    ("takes_lock", "attempt"),
    [
        (f"SELECT pg_advisory_lock({LOCK_ID})", Store.migrate),
        ("LOCK TABLE finished_jobs", lambda store: store.write([record(1)])),
    ],
)
def test_a_lock_that_somebody_holds_is_an_outage(
    server: PostgreSQL, monkeypatch: pytest.MonkeyPatch, takes_lock: str, attempt: Callable[[Store], object]
) -> None:
    """An operator of an older version takes the advisory lock for its session."""
    monkeypatch.setattr("coda_operator.history.engine.STATEMENT_S", 1)
    database = server.new_database()
    store = Store(database)
    store.migrate()
    other = create_engine(database)
    with other.connect() as connection:
        connection.execute(text(takes_lock))
        with pytest.raises(Outage, match="timeout"):
            attempt(store)
    other.dispose()
    store.migrate()
    assert store.write([record(1)]) == 1
    store.close()
