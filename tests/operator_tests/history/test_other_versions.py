"""Databases that an operator of another version, or another application, has left; also after a roll-back."""

from __future__ import annotations

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.engine import URL

from coda.errors import Outage
from coda_operator.history.store import Store
from coda_operator.history.tables import REVISION
from coda_operator.history.writer import FIRST_DELAY_S, Writer
from tests.operator_tests.history.records import record
from tests.operator_tests.history.test_store import ALWAYS, change, migrated

NEWER = "UPDATE coda_alembic_version SET version_num = '9999'"


@pytest.mark.parametrize(
    "added",
    [
        "ALTER TABLE finished_jobs ADD COLUMN region VARCHAR(16) NOT NULL DEFAULT ''",
        "ALTER TABLE finished_job_waits ADD COLUMN share FLOAT",
        "CREATE TABLE reservations (name VARCHAR(63) NOT NULL)",
    ],
)
def test_a_newer_schema_that_lacks_nothing_of_ours_is_written(database: URL, added: str) -> None:
    store = Store(database)
    store.migrate()
    change(database, added, NEWER)
    store.migrate()
    assert store.write([record(1)]) == 1
    assert list(store.jobs(*ALWAYS)) == [record(1)]
    store.close()


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ("ALTER TABLE finished_jobs DROP COLUMN lost_s", "finished_jobs.lost_s is missing"),
        ("DROP TABLE finished_cpu_job_waits", "finished_cpu_job_waits is missing"),
        ("ALTER TABLE counted_cpu_jobs RENAME COLUMN counted_s TO seen_s", "counted_cpu_jobs.counted_s is missing"),
        (
            "CREATE TABLE finished_cpu_job_waits (line INT, cause INT, seconds INT, part INT NOT NULL)",
            "part needs a value",
        ),
    ],
)
def test_a_newer_schema_that_cannot_be_written_is_an_outage_that_says_why(
    database: URL, changed: str, why: str
) -> None:
    store = Store(database)
    store.migrate()
    if changed.startswith("CREATE"):
        change(database, "DROP TABLE finished_cpu_job_waits")
    change(database, changed, NEWER)
    with pytest.raises(Outage, match=f"newer version.*9999.*{why}"):
        store.migrate()
    store.close()


def test_a_back_up_of_an_older_version_under_a_running_operator_is_brought_up_to_date(database: URL) -> None:
    store, opened = Store(database), list[bool]()

    def note() -> bool:
        opened.append(True)
        return True

    writer = Writer(store, lambda stored, refused: None, note)
    writer.put(record(1))
    assert writer.step() is None
    change(
        database,
        "ALTER TABLE finished_jobs DROP COLUMN trial",
        "ALTER TABLE finished_jobs DROP COLUMN trial_s",
        "ALTER TABLE finished_jobs DROP COLUMN held_gpu_s",
        "ALTER TABLE finished_jobs DROP COLUMN lost_gpu_s",
        "DROP TABLE finished_cpu_job_waits",
        "DROP TABLE finished_cpu_jobs",
        "DROP TABLE counted_cpu_jobs",
        "UPDATE coda_alembic_version SET version_num = '0004'",
    )
    writer.put(record(2))
    assert writer.step() == FIRST_DELAY_S
    assert writer.step() is None
    assert list(store.jobs(*ALWAYS)) == [record(1), record(2)]
    assert opened == [True], "what an earlier opening taught is still known"
    store.close()


OF_ANOTHER = (
    "CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL)",
    "INSERT INTO alembic_version VALUES ('ae1027a6acf')",
)


def versions(url: URL, table: str) -> list[str]:
    engine = create_engine(url)
    with engine.connect() as connection:
        found = list(connection.scalars(text(f"SELECT version_num FROM {table}")))
    engine.dispose()
    return found


def test_a_new_database_may_be_shared_with_an_application_that_uses_alembic(database: URL) -> None:
    """In either order: each has a table of versions of its own."""
    change(database, *OF_ANOTHER)
    store = Store(database)
    store.migrate()
    assert store.write([record(1)]) == 1
    assert versions(database, "alembic_version") == ["ae1027a6acf"]
    change(database, "DROP TABLE alembic_version", *OF_ANOTHER)
    store.migrate()
    assert store.write([record(2)]) == 1
    store.close()


@pytest.mark.parametrize("column", ["", "held_gpu_s", "lost_gpu_s"])
def test_tables_of_this_version_that_were_copied_without_it_are_taken_over(database: URL, column: str) -> None:
    """Also where a column of the newest version is missing."""
    store = Store(database)
    store.migrate()
    assert store.write([record(1)]) == 1
    change(database, "DROP TABLE coda_alembic_version")
    if column:
        change(database, f"ALTER TABLE finished_jobs DROP COLUMN {column}")
    store.migrate()
    assert store.write([record(2)]) == 1
    assert len(list(store.jobs(*ALWAYS))) == 2
    assert versions(database, "coda_alembic_version") == [REVISION]
    store.close()


@pytest.mark.parametrize("revision", ["0001", "0004", "0006"])
def test_the_version_of_an_older_operator_is_taken_over_and_it_may_come_back(database: URL, revision: str) -> None:
    """It knows `alembic_version` alone, and finds there the newest version that it may know."""
    migrated(database, revision)
    store = Store(database)
    store.migrate()
    store.migrate()
    assert store.write([record(1)]) == 1
    assert versions(database, "alembic_version") == ["0006"]
    assert versions(database, "coda_alembic_version") == [REVISION]
    store.close()


def test_tables_whose_version_another_application_wrote_over_are_taken_over_if_they_lack_nothing(database: URL) -> None:
    migrated(database, "0006")
    change(database, "DROP TABLE alembic_version", *OF_ANOTHER)
    store = Store(database)
    store.migrate()
    assert store.write([record(1)]) == 1
    assert versions(database, "alembic_version") == ["ae1027a6acf"]
    store.close()


@pytest.mark.parametrize("of_another", [OF_ANOTHER, ()])
def test_a_table_of_ours_by_its_name_alone_is_an_outage_that_says_what_to_do(
    database: URL, of_another: tuple[str, ...]
) -> None:
    change(database, "CREATE TABLE finished_jobs (id INTEGER)", *of_another)
    store = Store(database)
    with pytest.raises(Outage, match="counted_cpu_jobs is missing; give the history a database or a schema of its own"):
        store.migrate()
    store.close()
