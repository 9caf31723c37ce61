"""The store on SQLite and on PostgreSQL: what is written is read, once, also by two at a time and after an upgrade."""

from __future__ import annotations

import subprocess
import sys
import threading
import tracemalloc
from dataclasses import replace
from pathlib import Path

import pytest
from alembic import command
from alembic.config import Config
from psycopg.errors import ReadOnlySqlTransaction, UniqueViolation
from sqlalchemy import create_engine, event, inspect, select, text
from sqlalchemy.engine import URL, Engine

from coda.errors import Outage
from coda.history import FinishedRun
from coda.history.record import Ending
from coda_operator.history.address import database_url
from coda_operator.history.engine import leave_read_only
from coda_operator.history.schema import MIGRATIONS
from coda_operator.history.store import Store
from coda_operator.history.tables import EARLIER_VERSION, METADATA, VERSION
from coda_operator.history.writer import RecordRefused
from tests.operator_tests.history.databases import PostgreSQL
from tests.operator_tests.history.records import record

ALWAYS = (0.0, 2e10)


def migrated(url: URL, revision: str, *, version_table: str = EARLIER_VERSION.name) -> None:
    """As an operator of another version leaves it."""
    engine = create_engine(url)
    with engine.connect() as connection:
        config = Config()
        config.set_main_option("script_location", str(MIGRATIONS))
        config.attributes.update(connection=connection, version_table=version_table)
        command.upgrade(config, revision)
        connection.commit()
    engine.dispose()


def change(url: URL, *statements: str) -> None:
    """What somebody else does to a database."""
    engine = create_engine(url)
    with engine.begin() as connection:
        for statement in statements:
            connection.execute(text(statement))
    engine.dispose()


def test_what_is_written_is_read(database: URL) -> None:
    store = Store(database)
    store.migrate()
    jobs = [
        record(1),
        record(2, cores_asked=3, cores_tuned=None, idle_gpu_s=None, waits=(), ending=Ending.DELETED),
        record(3, attempt=4, failures=3, category="", started_s=0.0, summed_gpu_s=160.0, summed_lost_gpu_s=7.0),
    ]
    assert store.write(jobs) == 3
    assert list(store.jobs(*ALWAYS)) == jobs
    assert list(store.jobs(jobs[1].ended_s, jobs[2].ended_s)) == [jobs[1]]
    store.close()


def test_a_record_that_is_there_stays_as_it_is(database: URL) -> None:
    """The waits of the second are not added to those of the first either."""
    store = Store(database)
    store.migrate()
    first = record(1)
    store.write([first])
    assert store.write([replace(first, reason="Other", waits=(("Unseen", 5.0),)), record(2)]) == 1
    assert store.write([replace(first, attempt=2)]) == 1  # another end of the same job
    assert list(store.jobs(*ALWAYS)) == [first, replace(first, attempt=2), record(2)]
    store.close()


def test_two_writers_at_once_write_each_record_once(database: URL) -> None:
    stores = [Store(database), Store(database)]
    jobs = [record(number) for number in range(60)]
    written = [0, 0]
    faults: list[BaseException] = []

    def work(index: int) -> None:
        try:
            stores[index].migrate()  # both at once, from an empty database
            for start in range(0, len(jobs), 5):
                written[index] += stores[index].write(jobs[start : start + 5])
        except BaseException as fault:
            faults.append(fault)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []
    assert sum(written) == len(jobs)
    assert list(stores[0].jobs(*ALWAYS)) == jobs
    for store in stores:
        store.close()


def test_a_new_database_has_the_tables_that_all_migrations_leave(database: URL) -> None:
    migrated(database, "head", version_table=VERSION.name)
    by_migrations = tables_of(database)
    engine = create_engine(database)
    METADATA.drop_all(engine)
    engine.dispose()
    store = Store(database)
    store.migrate()
    store.migrate()  # once more changes nothing
    store.close()
    assert tables_of(database) == by_migrations
    assert set(by_migrations) == set(METADATA.tables)


def tables_of(url: URL) -> dict[str, object]:
    """All that a database says of its tables, the order of columns left out, and which version it has."""
    engine = create_engine(url)
    found = inspect(engine)
    tables: dict[str, object] = {}
    for name in found.get_table_names():
        columns = {column["name"]: column | {"type": str(column["type"])} for column in found.get_columns(name)}
        indexes = sorted(found.get_indexes(name), key=lambda index: str(index["name"]))
        tables[name] = columns, indexes, found.get_pk_constraint(name), found.get_foreign_keys(name)
    with engine.connect() as connection:
        tables[VERSION.name] = tables[VERSION.name], connection.execute(select(VERSION)).all()
    engine.dispose()
    return tables


def test_alembic_is_loaded_only_for_another_version(tmp_path: Path) -> None:
    """It takes longer to load than the operator's start would take without it."""
    code = "import sys; from sqlalchemy import URL; from coda_operator.history.store import Store\n"
    code += f"Store(URL.create('sqlite', database={str(tmp_path / 'history')!r})).migrate()\n"
    code += "assert 'alembic' not in sys.modules"
    for _ in ("a new database", "one of this version"):
        subprocess.run([sys.executable, "-c", code], check=True)


NEWER = ("owner", "lost_s", "trial", "trial_s", "held_gpu_s", "lost_gpu_s")  # columns that the first tables lacked


def test_an_older_database_keeps_its_records(database: URL) -> None:
    migrated(database, "0001")
    old = record(1, waits=())
    engine = create_engine(database)
    with engine.begin() as connection:
        names = [it.name for it in METADATA.tables["finished_jobs"].columns if it.name not in NEWER]
        row = {name: getattr(old, name) for name in names} | {"ending": old.ending.value}
        places = ", ".join(f":{name}" for name in names)
        connection.execute(text(f"INSERT INTO finished_jobs ({', '.join(names)}) VALUES ({places})"), row)
    engine.dispose()
    store = Store(database)
    with pytest.raises(Outage):  # its schema is too old to be written
        store.write([record(2)])
    store.migrate()
    store.write([record(2)])
    assert list(store.jobs(*ALWAYS)) == [old, record(2)]
    store.close()


def test_it_answers_what_the_map_and_the_start_points_ask(database: URL) -> None:
    store = Store(database)
    store.migrate()
    store.write(
        [
            record(1, namespace="a", run_s=100.0),
            record(2, namespace="a", run_s=200.0, cores_tuned=30, category=""),
            record(3, namespace="a", run_s=300.0, cores_tuned=12),
            record(4, namespace="b", run_s=400.0, ending=Ending.DELETED, cores_tuned=None),
            record(5, namespace="b", run_s=0.0, cores_tuned=None),
            record(0, namespace="a", owner="ann", run_s=50.0, cores_tuned=40),
        ]
    )
    assert store.runs(2) == [FinishedRun("a", "", 16, 200.0), FinishedRun("a", "NLP", 16, 300.0)]
    assert store.runs(9)[0] == FinishedRun("ann", "NLP", 16, 50.0)
    assert store.tuned(0.0) == [("a", "", 8, 30), ("a", "NLP", 8, 24), ("ann", "NLP", 8, 40)]
    assert store.tuned(record(3).ended_s) == [("a", "NLP", 8, 12)]
    store.close()


def test_an_ending_that_a_newer_operator_wrote_is_a_failure_by_its_word_and_teaches_nothing(database: URL) -> None:
    store = Store(database)
    store.migrate()
    store.write([record(1), record(2, failure_class="Oom"), record(3)])
    change(database, "UPDATE finished_jobs SET ending = 'Preempted' WHERE uid <> 'uid-3'")
    jobs = list(store.jobs(*ALWAYS))
    assert [job.ending for job in jobs] == [Ending.FAILED, Ending.FAILED, Ending.SUCCEEDED]
    assert [job.failure_class for job in jobs] == ["Preempted", "Oom", ""]
    assert len(store.runs(9)) == 1
    store.close()


def test_jobs_come_in_batches_each_once_and_in_order(database: URL, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coda_operator.history.store.BATCH", 3)
    store = Store(database)
    store.migrate()
    ends_s = [record(0).ended_s + offset for offset in (0.1, 0.2, 0.2, 0.2, 0.2, 0.3, 0.4, 0.4)]  # batches end in ties
    jobs = [record(number, ended_s=ended_s) for number, ended_s in enumerate(ends_s)]
    jobs += [replace(jobs[-1], attempt=2)]
    store.write(jobs)
    assert list(store.jobs(*ALWAYS)) == jobs
    assert list(store.jobs(ends_s[1], ends_s[-1])) == jobs[1:6]
    store.close()


def test_a_week_of_jobs_is_never_in_memory_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coda_operator.history.store.BATCH", 50)
    store = Store(URL.create("sqlite", database=str(tmp_path / "history.db")))
    store.migrate()
    peaks = []
    for first, count in ((0, 100), (100, 2000)):
        store.write([record(number) for number in range(first, count)])
        tracemalloc.start()
        assert sum(1 for _ in store.jobs(*ALWAYS)) == count
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 2 * peaks[0]
    store.close()


def test_a_record_that_no_database_takes_is_refused_and_not_an_outage(server: PostgreSQL) -> None:
    store = Store(server.new_database())
    store.migrate()
    with pytest.raises(RecordRefused):
        store.write([record(1, name="nul\0")])
    with pytest.raises(RecordRefused):
        store.write([record(1, name="n" * 300)])
    store.write([record(1)])
    store.close()


def test_a_server_that_was_away_is_found_again(server: PostgreSQL) -> None:
    store = Store(server.new_database())
    store.migrate()
    server.stop()
    try:
        with pytest.raises(Outage) as away:
            store.write([record(1)])
        assert "password" not in str(away.value)
    finally:
        server.start()
    assert store.write([record(1)]) == 1
    store.close()


def test_after_a_fail_over_no_connection_to_a_standby_is_kept(server: PostgreSQL) -> None:
    """It may only be read, and answers pings; the address leads to another server by now."""
    database = server.new_database()
    store = Store(database)
    store.migrate()
    store.close()
    server.set_read_only(database, True)
    assert list(store.jobs(*ALWAYS)) == []
    with pytest.raises(Outage, match="read-only"):
        store.write([record(1)])
    server.set_read_only(database, False)
    assert store.write([record(1)]) == 1
    store.close()


def test_tables_are_made_once_the_server_may_be_written(server: PostgreSQL) -> None:
    database = server.new_database()
    server.set_read_only(database, True)
    store = Store(database)
    with pytest.raises(Outage, match="read-only"):
        store.migrate()
    server.set_read_only(database, False)
    store.migrate()
    assert store.write([record(1)]) == 1
    store.close()


@pytest.mark.parametrize(("error", "connects"), [(ReadOnlySqlTransaction, 2), (UniqueViolation, 1)])
def test_what_may_not_write_is_connected_again(tmp_path: Path, error: type[Exception], connects: int) -> None:
    engine = create_engine(URL.create("sqlite", database=str(tmp_path / "history")))
    event.listen(engine, "handle_error", leave_read_only)
    connected: list[object] = []
    event.listen(engine, "connect", lambda connection, _: connected.append(connection))

    def refuse(_cursor: object, statement: str, *_: object) -> None:
        if statement == "INSERT":
            raise error("refused")

    event.listen(engine, "do_execute", refuse)
    with pytest.raises(error), engine.connect() as connection:
        connection.exec_driver_sql("INSERT")
    with engine.connect() as connection:
        connection.exec_driver_sql("SELECT 1")
    assert len(connected) == connects
    engine.dispose()


@pytest.mark.parametrize(
    "url", ["postgresql://u:secret@127.0.0.1:1/d", "postgresql://127.0.0.1:1/d?user=u&password=secret"]
)
def test_the_password_of_the_store_is_in_no_message(url: str) -> None:
    found = database_url(url, "")
    assert found is not None
    store = Store(found)
    with pytest.raises(Outage) as away:
        store.write([record(1)])
    assert str(away.value).startswith("postgresql://127.0.0.1:1/d: ")
    assert "secret" not in str(away.value)


def test_it_is_in_none_either_where_the_schema_cannot_be_changed(server: PostgreSQL) -> None:
    database = server.new_database().update_query_dict({"password": "secret"})
    store = Store(database)
    store.migrate()
    change(database, "UPDATE coda_alembic_version SET version_num = '9999'", "DROP TABLE finished_job_waits")
    with pytest.raises(Outage, match="9999") as away:
        store.migrate()
    assert "secret" not in str(away.value)
    store.close()


def test_a_connection_that_leads_nowhere_is_noticed() -> None:
    """Without probes of our own the kernel sends the first after two hours."""
    asked: list[dict[str, object]] = []

    def note(_dialect: object, _record: object, _words: object, options: dict[str, object]) -> None:
        asked.append(options)
        raise ConnectionError("nobody is there")

    event.listen(Engine, "do_connect", note)
    try:
        with pytest.raises(Outage):
            Store(URL.create("postgresql+psycopg", host="127.0.0.1", port=1)).write([record(1)])
    finally:
        event.remove(Engine, "do_connect", note)
    names = ("keepalives_idle", "keepalives_interval", "keepalives_count")
    assert [asked[0][name] for name in names] == [30, 10, 3]
