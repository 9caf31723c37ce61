"""What SQLite does for the questions of the store: it looks records up, however long the history is."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import Engine, event
from sqlalchemy.engine import URL

from coda_operator.history.store import Store
from tests.operator_tests.history.records import record
from tests.operator_tests.history.test_store import ALWAYS

SCAN = re.compile(r"SCAN (TABLE )?(finished|counted)_")
LATEST = re.compile(r"SCAN (TABLE )?finished_jobs USING INDEX finished_jobs_by_end")
"""From the last end back, as far as a LIMIT says."""
OLD_LIBRARY = 999
"""Values that a statement may have in SQLite before 3.32. Source: its page of limits."""


@contextmanager
def plans() -> Iterator[list[tuple[str, int, list[str]]]]:
    """Each question and each deletion: its words, its values and the steps of its plan."""
    found: list[tuple[str, int, list[str]]] = []

    def note(_connection: Any, cursor: Any, statement: str, values: Any, *_: Any) -> None:
        if statement.startswith(("SELECT", "DELETE")):
            steps = cursor.connection.execute(f"EXPLAIN QUERY PLAN {statement}", values).fetchall()
            found.append((statement, len(values), [step[3] for step in steps]))

    event.listen(Engine, "before_cursor_execute", note)
    try:
        yield found
    finally:
        event.remove(Engine, "before_cursor_execute", note)


ASKED: list[Callable[[Store], object]] = [
    lambda store: list(store.jobs(*ALWAYS)),
    lambda store: store.runs(20),
    lambda store: store.tuned(record(0).ended_s),
    lambda store: store.cpu_use(*ALWAYS),
    lambda store: list(store.cpu_jobs.lines(*ALWAYS)),
    lambda store: store.delete_before(record(900).ended_s),
    lambda store: store.cpu_jobs.delete_before(record(900).ended_s),
    lambda store: store.cpu_jobs.forget_counted(record(900).ended_s, ()),
]
NAMES = ("jobs", "runs", "tuned", "cpu_use", "lines", "delete jobs", "delete lines", "forget counted")


@pytest.mark.parametrize("ask", ASKED, ids=NAMES)
def test_no_question_reads_all_of_the_history(tmp_path: Any, ask: Callable[[Store], object]) -> None:
    """A batch that reads all costs more with each year, and the questions come every few minutes."""
    store = Store(URL.create("sqlite", database=str(tmp_path / "history.sqlite")))
    store.migrate()
    for start in range(0, 1200, 300):
        store.write([record(number) for number in range(start, start + 300)])
    with plans() as found:
        ask(store)
    store.close()
    assert found
    for statement, values, steps in found:
        scans = [step for step in steps if SCAN.match(step)]
        if "LIMIT" in statement:
            scans = [step for step in scans if not LATEST.match(step)]
        assert scans == [], statement
        assert values <= OLD_LIBRARY


def test_another_end_of_a_job_has_waits_of_its_own_and_goes_at_its_own_time(database: URL) -> None:
    """Its records have one uid: each is read, and deleted, by its attempt."""
    store = Store(database)
    store.migrate()
    first, second = record(1, waits=(("Queued", 3.0),)), record(1, attempt=2, ended_s=record(9).ended_s)
    other = record(1, attempt=3, ended_s=record(5).ended_s, waits=())
    store.write([first, second, other])
    assert list(store.jobs(*ALWAYS)) == [first, other, second]
    assert list(store.jobs(second.ended_s, second.ended_s + 1.0)) == [second]
    assert store.delete_before(second.ended_s) == 2
    assert list(store.jobs(*ALWAYS)) == [second]
    store.close()
