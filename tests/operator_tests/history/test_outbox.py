"""When the record of a job that has waited for a day is dropped: only after a try that it waited for."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from prometheus_client import CollectorRegistry

from coda.history import FinishedJob
from coda_operator.history.outbox import LONGEST_WAIT_S, Outbox
from coda_operator.history.writer import LONGEST_TRY_S, Writer
from coda_operator.metrics import HistoryMetrics
from tests.operator_tests.history.records import StoreInMemory, record

NOW_S = 1_700_000_000.0
DAYS_AGO_S = NOW_S - 3 * LONGEST_WAIT_S


class Box:
    """An outbox and its writer; a test moves both clocks."""

    def __init__(self, store: StoreInMemory, *, most_waiting: int = 1000) -> None:
        self.now_s = NOW_S
        clock = lambda: self.now_s  # noqa: E731
        self.writer = Writer(
            store,
            lambda stored, refused: self.outbox.on_stored(stored, refused),
            most_waiting=most_waiting,
            clock=clock,
        )
        self.outbox = Outbox(self.writer, lambda job: None, HistoryMetrics(CollectorRegistry()), clock=clock)

    def asks(self, number: int, since_s: float = DAYS_AGO_S) -> bool:
        """Whether the job may go, asked a minute after the last time."""
        self.now_s += 60.0
        if not self.outbox.is_settled(f"uid-{number}", 1):
            self.outbox.post(f"team-a/job-{number}", record(number), since_s)
        return self.outbox.is_settled(f"uid-{number}", 1)


def test_a_record_is_not_dropped_for_an_outage_that_it_did_not_wait_for() -> None:
    """A job was deleted days ago, and its pod went just now, while the database restarts."""
    store = StoreInMemory(is_away=True)
    box = Box(store)
    assert not box.asks(1, NOW_S)
    box.writer.step()
    assert not box.asks(2), "the failed try was before it"
    store.is_away = False
    box.writer.step()
    assert box.asks(2)
    assert ("uid-2", 1) in store.records


def test_a_record_that_was_tried_in_vain_is_dropped_after_its_day() -> None:
    store = StoreInMemory(is_away=True)
    box = Box(store)
    assert not box.asks(1)
    box.writer.step()
    assert box.asks(1)
    assert box.writer.waiting == 0


def test_a_record_that_finds_no_place_is_dropped_after_its_day_too() -> None:
    store = StoreInMemory(is_away=True)
    box = Box(store, most_waiting=1)
    assert not box.asks(1, NOW_S)
    assert not box.asks(2)
    box.writer.step()
    assert box.asks(2)


def test_while_the_store_hangs_a_record_waits_as_long_as_a_try_may_take() -> None:
    asked, goes_on = threading.Event(), threading.Event()

    class Hanging(StoreInMemory):
        def write(self, jobs: Sequence[FinishedJob]) -> int:
            asked.set()
            assert goes_on.wait(60)
            return super().write(jobs)

    box = Box(Hanging())
    assert not box.asks(1, NOW_S)
    trying = threading.Thread(target=box.writer.step)
    trying.start()
    assert asked.wait(60)
    box.now_s += 2 * LONGEST_TRY_S
    assert box.writer.is_away
    assert not box.asks(2), "it has waited for no time yet"
    assert not box.asks(2)
    assert box.asks(2)
    goes_on.set()
    trying.join(60)
