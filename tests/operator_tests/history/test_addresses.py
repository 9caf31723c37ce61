"""Where the store is: what of the URL reaches PostgreSQL."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import Connection, text
from sqlalchemy.engine import URL

from coda.errors import InvalidInput, Outage
from coda_operator.history import store_of
from coda_operator.history.address import UrlFile, database_url, shown
from coda_operator.history.engine import engine_of
from coda_operator.history.store import Store
from tests.operator_tests.history.databases import PostgreSQL
from tests.operator_tests.history.records import record
from tests.operator_tests.history.test_store import ALWAYS, change, tables_of


def database_of(connection: Connection) -> str:
    return str(connection.scalar(text("SELECT current_database()")))


def uids_of(database: URL) -> list[str]:
    store = Store(database)
    uids = [job.uid for job in store.jobs(*ALWAYS)]
    store.close()
    return uids


def test_the_schema_of_the_url_has_the_tables(server: PostgreSQL) -> None:
    """Another application's are in the first one."""
    public = server.new_database()
    change(public, "CREATE SCHEMA platform", "CREATE TABLE finished_jobs (id INTEGER)")
    url = database_url(public.render_as_string(hide_password=False) + "&options=-csearch_path%3Dplatform", "")
    assert url is not None
    store = Store(url)
    store.migrate()
    assert store.write([record(1)]) == 1
    store.close()
    assert "finished_job_waits" in tables_of(url)


@pytest.mark.parametrize(
    ("url", "file", "expected"),
    [
        ("", "", None),
        ("", "/var/h.sqlite", "sqlite:////var/h.sqlite"),
        ("postgresql://u:p@h/d", "/var/h.sqlite", "postgresql+psycopg://u:p@h/d"),
        ("postgres://h/d?sslmode=require", "", "postgresql+psycopg://h/d?sslmode=require"),
        ("sqlite:////var/h.sqlite", "", "sqlite:////var/h.sqlite"),
        (" postgresql://u:p@h/d\n", "", "postgresql+psycopg://u:p@h/d"),
        ("\n", "/var/h.sqlite", "sqlite:////var/h.sqlite"),
    ],
)
def test_the_url_of_the_store(url: str, file: str, expected: str | None) -> None:
    found = database_url(url, file)
    assert (None if found is None else found.render_as_string(hide_password=False)) == expected


BAD_HOSTS = (
    "postgresql://u:secret@h1:port,h2/d",
    "postgresql://u:secret@[fd00::1,h2/d",
    "postgresql://u:secret@/d?host=h1:port&host=h2",
    "postgresql://u:p@secret@h/d",
    "postgresql://u:1,2@secret@h1,h2/d",
    "postgresql://h1:5432,h2:5432/d?user=u@tenant&password=secret",
)


@pytest.mark.parametrize("url", ["mysql://h/d", "nonsense", "sqlite://", "postgresql://u:secret@h:port/d", *BAD_HOSTS])
def test_a_url_of_another_kind_is_one_sentence_without_its_password(url: str) -> None:
    with pytest.raises(InvalidInput, match="CODA_HISTORY_URL") as refused:
        database_url(url, "")
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("postgresql://u:p@h1:5432,h2:5433/d", {"host": "h1,h2", "port": "5432,5433"}),
        ("postgresql://u:p@h1,h2/d", {"host": "h1,h2", "port": ","}),
        ("postgres://u:p@h1,h2:5433/d", {"host": "h1,h2", "port": ",5433"}),
        ("postgresql://u:p@[fd00::1]:5432,[fd00::2]/d", {"host": "fd00::1,fd00::2", "port": "5432,"}),
        ("postgresql://u:p@/d?host=h1:5432&host=h2:5433", {"host": "h1,h2", "port": "5432,5433"}),
        ("postgresql://h1:5432,h2:5433/d?user=u&password=p", {"host": "h1,h2", "port": "5432,5433"}),
        ("postgresql://u:p@h1:5432/d", {"host": "h1", "port": 5432}),
    ],
)
@pytest.mark.parametrize("more", ["", "target_session_attrs=read-write"])
def test_several_hosts_reach_postgresql_as_its_own_tools_read_them(
    url: str, expected: dict[str, object], more: str
) -> None:
    found = database_url(f"{url}{'&' if '?' in url else '?'}{more}", "")
    assert found is not None
    _, parameters = found.get_dialect()().create_connect_args(found)
    rest = {"user": "u", "password": "p", "dbname": "d"} | ({"target_session_attrs": "read-write"} if more else {})
    assert parameters == expected | rest


@pytest.mark.parametrize("password", ["pa,ss/word", "a,b", "a,b?c", "1,2/x", "1,2?x", "a:b,c:1/d", "a,b#c"])
@pytest.mark.parametrize("hosts", ["h1", "h1,h2"])
def test_no_part_of_a_password_is_a_host(password: str, hosts: str) -> None:
    found = database_url(f"postgresql://coda:{password}@{hosts}/d", "")
    assert found is not None
    _, parameters = found.get_dialect()().create_connect_args(found)
    expected = {"host": hosts, "user": "coda", "password": password, "dbname": "d"}
    assert {key: value for key, value in parameters.items() if key != "port"} == expected
    assert password not in shown(found)


def test_a_password_that_was_changed_is_read_at_the_next_connect(server: PostgreSQL, tmp_path: Path) -> None:
    """Here the account has another name; the server of tests asks for no password."""
    database = server.new_database()
    change(database, "CREATE ROLE early SUPERUSER LOGIN")
    file = tmp_path / "url"
    file.write_text(database.set(username="early").render_as_string(hide_password=False) + "\n")
    store = Store(UrlFile(file))
    store.migrate()
    assert store.write([record(1)]) == 1
    end_early = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'early'"
    change(database, end_early, "ALTER ROLE early RENAME TO late")
    with pytest.raises(Outage, match=f"postgresql:///{database.database}: .*early"):
        store.write([record(2)])
    file.write_text(database.set(username="late").render_as_string(hide_password=False))
    assert store.write([record(2)]) == 1
    store.close()


def test_connections_to_a_database_that_the_file_names_no_more_are_left(server: PostgreSQL, tmp_path: Path) -> None:
    """Both were open; what asked in between sees no failure, and the new database has its schema after one."""
    before, after = server.new_database(), server.new_database()
    file = tmp_path / "url"
    file.write_text(before.render_as_string(hide_password=False))
    engine, store = engine_of(UrlFile(file)), Store(UrlFile(file))
    store.migrate()
    assert store.write([record(1)]) == 1
    with engine.connect() as one, engine.connect() as two:
        assert {database_of(one), database_of(two)} == {before.database}
    file.write_text(after.render_as_string(hide_password=False))
    with engine.connect() as one, engine.connect() as two:
        assert {database_of(one), database_of(two)} == {after.database}
    engine.dispose()
    with pytest.raises(Outage, match=f"postgresql:///{after.database}: .*finished_jobs"):
        store.write([record(2)])
    store.migrate()
    assert store.write([record(2)]) == 1
    store.close()
    assert [uids_of(url) for url in (before, after)] == [[record(1).uid], [record(2).uid]]


@pytest.mark.parametrize("content", [None, "nonsense", "postgresql+psycopg://coda:new@/{database}?host={host}"])
def test_open_connections_go_on_while_a_file_is_wrong_or_has_a_new_password(
    server: PostgreSQL, tmp_path: Path, content: str | None
) -> None:
    database, file = server.new_database(), tmp_path / "url"
    file.write_text(database.render_as_string(hide_password=False))
    engine = engine_of(UrlFile(file))
    with engine.connect() as connection:
        session = connection.scalar(text("SELECT pg_backend_pid()"))
    if content is None:
        file.unlink()
    else:
        file.write_text(content.format(database=database.database, host=database.query["host"]))
    with engine.connect() as connection:
        assert connection.scalar(text("SELECT pg_backend_pid()")) == session
    engine.dispose()


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "url: No such file or directory"),
        (b"", "url has no URL of PostgreSQL"),
        (b"sqlite:////var/secret", "url has no URL of PostgreSQL"),
        (b"postgresql://u:secret@h:port/d", "url is no URL"),
        (b"postgresql://u:secret\xff@h/d", "url: it is no text"),
    ],
)
def test_a_file_without_a_url_is_an_outage_and_stops_nobody(tmp_path: Path, content: bytes | None, why: str) -> None:
    file = tmp_path / "url"
    if content is not None:
        file.write_bytes(content)
    store = store_of("mysql://h/d", "", url_file=str(file))
    assert store is not None
    with pytest.raises(Outage, match=why) as away:
        store.migrate()
    assert "secret" not in str(away.value)
    store.close()
