"""The writer is killed at every single thing it says to the database. Whoever comes next loses nothing and doubles
nothing."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Iterator
from typing import NoReturn

from sqlalchemy import event
from sqlalchemy.engine import URL, Engine

from coda_operator.history.store import Store
from coda_operator.history.writer import Writer
from tests.operator_tests.history.records import record

RECORDS = [record(number) for number in range(3)]
ALWAYS = (0.0, 2e10)
AT_LEAST = 12  # statements and commits, from an empty database on


def live(url: URL, last: int) -> NoReturn:
    """A process that migrates and writes, and dies just before it says its `last` thing."""
    told = itertools.count(1)

    def die_in_time(*_: object) -> None:
        if next(told) == last:
            os.kill(os.getpid(), signal.SIGKILL)

    try:
        for moment in ("before_cursor_execute", "commit"):
            event.listen(Engine, moment, die_in_time)
        writer = Writer(Store(url), lambda stored, refused: None)
        for job in RECORDS:
            writer.put(job)
        done = writer.step() is None
        os._exit(0 if done and not writer.is_away else 1)
    finally:
        os._exit(2)


def is_killed(url: URL, last: int) -> bool:
    child = os.fork()
    if child == 0:
        live(url, last)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return True
    assert os.WEXITSTATUS(status) == 0
    return False


def test_a_writer_that_is_killed_again_and_again_gets_a_little_further(database: URL) -> None:
    """Each process dies one thing later than the one before, on what that one left."""
    deaths = 0
    for last in range(1, 100):
        if not is_killed(database, last):
            break
        deaths += 1
    store = Store(database)
    assert list(store.jobs(*ALWAYS)) == RECORDS
    store.close()
    assert deaths >= 4


def test_killed_at_each_thing_it_says_from_an_empty_database_on(fresh_databases: Iterator[URL]) -> None:
    for last, url in enumerate(fresh_databases, start=1):
        killed = is_killed(url, last)
        assert not is_killed(url, 0)  # the next process, which nobody kills
        store = Store(url)
        assert list(store.jobs(*ALWAYS)) == RECORDS, f"killed at {last}"
        store.close()
        if not killed:
            assert last > AT_LEAST
            break
    else:
        raise AssertionError("there is more to say than these tests kill at")
