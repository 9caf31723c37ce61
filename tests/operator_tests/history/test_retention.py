"""Records of finished jobs go after `CODA_HISTORY_DAYS`: by default never."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Engine, event, func, select
from sqlalchemy.engine import URL

from coda_operator.cpu_history.keeper import Retention, delete_old_jobs
from coda_operator.cpu_history.recorder import TIDY_EVERY_S
from coda_operator.history.store import Store
from coda_operator.history.tables import FINISHED_JOB_WAITS
from tests.operator_tests.cpu_history.replicas import Replica, Table
from tests.operator_tests.fake_cluster import FakeCluster, clock
from tests.operator_tests.history.records import record
from tests.operator_tests.history.test_store import ALWAYS

DAY_S = 86400.0
NOW_S = 1_800_000_000.0


@pytest.fixture
def store(database: URL) -> Iterator[Store]:
    store = Store(database)
    store.migrate()
    yield store
    store.close()


def jobs_of_days(*days: float) -> list[Any]:
    """One job for each: it ended so many days ago."""
    return [record(number, ended_s=NOW_S - ago * DAY_S) for number, ago in enumerate(days)]


def left(store: Store) -> list[str]:
    return [job.uid for job in store.jobs(*ALWAYS)]


def waits(store: Store) -> int:
    with store._engine.connect() as connection:
        return int(connection.execute(select(func.count()).select_from(FINISHED_JOB_WAITS)).scalar_one())


def test_old_records_go_with_their_waits(store: Store) -> None:
    store.write(jobs_of_days(50, 40, 20, 1))
    assert store.delete_before(NOW_S - 30 * DAY_S) == 2
    assert left(store) == ["uid-2", "uid-3"]
    assert waits(store) == 4
    assert store.delete_before(NOW_S - 30 * DAY_S) == 0


def test_a_job_that_is_recorded_again_after_its_record_went_goes_once_more(store: Store) -> None:
    """An operator that starts records finished jobs that it still holds."""
    old = jobs_of_days(50)
    store.write(old)
    for _ in range(2):
        assert store.delete_before(NOW_S - 30 * DAY_S) == 1
        assert store.write(old) == 1


def test_records_go_in_transactions_that_end_in_time(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """And a call ends in time, too: the rest goes with the next one."""
    monkeypatch.setattr("coda_operator.history.store.BATCH", 10)
    monkeypatch.setattr("coda_operator.history.store.MOST_DELETED", 30)
    store.write(jobs_of_days(*[40] * 36))
    deleted: list[int] = []

    def note(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith("DELETE"):
            deleted.append(cursor.rowcount)

    event.listen(Engine, "after_cursor_execute", note)
    try:
        assert [store.delete_before(NOW_S) for _ in range(3)] == [30, 6, 0]
    finally:
        event.remove(Engine, "after_cursor_execute", note)
    assert max(deleted) == 10
    assert left(store) == []


@pytest.mark.parametrize(("days", "expected"), [(0, ["uid-0", "uid-1", "uid-2"]), (30, ["uid-1", "uid-2"])])
def test_zero_days_are_for_ever(store: Store, days: int, expected: list[str]) -> None:
    store.write(jobs_of_days(40, 20, 1))
    delete_old_jobs(store, Retention(cpu_days=1, job_days=days), NOW_S)
    assert left(store) == expected


async def test_the_leader_asks_for_it_again_and_again() -> None:
    asked: list[float] = []
    replica = Replica(FakeCluster(), Table(), delete_jobs=asked.append)
    async with replica.running(leads=False):
        await asyncio.sleep(3 * TIDY_EVERY_S)
        assert asked == []
        async with replica.leading():
            await asyncio.sleep(2.5 * TIDY_EVERY_S)
    assert len(asked) == 3
    assert asked[-1] == pytest.approx(clock(), abs=TIDY_EVERY_S)
