"""A volume that is full keeps a reserve: what was deleted makes room for what comes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from psycopg.errors import DiskFull
from sqlalchemy import Engine, event
from sqlalchemy.engine import URL

from coda_operator.history.engine import RESERVE_BYTES
from coda_operator.history.store import Store
from coda_operator.history.writer import StoreFull
from tests.operator_tests.cpu_history.test_table import HOUR_S, job
from tests.operator_tests.history.databases import PostgreSQL
from tests.operator_tests.history.records import record

VOLUME_BYTES = 3 * 2**20


@pytest.fixture
def volume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A volume of which SQLite's files may take so much, and the reserve is the rest."""

    def statvfs(_folder: object) -> os.statvfs_result:
        free = VOLUME_BYTES + RESERVE_BYTES - sum(file.stat().st_size for file in tmp_path.iterdir())
        return os.statvfs_result((4096, 4096, 0, 0, free // 4096, 0, 0, 0, 0, 255))

    monkeypatch.setattr("coda_operator.history.engine.LARGEST_RESERVE", 1.0)
    monkeypatch.setattr(os, "statvfs", statvfs)
    return tmp_path


def fill(store: Store) -> int:
    """Write lines of one pod each until there is no place; return how many."""
    batch = 500
    for begin in range(0, 100_000, batch):
        pods = [job(begin + number, controller=f"c{begin + number}") for number in range(batch)]
        try:
            store.cpu_jobs.write(pods, HOUR_S)
        except StoreFull:
            return begin
    raise AssertionError("it is never full")


def fill_with_records(store: Store) -> int:
    """Write records of TrainingJobs until there is no place; return how many."""
    for begin in range(0, 100_000, 100):
        try:
            store.write([record(number) for number in range(begin, begin + 100)])
        except StoreFull:
            return begin
    raise AssertionError("it is never full")


def is_full(store: Store, number: int) -> bool:
    try:
        store.write([record(number)])
    except StoreFull:
        return True
    return False


def test_a_full_volume_has_room_again_once_old_lines_are_deleted(volume: Path) -> None:
    store = Store(URL.create("sqlite", database=str(volume / "history.sqlite")))
    store.migrate()
    fill(store)
    assert (volume / "history.sqlite").stat().st_size <= VOLUME_BYTES
    assert any(is_full(store, number) for number in range(10_000)), "what is left of the last pages"
    store.migrate()  # as after every failed try
    assert store.cpu_jobs.delete_before(HOUR_S + 3600.0) > 0
    assert store.write([record(10_001)]) == 1
    store.close()


def test_a_volume_that_is_full_of_training_jobs_has_room_again_once_old_records_are_deleted(volume: Path) -> None:
    store = Store(URL.create("sqlite", database=str(volume / "history.sqlite")))
    store.migrate()
    filled = fill_with_records(store)
    assert store.cpu_jobs.delete_before(record(filled).ended_s) == 0
    assert any(is_full(store, number) for number in range(filled, 2 * filled))
    store.migrate()
    assert store.delete_before(record(filled // 2).ended_s) == filled // 2
    assert store.write([record(3 * filled)]) == 1
    store.close()


def test_a_volume_that_was_enlarged_is_used(volume: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(URL.create("sqlite", database=str(volume / "history.sqlite")))
    store.migrate()
    lines = fill(store)
    monkeypatch.setattr("tests.operator_tests.history.test_full_volumes.VOLUME_BYTES", 2 * VOLUME_BYTES)
    more = [job(lines + number, controller=f"more{number}") for number in range(500)]
    assert store.cpu_jobs.write(more, HOUR_S) == 500
    store.close()


def test_a_server_without_space_is_full_too(server: PostgreSQL) -> None:
    store = Store(server.new_database())
    store.migrate()

    def refuse(*_: object) -> None:
        raise DiskFull("could not extend file: No space left on device")

    event.listen(Engine, "do_execute", refuse)
    try:
        with pytest.raises(StoreFull):
            store.write([record(1)])
    finally:
        event.remove(Engine, "do_execute", refuse)
    store.close()
