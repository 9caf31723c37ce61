"""The lines of CPU jobs on SQLite and on PostgreSQL: each pod counts once, and those of one Job are one line."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Engine, event
from sqlalchemy.engine import URL

from coda.history.cpu_jobs import CpuEnding, CpuUse, FinishedCpuJob, cpu_lines
from coda_operator.history.cpu_job_table import BATCH
from coda_operator.history.store import Store
from tests.operator_tests.history.test_store import change, migrated

HOUR_S = 1_699_999_200.0
ALWAYS = (0.0, 2e10)


def job(number: int = 0, **fields: Any) -> FinishedCpuJob:
    """A pod of two cores that waited for 30 s, 20 of them for cores, and ran for a minute."""
    values: dict[str, Any] = {
        "uid": f"uid-{number}",
        "namespace": "team-a",
        "owner": "ann",
        "kind": "batch/Job",
        "name": "sweep",
        "controller": "uid-sweep",
        "category": "Batch",
        "cpu_m": 2000,
        "memory_bytes": 2**30,
        "ending": CpuEnding.SUCCEEDED,
        "queued_s": HOUR_S + 10.0,
        "released_s": HOUR_S + 40.0,
        "ended_s": HOUR_S + 100.0,
        "waits": (("InsufficientCPU", 20.0), ("Queued", 10.0)),
        "run_s": 55.0,
        "borrows": False,
        "reclaimed": 0,
    }
    return FinishedCpuJob(**(values | fields))


@pytest.fixture
def store(database: URL) -> Any:
    store = Store(database)
    store.migrate()
    yield store
    store.close()


def test_pods_of_a_job_are_one_line_and_each_counts_once(store: Store) -> None:
    jobs = [job(number) for number in range(2000)]
    for begin in range(0, len(jobs), BATCH):
        assert store.cpu_jobs.write(jobs[begin : begin + BATCH], HOUR_S) == BATCH
    assert store.cpu_jobs.write(jobs[:BATCH], HOUR_S) == 0
    (line,) = store.cpu_jobs.lines(*ALWAYS)
    assert line == cpu_lines(jobs)[0]
    assert (line.jobs, line.held_s, line.longest_wait_s) == (2000, 120_000.0, 30.0)
    assert line.waits == (("InsufficientCPU", 40_000.0), ("Queued", 20_000.0))


def test_a_pod_twice_in_one_batch_counts_as_the_first_says(store: Store) -> None:
    assert store.cpu_jobs.write([job(1), job(1, ending=CpuEnding.FAILED)], HOUR_S) == 1
    assert [line.ending for line in store.cpu_jobs.lines(*ALWAYS)] == [CpuEnding.SUCCEEDED]


def test_what_is_not_alike_is_another_line(store: Store) -> None:
    others: list[dict[str, Any]] = [
        {"owner": "bob"},
        {"namespace": "team-b"},
        {"controller": "uid-2"},
        {"category": "Service"},
        {"cpu_m": 4000},
        {"memory_bytes": 1},
        {"ending": CpuEnding.RECLAIMED},
        {"ended_s": HOUR_S + 3601.0},
    ]
    jobs = [job(0), *[job(number, **fields) for number, fields in enumerate(others, start=1)]]
    store.cpu_jobs.write(jobs, HOUR_S)
    lines = [*store.cpu_jobs.lines(*ALWAYS)]
    assert sorted(lines, key=lambda line: line.key) == [*cpu_lines(jobs)]
    assert [line.jobs for line in lines] == [1] * 9


def test_the_use_of_a_span_is_added_up(store: Store) -> None:
    store.cpu_jobs.write([job(1), job(2, borrows=True), job(3, owner="bob", ended_s=HOUR_S + 7300.0, waits=())], HOUR_S)
    assert store.cpu_use(HOUR_S, HOUR_S + 3600.0) == CpuUse(
        jobs=2, core_s=240.0, borrowed_core_s=120.0, lacked_core_s=80.0
    )
    assert store.cpu_use(0.0, 1.0) == CpuUse()


def test_only_waits_for_cores_are_cores_that_were_wanted(store: Store) -> None:
    causes = ("InsufficientCPU", "HeldByPolicy", "VirtualClusterFull", "QuotaExceeded", "InsufficientMemory", "New")
    jobs = [job(number, controller=cause, waits=((cause, 20.0),)) for number, cause in enumerate(causes)]
    store.cpu_jobs.write(jobs, HOUR_S)
    lines = [*store.cpu_jobs.lines(*ALWAYS)]
    assert store.cpu_use(*ALWAYS).lacked_core_s == sum(line.lacked_core_s for line in lines) == 80.0


def test_two_operators_at_once_count_each_pod_once(database: URL) -> None:
    stores = [Store(database), Store(database)]
    stores[0].migrate()
    jobs = [job(number, controller=f"uid-{number % 7}", owner=f"user-{number % 3}") for number in range(400)]
    new, faults = [0, 0], list[BaseException]()

    def work(index: int) -> None:
        try:
            mine = jobs if index else jobs[::-1]
            for begin in range(0, len(mine), 20):
                new[index] += stores[index].cpu_jobs.write(mine[begin : begin + 20], HOUR_S)
        except BaseException as fault:
            faults.append(fault)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []
    assert sum(new) == 400
    lines = sorted(stores[0].cpu_jobs.lines(*ALWAYS), key=lambda line: line.key)
    assert [(line.key, line.jobs) for line in lines] == [(line.key, line.jobs) for line in cpu_lines(jobs)]
    for store in stores:
        store.close()


def test_what_is_counted_is_forgotten_once_the_pod_is_gone(store: Store) -> None:
    store.cpu_jobs.write([job(number) for number in range(3)], HOUR_S)
    store.cpu_jobs.write([job(3)], HOUR_S + 100.0)
    assert store.cpu_jobs.forget_counted(HOUR_S + 50.0, {"uid-1"}) == 2
    assert store.cpu_jobs.write([job(number) for number in range(4)], HOUR_S) == 2  # 0 and 2, which nobody tells again
    assert store.cpu_jobs.forget_counted(HOUR_S, ()) == 0


def test_forgetting_goes_through_all_batches(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coda_operator.history.cpu_job_table.BATCH", 3)
    for number in range(11):
        store.cpu_jobs.write([job(number)], HOUR_S + number // 4)
    stay = {f"uid-{number}" for number in range(0, 11, 2)}
    assert store.cpu_jobs.forget_counted(HOUR_S + 100.0, stay) == 5
    assert store.cpu_jobs.write([job(number) for number in range(11)], HOUR_S) == 5


def test_lines_come_in_batches_and_old_ones_are_deleted(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coda_operator.history.cpu_job_table.BATCH", 2)
    jobs = [job(number, ended_s=HOUR_S + 100.0 + 3600.0 * (number // 2), owner=f"u{number}") for number in range(7)]
    for one in jobs:
        store.cpu_jobs.write([one], HOUR_S)
    assert sorted(line.owner for line in store.cpu_jobs.lines(*ALWAYS)) == [f"u{number}" for number in range(7)]
    assert store.cpu_jobs.delete_before(HOUR_S + 3700.0) == 2
    assert len([*store.cpu_jobs.lines(*ALWAYS)]) == 5
    assert store.cpu_use(*ALWAYS).lacked_core_s == 5 * 40.0  # their waits went, too


def test_old_lines_are_deleted_in_transactions_that_end_in_time(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coda_operator.history.cpu_job_table.BATCH", 10)
    for number in range(36):
        store.cpu_jobs.write(
            [job(number, owner=f"u{number}", ended_s=HOUR_S + 100.0 + 3600.0 * (number == 35))], HOUR_S
        )
    deleted: list[int] = []

    def note(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith("DELETE"):
            deleted.append(cursor.rowcount)

    event.listen(Engine, "after_cursor_execute", note)
    try:
        assert store.cpu_jobs.delete_before(HOUR_S + 3600.0) == 35
    finally:
        event.remove(Engine, "after_cursor_execute", note)
    assert sum(deleted) == 35
    assert max(deleted) <= 10
    assert [line.owner for line in store.cpu_jobs.lines(*ALWAYS)] == ["u35"]


def test_the_largest_request_is_stored(store: Store) -> None:
    store.cpu_jobs.write([job(1, cpu_m=2**62, memory_bytes=2**62)], HOUR_S)
    assert [line.cpu_m for line in store.cpu_jobs.lines(*ALWAYS)] == [2**62]


def test_a_store_of_an_older_operator_has_none(database: URL) -> None:
    migrated(database, "0004")
    store = Store(database)
    assert [*store.cpu_jobs.lines(*ALWAYS)] == []
    store.migrate()
    assert store.cpu_jobs.write([replace(job(1), uid="u" * 64)], HOUR_S) == 1
    store.close()


def test_an_ending_that_a_newer_operator_wrote_is_a_failure(store: Store, database: URL) -> None:
    store.cpu_jobs.write([job(1)], HOUR_S)
    change(database, "UPDATE finished_cpu_jobs SET ending = 'Preempted'")
    assert [line.ending for line in store.cpu_jobs.lines(*ALWAYS)] == [CpuEnding.FAILED]
