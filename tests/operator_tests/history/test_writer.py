"""The writer: a bounded queue that outlives a store that is away. A record that is refused takes no other with it."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest
from prometheus_client import CollectorRegistry

from coda.history import FinishedJob
from coda_operator.history.outbox import LONGEST_WAIT_S, Outbox
from coda_operator.history.writer import BATCH, LAST_DELAY_S, LONGEST_TRY_S, Key, Writer
from coda_operator.metrics import HistoryMetrics
from tests.operator_tests.history.records import StoreInMemory, record

Told = list[tuple[list[Key], list[Key]]]


def writer_of(store: StoreInMemory, *, most_waiting: int = 1000) -> tuple[Writer, Told]:
    told: Told = []

    def tell(stored: Sequence[Key], refused: Sequence[Key]) -> None:
        told.append((list(stored), list(refused)))

    return Writer(store, tell, most_waiting=most_waiting), told


def test_records_are_written_in_batches_and_told_of() -> None:
    store = StoreInMemory()
    writer, told = writer_of(store)
    for number in range(BATCH + 1):
        assert writer.put(record(number))
    assert writer.step() == 0.0
    assert writer.step() is None
    assert [len(stored) for stored, _ in told] == [BATCH, 1]
    assert len(store.records) == BATCH + 1
    assert writer.waiting == 0


def test_an_hour_away_loses_nothing_and_is_asked_less_and_less_often() -> None:
    store = StoreInMemory(is_away=True)
    writer, told = writer_of(store, most_waiting=3)
    now_s, tries = 0.0, 0
    while now_s < 3600.0:
        accepted = [writer.put(record(number)) for number in range(5)]
        assert accepted == [True, True, True, False, False]
        delay_s = writer.step()
        assert delay_s is not None
        assert delay_s <= LAST_DELAY_S
        now_s, tries = now_s + delay_s, tries + 1
    assert writer.is_away
    assert writer.error == "nobody answers"
    assert tries < 80
    store.is_away = False
    assert writer.step() is None
    assert not writer.is_away
    assert told == [([("uid-0", 1), ("uid-1", 1), ("uid-2", 1)], [])]


def test_a_store_that_stays_away_is_said_again_in_each_hour(caplog: pytest.LogCaptureFixture) -> None:
    store, now_s = StoreInMemory(is_away=True), [0.0]
    writer = Writer(store, lambda stored, refused: None, clock=lambda: now_s[0])
    for hour in range(1, 9):
        caplog.clear()
        while now_s[0] < hour * 3600.0:
            delay_s = writer.step()
            assert delay_s is not None
            now_s[0] += delay_s
        assert 5 <= caplog.text.count("the history store is away") <= 7


def test_whoever_could_not_use_the_open_store_is_called_again_after_the_next_records() -> None:
    answers, moments = iter([False, False, True]), list[int]()
    store = StoreInMemory()

    def opened() -> bool:
        moments.append(len(store.records))
        return next(answers)

    writer = Writer(store, lambda stored, refused: None, opened)
    assert writer.step() is None
    for number in range(3):
        writer.put(record(number))
        assert writer.step() is None
    assert moments == [0, 1, 2]


def test_a_record_that_is_refused_takes_no_other_with_it() -> None:
    store = StoreInMemory(refused=("uid-1",))
    writer, told = writer_of(store)
    for number in range(3):
        writer.put(record(number))
    assert writer.step() is None
    assert told == [([("uid-0", 1), ("uid-2", 1)], [("uid-1", 1)])]
    assert writer.waiting == 0


def test_a_record_that_is_discarded_is_not_written() -> None:
    store = StoreInMemory(is_away=True)
    writer, told = writer_of(store)
    writer.put(record(1))
    writer.step()
    writer.discard(("uid-1", 1))
    store.is_away = False
    assert writer.step() is None
    assert (store.records, told) == ({}, [])


def test_the_thread_writes_what_is_put_and_ends_when_it_is_stopped() -> None:
    store, done = StoreInMemory(), threading.Event()
    writer = Writer(store, lambda stored, refused: done.set())
    thread = writer.run_in_thread()
    writer.put(record(1))
    assert done.wait(60)
    writer.stop()
    thread.join(60)
    assert not thread.is_alive()
    assert list(store.records) == [("uid-1", 1)]


def test_a_fault_of_ours_does_not_end_the_thread() -> None:
    class Faulty(StoreInMemory):
        def write(self, jobs: Sequence[FinishedJob]) -> int:
            if self.writes == 0:
                self.writes = 1
                raise ZeroDivisionError
            return super().write(jobs)

    store, done = Faulty(), threading.Event()
    writer = Writer(store, lambda stored, refused: done.set())
    writer.put(record(1))
    thread = writer.run_in_thread()
    assert done.wait(60)
    writer.stop()
    thread.join(60)
    assert list(store.records) == [("uid-1", 1)]


class Hanging(StoreInMemory):
    """A store that takes a connection and says nothing, until `goes_on` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.goes_on = threading.Event(), threading.Event()

    def write(self, jobs: Sequence[FinishedJob]) -> int:
        self.asked.set()
        assert self.goes_on.wait(60)
        return super().write(jobs)


def test_a_store_that_hangs_is_away_and_holds_no_job_for_ever() -> None:
    store, stored, now_s = Hanging(), threading.Event(), [1000.0]
    writer = Writer(store, lambda stored_keys, refused: stored.set(), clock=lambda: now_s[0])
    woken: list[str] = []
    outbox = Outbox(writer, woken.append, HistoryMetrics(CollectorRegistry()), clock=lambda: now_s[0])
    outbox.post("team-a/job", record(1), now_s[0])
    thread = writer.run_in_thread()
    assert store.asked.wait(60)
    now_s[0] += LONGEST_TRY_S
    assert not writer.is_away, "a slow statement, and one more, may take so long"
    now_s[0] += 1.0
    assert (writer.is_away, writer.error) == (True, "it has not answered for 61 s")
    outbox.post("team-a/job", record(1), 1000.0)
    assert woken == []
    now_s[0] = 1000.0 + LONGEST_WAIT_S
    outbox.post("team-a/job", record(1), 1000.0)
    assert (woken, outbox.is_settled("uid-1", 1)) == (["team-a/job"], True)
    store.goes_on.set()
    assert stored.wait(60)
    writer.stop()
    thread.join(60)
    assert (writer.is_away, writer.error) == (False, "")
