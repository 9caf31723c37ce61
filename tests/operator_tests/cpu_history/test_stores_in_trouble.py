"""A store that is away, hangs, refuses, or comes back as another one: what the recorder does with it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from coda.history.cpu_jobs import FinishedCpuJob
from coda_operator.cpu_history.recorder import TIDY_EVERY_S
from coda_operator.history.writer import LONGEST_TRY_S, StoreFull
from tests.operator_tests.cpu_history.pods import PODS, phase
from tests.operator_tests.cpu_history.replicas import Replica, Table, put
from tests.operator_tests.fake_cluster import FakeCluster


async def test_while_the_store_is_away_records_wait(api: FakeCluster, table: Table) -> None:
    replica = Replica(api, table)
    table.is_away = True
    async with replica.running():
        for number in range(20):
            put(api, phase("Failed"), f"p{number}")
            api.remove(f"{PODS}/p{number}")
        await asyncio.sleep(600)
        assert replica.count("waiting") == 20
        table.is_away = False
        await asyncio.sleep(120)
        assert (replica.count("waiting"), replica.count("stored_total"), replica.count("lost")) == (0, 20, 0)
    assert len(table.written) == 20


async def test_the_store_is_away_by_the_word_of_who_leads(api: FakeCluster, table: Table) -> None:
    replica = Replica(api, table)
    table.is_away = True
    async with replica.running(leads=False):
        async with replica.leading():
            assert not replica.recorder.is_away, "nothing was tried yet"
            put(api, phase("Failed"))
            await asyncio.sleep(60)
            assert replica.recorder.is_away
            table.is_away = False
            await asyncio.sleep(120)
            assert not replica.recorder.is_away
            table.is_away = True
            put(api, phase("Failed"), "other")
            await asyncio.sleep(60)
            assert replica.recorder.is_away
        assert not replica.recorder.is_away


async def test_a_record_that_the_store_refuses_takes_no_other_with_it(api: FakeCluster, table: Table) -> None:
    replica = Replica(api, table)
    table.refused = "uid-p1"
    async with replica.running():
        for number in range(3):
            put(api, phase("Failed"), f"p{number}")
        await asyncio.sleep(30)
    assert sorted(job.uid for job in table.written) == ["uid-p0", "uid-p2"]
    assert (replica.count("refused_total"), replica.count("waiting")) == (1, 0)


async def test_a_store_that_hangs_is_away(api: FakeCluster, table: Table) -> None:
    answers = asyncio.Event()

    async def late(function: Callable[..., Any], *values: Any) -> Any:
        await answers.wait()
        return function(*values)

    replica = Replica(api, table, aside=late)
    async with replica.running(leads=False):
        async with replica.leading():
            put(api, phase("Failed"))
            await asyncio.sleep(LONGEST_TRY_S - 5.0)
            assert not replica.recorder.is_away
            await asyncio.sleep(10.0)
            assert replica.recorder.is_away
        assert not replica.recorder.is_away, "the next leader's word counts"
        async with replica.leading():
            answers.set()
            await asyncio.sleep(2 * LONGEST_TRY_S)
            assert not replica.recorder.is_away
    assert [job.uid for job in table.written] == ["uid-work"]


async def test_a_fault_of_ours_does_not_end_the_operator(api: FakeCluster, table: Table) -> None:
    has_fault = True

    async def faulty(function: Callable[..., Any], *values: Any) -> Any:
        if has_fault:
            raise ZeroDivisionError
        return function(*values)

    replica = Replica(api, table, aside=faulty)
    async with replica.running():
        put(api, phase("Failed"))
        await asyncio.sleep(60)
        assert replica.recorder.is_away
        has_fault = False
        await asyncio.sleep(120)
        assert not replica.recorder.is_away
    assert [job.uid for job in table.written] == ["uid-work"]


async def test_after_a_failed_try_the_schema_is_brought_up_to_date_again(api: FakeCluster, table: Table) -> None:
    """Somebody may have put a back-up of an older version in its place."""
    replica = Replica(api, table)
    async with replica.running():
        await asyncio.sleep(10)
        assert replica.openings == 1
        table.is_away = True
        put(api, phase("Failed"))
        await asyncio.sleep(5)
        table.is_away = False
        await asyncio.sleep(120)
        assert replica.openings > 1
        openings = replica.openings
        put(api, phase("Failed"), "other")
        await asyncio.sleep(120)
        assert replica.openings == openings


class SmallTable(Table):
    """A store with place for so many lines."""

    place = 3

    def write(self, jobs: Sequence[FinishedCpuJob], now_s: float) -> int:
        if len(self.written) >= self.place:
            raise StoreFull("database or disk is full")
        return super().write(jobs, now_s)


async def test_a_full_store_makes_room_by_itself(api: FakeCluster) -> None:
    table = SmallTable()
    replica = Replica(api, table, kept_s=3600.0)
    async with replica.running():
        for number in range(3):
            put(api, phase("Failed"), f"p{number}")
        await asyncio.sleep(3600.0)
        put(api, phase("Failed"), "last")
        await asyncio.sleep(TIDY_EVERY_S / 2)
        assert [job.uid for job in table.written] == ["uid-last"]
        assert not replica.recorder.is_away
