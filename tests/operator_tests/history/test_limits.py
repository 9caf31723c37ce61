"""PostgreSQL's limits hold for a URL of the settings and for one in a file, as the chart gives it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import inspect, text
from sqlalchemy.engine import URL

from coda_operator.history import store_of
from coda_operator.history.address import UrlFile, database_url
from coda_operator.history.engine import CONNECT_S, engine_of
from coda_operator.history.store import Store
from coda_operator.history.writer import STATEMENT_S
from tests.operator_tests.history.databases import PostgreSQL

LIMITS = {
    "connect_timeout": CONNECT_S,
    "tcp_user_timeout": STATEMENT_S * 1000,
    "keepalives_idle": STATEMENT_S,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "application_name": "coda-operator",
    "prepare_threshold": None,
}
OF_A_TRANSACTION = "SELECT current_setting('statement_timeout'), current_setting('lock_timeout')"


def addressed(url: str, folder: Path, in_file: bool) -> URL | UrlFile:
    """The URL as the settings give it, or a file that has it."""
    if in_file:
        (folder / "url").write_text(url)
        return UrlFile(folder / "url")
    found = database_url(url, "")
    assert found is not None
    return found


def has_tables(database: URL) -> bool:
    engine = engine_of(database)
    found = inspect(engine).get_table_names()
    engine.dispose()
    return bool(found)


@pytest.mark.parametrize("in_file", [False, True])
@pytest.mark.parametrize("more", ["", "&connect_timeout=600&keepalives_idle=7200&application_name=other"])
def test_every_connection_has_all_limits_whatever_its_url_says(
    server: PostgreSQL, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_file: bool, more: str
) -> None:
    database, asked = server.new_database(), list[dict[str, Any]]()
    real: Any = psycopg.connect

    def connect(*words: Any, **parameters: Any) -> Any:
        asked.append(parameters)
        return real(*words, **parameters)

    monkeypatch.setattr(psycopg, "connect", connect)
    engine = engine_of(addressed(database.render_as_string(hide_password=False) + more, tmp_path, in_file))
    with engine.connect() as connection:
        assert tuple(connection.execute(text(OF_A_TRANSACTION)).one()) == (f"{STATEMENT_S}s", f"{STATEMENT_S}s")
        assert connection.scalar(text("SHOW transaction_isolation")) == "read committed"
    engine.dispose()
    where = {"dbname": database.database, "user": "coda", "host": database.query["host"]}
    assert [{name: one for name, one in each.items() if name != "context"} for each in asked] == [LIMITS | where]


def test_the_file_is_asked_where_there_is_a_url_too(server: PostgreSQL, tmp_path: Path) -> None:
    of_url, of_file = server.new_database(), server.new_database()
    (tmp_path / "url").write_text(of_file.render_as_string(hide_password=False))
    store = store_of(of_url.render_as_string(hide_password=False), "", url_file=str(tmp_path / "url"))
    assert isinstance(store, Store)
    store.migrate()
    store.close()
    assert [has_tables(url) for url in (of_url, of_file)] == [False, True]
