"""Databases that an operator of another version has left: after a roll-back, and from a back-up."""

from __future__ import annotations

import pytest
from sqlalchemy.engine import URL

from coda.errors import Outage
from coda_operator.history.store import Store
from coda_operator.history.writer import FIRST_DELAY_S, Writer
from tests.operator_tests.history.records import record
from tests.operator_tests.history.test_store import ALWAYS, change

NEWER = "UPDATE alembic_version SET version_num = '9999'"


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
        "DROP TABLE finished_cpu_job_waits",
        "DROP TABLE finished_cpu_jobs",
        "DROP TABLE counted_cpu_jobs",
        "UPDATE alembic_version SET version_num = '0004'",
    )
    writer.put(record(2))
    assert writer.step() == FIRST_DELAY_S
    assert writer.step() is None
    assert list(store.jobs(*ALWAYS)) == [record(1), record(2)]
    assert opened == [True], "what an earlier opening taught is still known"
    store.close()
