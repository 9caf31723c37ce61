"""The history of one process: its thread, its loop and a real file, wired as in `coda_operator.__main__`.

In real time: a thread does not wait for a virtual clock."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry
from sqlalchemy.engine import URL

from coda.allocator import Category
from coda.errors import Outage
from coda_operator.history import HistoryKeeper
from coda_operator.history.store import Store
from coda_operator.view.experience import LearnedCores
from tests.operator_tests.fake_cluster import FakeCluster
from tests.operator_tests.history.records import record
from tests.operator_tests.view.test_packed_jobs import job_json

LIMIT_S = 60.0
END_S = record(1).ended_s


class Process:
    """A history whose wakes are kept."""

    def __init__(self, url: URL | None, kind: type[Store] = Store) -> None:
        self.cpu_jobs_are_away = False
        self.woken: list[str] = []
        self.learned = LearnedCores()
        self.registry = CollectorRegistry()
        self.keeper = HistoryKeeper(
            url and kind(url),
            FakeCluster(),
            self.woken.append,
            self.learned,
            self.registry,
            cpu_jobs_away=lambda: self.cpu_jobs_are_away,
            clock=lambda: END_S + 60.0,
        )

    def count(self, name: str) -> float | None:
        return self.registry.get_sample_value(f"coda_operator_history_{name}")


def in_real_time(story: Callable[[], Any]) -> None:
    asyncio.run(story())


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not true():
            await asyncio.sleep(0.01)


def test_a_record_is_stored_and_its_job_woken(tmp_path: Path) -> None:
    url = URL.create("sqlite", database=str(tmp_path / "made" / "history.sqlite"))
    process = Process(url)

    async def story() -> None:
        process.keeper.start()
        process.keeper.outbox.post("team-1/train-1", record(1), END_S)
        await until(lambda: process.woken == ["team-1/train-1"])
        process.keeper.stop()

    in_real_time(story)
    assert process.keeper.outbox.is_settled("uid-1", 1)
    assert (process.count("stored_total"), process.count("waiting"), process.count("away")) == (1, 0, 0)
    store = Store(url)
    assert list(store.jobs(0.0, 2e10)) == [record(1)]
    store.close()


def test_the_next_process_knows_the_start_points_of_jobs_that_are_gone(tmp_path: Path) -> None:
    url = URL.create("sqlite", database=str(tmp_path / "history.sqlite"))
    store = Store(url)
    store.migrate()
    store.write([record(1, namespace="team-7", category=Category.NLP.value, cores_tuned=20)])
    store.close()
    process = Process(url)
    next_job = job_json(7, "Queued")

    async def story() -> None:
        process.keeper.start()
        await until(lambda: process.learned.cores_for(next_job, 64, 64) == 20)
        process.keeper.stop()

    assert process.learned.cores_for(next_job, 64, 64) is None
    in_real_time(story)


class SlowOnce(Store):
    """A store that answers what was tuned only when it is asked again."""

    is_slow = True

    def tuned(self, since_s: float) -> list[tuple[str, str, int, int]]:
        if self.is_slow:
            self.is_slow = False
            raise Outage("canceling statement due to statement timeout")
        return super().tuned(since_s)


def test_start_points_that_could_not_be_read_are_when_a_job_has_ended(tmp_path: Path) -> None:
    url = URL.create("sqlite", database=str(tmp_path / "history.sqlite"))
    store = Store(url)
    store.migrate()
    store.write([record(1, namespace="team-7", category=Category.NLP.value, cores_tuned=20)])
    store.close()
    process = Process(url, SlowOnce)
    next_job = job_json(7, "Queued")

    async def story() -> None:
        process.keeper.start()
        process.keeper.outbox.post("team-1/train-1", record(2), END_S)
        await until(lambda: process.woken == ["team-1/train-1"])
        process.keeper.outbox.post("team-1/train-2", record(3), END_S)
        await until(lambda: process.learned.cores_for(next_job, 64, 64) == 20)
        process.keeper.stop()

    in_real_time(story)


def test_a_folder_that_cannot_be_made_is_an_outage_and_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    process = Process(URL.create("sqlite", database=str(tmp_path / "file" / "history.sqlite")))

    async def story() -> None:
        process.keeper.start()
        process.keeper.outbox.post("team-1/train-1", record(1), END_S)
        await until(lambda: process.count("away") == 1)
        process.keeper.stop()

    in_real_time(story)
    assert process.count("waiting") == 1
    assert not process.keeper.outbox.is_settled("uid-1", 1)


def test_a_store_that_takes_no_cpu_jobs_is_away_too(tmp_path: Path) -> None:
    process = Process(URL.create("sqlite", database=str(tmp_path / "history.sqlite")))
    assert process.count("away") == 0
    process.cpu_jobs_are_away = True
    assert process.count("away") == 1


def test_without_a_store_every_job_may_go() -> None:
    process = Process(None)
    assert process.keeper.outbox.is_settled("uid-1", 1)
    assert process.count("away") is None


def test_an_operator_without_a_store_loads_no_database_driver() -> None:
    script = "import sys, coda_operator.__main__; print(sorted({'sqlalchemy', 'alembic', 'psycopg'} & {*sys.modules}))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
