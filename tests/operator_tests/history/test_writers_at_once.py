"""Whoever writes waits for another writer, also if it has read before: on SQLite one writes at a time."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, event
from sqlalchemy.engine import URL

from coda.errors import Outage
from coda_operator.history.store import Store
from tests.operator_tests.cpu_history.test_table import job
from tests.operator_tests.history.records import record
from tests.operator_tests.history.test_store import ALWAYS, migrated

LATER_S = 1.9e10
SOON_S = 0.3


@contextmanager
def after_the_first_read(do: Callable[[], None]) -> Iterator[None]:
    """Do something between what a transaction reads first and what it writes then."""
    mine, is_done = threading.current_thread(), threading.Event()

    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith("SELECT") and threading.current_thread() is mine and not is_done.is_set():
            is_done.set()
            do()

    event.listen(Engine, "after_cursor_execute", note)
    try:
        yield
    finally:
        event.remove(Engine, "after_cursor_execute", note)
    assert is_done.is_set()


DELETIONS: list[Callable[[Store], int]] = [
    lambda store: store.delete_before(LATER_S),
    lambda store: store.cpu_jobs.delete_before(LATER_S),
    lambda store: store.cpu_jobs.forget_counted(LATER_S, ()),
]


@pytest.mark.parametrize("delete", DELETIONS, ids=["jobs", "lines", "counted"])
def test_old_records_go_beside_a_writer(database: URL, delete: Callable[[Store], int]) -> None:
    """They did not: "database is locked", at once, and the history counted as away."""
    store, other = Store(database), Store(database)
    store.migrate()
    store.write([record(1)])
    store.cpu_jobs.write([job(1)], 5.0)
    writer = threading.Thread(target=lambda: other.write([record(2, ended_s=LATER_S + 1.0)]))

    def write_meanwhile() -> None:
        writer.start()
        writer.join(SOON_S)  # on SQLite it has to wait for the deletion

    with after_the_first_read(write_meanwhile):
        assert delete(store) == 1
    writer.join()
    assert record(2, ended_s=LATER_S + 1.0) in list(store.jobs(*ALWAYS))
    store.close()
    other.close()


def test_an_older_schema_is_brought_up_to_date_beside_a_writer(tmp_path: Path) -> None:
    url = URL.create("sqlite", database=str(tmp_path / "history.sqlite"))
    migrated(url, "0006")
    store, other = Store(url), Store(url)
    writer = threading.Thread(target=lambda: other.cpu_jobs.write([job(1)], 5.0))

    def write_meanwhile() -> None:
        writer.start()
        writer.join(SOON_S)

    with after_the_first_read(write_meanwhile):
        store.migrate()
    writer.join()
    assert store.cpu_use(*ALWAYS).jobs == 1
    store.close()
    other.close()


def test_whoever_reads_waits_for_no_writer(tmp_path: Path) -> None:
    store, other = (Store(URL.create("sqlite", database=str(tmp_path / "history.sqlite"))) for _ in range(2))
    store.migrate()
    store.write([record(1)])
    read: list[object] = []

    def read_meanwhile() -> None:
        reader = threading.Thread(target=lambda: read.append(list(other.jobs(*ALWAYS))))
        reader.start()
        reader.join(SOON_S * 30)

    with after_the_first_read(read_meanwhile):
        store.delete_before(LATER_S)
    assert read == [[record(1)]]
    store.close()
    other.close()


def test_a_writer_that_waited_in_vain_writes_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coda_operator.history.engine.STATEMENT_S", 0.05)
    store = Store(URL.create("sqlite", database=str(tmp_path / "history.sqlite")))
    store.migrate()
    other = sqlite3.connect(tmp_path / "history.sqlite", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    for _ in range(2):
        with pytest.raises(Outage, match="database is locked"):
            store.write([record(1)])
    other.execute("COMMIT")
    assert store.write([record(1)]) == 1
    other.close()
    store.close()
