"""Keyed workers: one at a time per key, woken, timed, backing off. Time is virtual."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from coda.errors import CodaError, Conflict, Outage
from coda_operator.work_queue import FAR_S, GATHER_S, LAST_DELAY_S, LAST_OUTAGE_DELAY_S, LONGEST_DELAY_S, WorkQueue


def now_s() -> float:
    return asyncio.get_running_loop().time()


class Log:
    """Work that notes when it ran for which key; `then` is what it does besides."""

    def __init__(self, then: Callable[[str], Awaitable[float | None]] | None = None) -> None:
        self.ran: list[tuple[str, float]] = []
        self._then = then

    async def __call__(self, key: str) -> float | None:
        self.ran.append((key, now_s()))
        return await self._then(key) if self._then is not None else None


def workers(work: Any) -> WorkQueue:
    return WorkQueue(work, clock=now_s)


async def test_many_wakes_before_it_begins_are_one() -> None:
    log = Log()
    running = workers(log)
    for _ in range(5):
        running.wake("a")
    running.wake("b")
    await asyncio.sleep(1)
    assert log.ran == [("a", 0.0), ("b", 0.0)]


async def test_a_key_is_never_worked_on_twice_at_once_and_again_when_woken_meanwhile() -> None:
    at_work: list[str] = []

    async def slow(key: str) -> None:
        assert key not in at_work
        at_work.append(key)
        await asyncio.sleep(2)
        at_work.remove(key)

    log = Log(slow)
    running = workers(log)
    running.wake("a")
    await asyncio.sleep(1)
    running.wake("a")
    running.wake("a")
    running.wake("b")
    await asyncio.sleep(10)
    assert log.ran == [("a", 0.0), ("b", 1.0), ("a", 2.0)]


async def test_what_changes_together_is_worked_on_once_and_within_the_time_to_gather() -> None:
    log = Log()
    running = workers(log)
    for _ in range(3):
        running.wake_soon("a")
        await asyncio.sleep(GATHER_S / 4)
    await asyncio.sleep(1)
    assert [(key, round(at_s, 2)) for key, at_s in log.ran] == [("a", GATHER_S)]


async def test_a_wake_takes_what_was_gathered_with_it() -> None:
    log = Log()
    running = workers(log)
    running.wake_soon("a")
    running.wake("a")
    running.wake_soon("a")
    await asyncio.sleep(1)
    assert log.ran == [("a", 0.0)]


async def test_what_is_told_while_the_work_is_done_is_gathered_for_the_next_time() -> None:
    async def slow(_key: str) -> float | None:
        await asyncio.sleep(GATHER_S / 2)
        return 100.0

    log = Log(slow)
    running = workers(log)
    running.wake("a")
    await asyncio.sleep(GATHER_S / 4)
    running.wake_soon("a")
    await asyncio.sleep(1)
    assert [round(at_s / GATHER_S, 1) for _, at_s in log.ran] == [0.0, 1.3]


async def test_gathering_never_puts_off_a_look_that_was_asked_for() -> None:
    answers = [GATHER_S, None]

    async def answer(_key: str) -> float | None:
        return answers.pop(0)

    log = Log(answer)
    running = workers(log)
    running.wake("a")
    await asyncio.sleep(GATHER_S / 2)
    running.wake_soon("a")
    await asyncio.sleep(1)
    assert [round(at_s, 2) for _, at_s in log.ran] == [0.0, GATHER_S]


async def test_nothing_gathered_is_worked_on_after_a_stop() -> None:
    log = Log()
    running = workers(log)
    running.wake_soon("a")
    await running.stop()
    await asyncio.sleep(1)
    assert log.ran == []


async def test_it_looks_again_when_the_work_asked_for_it() -> None:
    async def later(_key: str) -> float | None:
        return 100.0 if now_s() < 100 else None

    log = Log(later)
    workers(log).wake("a")
    await asyncio.sleep(1000)
    assert [round(at_s) for _, at_s in log.ran] == [0, 100]


async def test_a_wake_before_the_timer_replaces_it() -> None:
    answers = [100.0, None]

    async def answer(_key: str) -> float | None:
        return answers.pop(0)

    log = Log(answer)
    running = workers(log)
    running.wake("a")
    await asyncio.sleep(50)
    running.wake("a")
    await asyncio.sleep(1000)
    assert [at_s for _, at_s in log.ran] == [0.0, 50.0]


@pytest.mark.parametrize(
    ("error", "first_waits_s"),
    [
        (Conflict("fought"), [1, 2, 4, 8, 16, 30, 30, 30, 60, 120, 240, 300, 300]),
        (Outage("away"), [1, 2, 4, 4, 4, 4, 4, 4, 8, 16, 32, 64, 128, 256, 300, 300]),
    ],
    ids=["fought", "away"],
)
async def test_failures_back_off_up_to_a_limit_for_ever(error: CodaError, first_waits_s: list[int]) -> None:
    """Also after days: the doubling must not end in an overflow."""
    fails = [True]

    async def fail(_key: str) -> None:
        if fails[0]:
            raise error

    log = Log(fail)
    running = workers(log)
    running.wake("a")
    await asyncio.sleep(7 * 24 * 3600)
    times = [at_s for _, at_s in log.ran]
    waits = [after - before for before, after in itertools.pairwise(times)]
    assert [round(wait) for wait in waits[: len(first_waits_s)]] == first_waits_s
    assert len(waits) > 2000
    assert max(waits) < first_waits_s[-1] + 1
    fails[0] = False
    await asyncio.sleep(LONGEST_DELAY_S + 1)
    log.ran.clear()
    fails[0] = True
    running.wake("a")
    await asyncio.sleep(2)
    assert len(log.ran) == 2  # after a success the delays begin anew


async def test_events_during_an_outage_do_not_put_off_what_follows_it() -> None:
    away = [True]

    async def fail(_key: str) -> None:
        if away[0]:
            raise Outage("the Lease is not ours")

    log = Log(fail)
    running = workers(log)
    for _ in range(100):
        running.wake("a")
        await asyncio.sleep(0.005)
    away[0] = False
    log.ran.clear()
    await asyncio.sleep(LAST_OUTAGE_DELAY_S)
    assert [round(at_s, 1) for _, at_s in log.ran] == [1.0]


async def test_an_error_of_our_own_stops_no_other_key() -> None:
    async def stumble(key: str) -> None:
        if key == "bad":
            raise KeyError("spec")

    log = Log(stumble)
    running = workers(log)
    running.wake("bad")
    running.wake("good")
    await asyncio.sleep(4)
    assert [key for key, _ in log.ran] == ["bad", "good", "bad", "bad"]


async def test_stopping_is_for_good() -> None:
    ended: list[str] = []

    async def forever(key: str) -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            ended.append(key)

    log = Log(forever)
    running = workers(log)
    running.wake("a")
    await asyncio.sleep(1)
    await running.stop()
    running.wake("b")
    await asyncio.sleep(10)
    assert (ended, log.ran) == (["a"], [("a", 0.0)])


async def test_a_new_start_begins_from_nothing() -> None:
    """Neither what was woken nor what was to be looked at again, nor how often it had failed."""

    async def fail(key: str) -> float | None:
        raise Outage("away")

    log = Log(fail)
    running = workers(log)
    running.wake("a")
    await asyncio.sleep(5)
    await running.stop()
    running.wake("b")
    failed = len(log.ran)
    await asyncio.sleep(LAST_DELAY_S)
    running.start()
    await asyncio.sleep(LAST_DELAY_S)
    assert len(log.ran) == failed
    began_s = now_s()
    running.wake("a")
    await asyncio.sleep(1.5)
    assert [moment_s - began_s for _, moment_s in log.ran[failed:]] == pytest.approx([0.0, 1.0], abs=0.01)
    await running.stop()


async def test_what_was_stopped_before_it_began_can_be_woken_after_the_next_start() -> None:
    log = Log()
    running = workers(log)
    running.wake("a")
    await running.stop()
    running.start()
    running.wake("a")
    await asyncio.sleep(1)
    assert log.ran == [("a", 0.0)]


async def test_work_of_the_far_future_begins_in_time_whatever_else_waits() -> None:
    due_s = {key: FAR_S * number + number / 7 for number, key in enumerate("abcdefgh")}

    async def wait(key: str) -> float | None:
        return due_s[key] if now_s() < due_s[key] else None

    log = Log(wait)
    running = workers(log)
    for key in due_s:
        running.wake(key)
    await asyncio.sleep(10 * FAR_S)
    last_s = dict(log.ran)
    assert {key: last_s[key] - due_s[key] for key in due_s} == pytest.approx(dict.fromkeys(due_s, 0.0), abs=0.01)


async def test_a_stop_forgets_the_far_future() -> None:
    async def wait(key: str) -> float | None:
        return now_s() + 2 * FAR_S if now_s() < FAR_S else None

    log = Log(wait)
    running = workers(log)
    running.wake("a")
    await asyncio.sleep(1)
    await running.stop()
    running.start()
    await asyncio.sleep(4 * FAR_S)
    assert log.ran == [("a", 0.0)]
