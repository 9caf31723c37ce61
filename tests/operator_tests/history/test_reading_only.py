"""Whoever only reads a store changes nothing, and needs no right to: copies, and stores of older versions, are read."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.engine import URL

from coda.errors import InvalidInput
from coda.history import FinishedJob
from coda_operator.history.store import Store
from coda_operator.history.tables import METADATA
from tests.operator_tests.history.records import record
from tests.operator_tests.history.test_store import ALWAYS, migrated

NOBODY = 65534
SUMS = ("held_gpu_s", "lost_gpu_s")  # GPU-seconds, of version 0007


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that every user may enter, with a store whose last records are in the log that SQLite writes ahead."""
    with tempfile.TemporaryDirectory(prefix="coda-store-") as name:
        made = Path(name)
        made.chmod(0o755)
        store = Store(URL.create("sqlite", database=str(made / "history.sqlite")))
        store.migrate()
        store.write([record(1)])
        store.close()
        yield made


def read(file: Path) -> list[FinishedJob]:
    store = Store(URL.create("sqlite", database=str(file)), reads_only=True)
    try:
        return list(store.jobs(*ALWAYS))
    finally:
        store.close()


def succeeds_for_a_user_without_rights(try_it: Callable[[], bool]) -> bool:
    child = os.fork()
    if child == 0:
        try:
            if os.geteuid() == 0:
                os.setgroups([])
                os.setgid(NOBODY)
                os.setuid(NOBODY)
            os._exit(0 if try_it() else 1)
        finally:
            os._exit(2)
    return os.waitpid(child, 0)[1] == 0


def test_a_copy_that_nobody_may_write_is_read(folder: Path) -> None:
    (folder / "history.sqlite").chmod(0o444)
    folder.chmod(0o555)
    assert succeeds_for_a_user_without_rights(lambda: read(folder / "history.sqlite") == [record(1)])
    folder.chmod(0o755)


def test_a_store_that_somebody_writes_is_read_to_its_last_record(folder: Path) -> None:
    writing = Store(URL.create("sqlite", database=str(folder / "history.sqlite")))
    writing.write([record(2)])  # in the log, as long as this one is open
    assert read(folder / "history.sqlite") == [record(1), record(2)]
    assert succeeds_for_a_user_without_rights(lambda: read(folder / "history.sqlite") == [record(1), record(2)])
    writing.close()


def test_reading_changes_no_byte(folder: Path) -> None:
    """Not even into a file that a log is written ahead of."""
    plain = folder / "plain.sqlite"
    shutil.copy(folder / "history.sqlite", plain)
    engine = create_engine(URL.create("sqlite", database=str(plain)))
    with engine.connect() as connection:
        connection.exec_driver_sql("PRAGMA journal_mode=DELETE")
    engine.dispose()
    before = plain.read_bytes()
    assert read(plain) == [record(1)]
    assert plain.read_bytes() == before


@pytest.mark.parametrize(
    ("revision", "lacks"),
    [
        ("0001", ("owner", "lost_s", "trial", "trial_s", *SUMS)),
        ("0003", ("lost_s", "trial", "trial_s", *SUMS)),
        ("0005", SUMS),
    ],
)
def test_a_store_of_an_older_version_is_read_as_far_as_it_goes(
    database: URL, revision: str, lacks: tuple[str, ...]
) -> None:
    migrated(database, revision)
    old = record(1, waits=())
    names = [column.name for column in METADATA.tables["finished_jobs"].columns if column.name not in lacks]
    row = {name: getattr(old, name) for name in names} | {"ending": old.ending.value}
    places = ", ".join(f":{name}" for name in names)
    engine = create_engine(database)
    with engine.begin() as connection:
        connection.execute(text(f"INSERT INTO finished_jobs ({', '.join(names)}) VALUES ({places})"), row)
    engine.dispose()
    store = Store(database, reads_only=True)
    assert list(store.jobs(*ALWAYS)) == [replace(old, owner=old.namespace if "owner" in lacks else old.owner)]
    assert list(store.cpu_jobs.lines(*ALWAYS)) == []
    store.close()


def test_a_database_without_a_history_is_no_outage(database: URL) -> None:
    store = Store(database, reads_only=True)
    migrated(database, "base")
    with pytest.raises(InvalidInput, match="no history: it has no table finished_jobs"):
        list(store.jobs(*ALWAYS))
    store.close()
