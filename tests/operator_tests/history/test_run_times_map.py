"""The ConfigMap of run times: written when jobs have finished, bounded, and read back as it was."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import orjson
import pytest

from coda.errors import InvalidInput, Outage
from coda.history import Account, FinishedJob, FinishedRun, RunGroup, run_groups
from coda.history.cpu_jobs import CpuUse
from coda.history.division import LEAST_JOBS, CategoryUse, PastUse
from coda_kube.api.client import Rejected
from coda_kube.objects.json_types import Json
from coda_kube.objects.run_times import MOST_ACCOUNTS, PATH, groups_from_json, map_json, past_use_from_json
from coda_operator.history.run_times_map import EVERY_S, MOST_GROUPS, USAGE_EVERY_S, RunTimesMap
from tests.operator_tests.fake_cluster import FakeCluster, clock
from tests.operator_tests.history.records import record


async def at_once(function: Callable[..., Any], *values: Any) -> Any:
    return function(*values)


class Records:
    """Runs that a test decides."""

    def __init__(self) -> None:
        self.found = [FinishedRun("team-a", "CV", 8, 60.0)]
        self.is_away = False
        self.used_at_s: list[float] = []

    def runs(self, most: int) -> list[FinishedRun]:
        if self.is_away:
            raise Outage("nobody answers")
        return self.found

    def jobs(self, from_s: float, to_s: float) -> list[FinishedJob]:
        self.used_at_s.append((from_s + to_s) / 2)
        return [record(1, ended_s=clock_s, queued_s=clock_s - 90.0) for clock_s in (from_s + 1.0,)]

    def cpu_use(self, from_s: float, to_s: float) -> CpuUse:
        return CpuUse(jobs=LEAST_JOBS, core_s=90.0, borrowed_core_s=20.0, lacked_core_s=10.0)


async def test_it_is_written_when_jobs_have_finished_and_not_again_for_nothing() -> None:
    api, records = FakeCluster(), Records()
    published = RunTimesMap(api, records, clock=clock, aside=at_once)
    await published.write(records)
    assert groups_from_json(api.item(PATH)) == run_groups(records.found, 10)
    written = len(api.writes())
    await published.write(records)
    assert len(api.writes()) == written
    records.found = [*records.found, FinishedRun("team-a", "CV", 8, 3600.0)]
    await published.write(records)
    assert groups_from_json(api.item(PATH)) == run_groups(records.found, 10)


async def test_it_is_brought_up_to_date_once_a_minute_and_after_an_outage_of_the_store() -> None:
    api, records = FakeCluster(), Records()
    published = RunTimesMap(api, records, clock=clock, aside=at_once)
    records.is_away = True
    task = asyncio.create_task(published.run())
    await asyncio.sleep(3600)
    assert api.writes() == []
    records.is_away = False
    await asyncio.sleep(EVERY_S)
    assert len(api.writes()) == 1
    for number in range(30):  # one every 10 s
        records.found = [*records.found, FinishedRun("team-b", "", number, 10.0)]
        published.note_change()
        await asyncio.sleep(10)
    await asyncio.sleep(EVERY_S)
    task.cancel()
    assert 5 <= len(api.writes()) <= 8
    assert len(groups_from_json(api.item(PATH))) == 31


async def test_a_fault_of_ours_does_not_end_the_operator() -> None:
    class Faulty(Records):
        def runs(self, most: int) -> list[FinishedRun]:
            if self.is_away:
                raise ZeroDivisionError
            return self.found

    api, records = FakeCluster(), Faulty()
    records.is_away = True
    task = asyncio.create_task(RunTimesMap(api, records, clock=clock, aside=at_once).run())
    await asyncio.sleep(3 * EVERY_S)
    assert not task.done()
    records.is_away = False
    await asyncio.sleep(2 * EVERY_S)
    task.cancel()
    assert len(api.writes()) == 1


async def test_the_use_of_a_week_is_read_every_ten_minutes() -> None:
    api, records = FakeCluster(), Records()
    task = asyncio.create_task((published := RunTimesMap(api, records, clock=clock, aside=at_once)).run())
    for _ in range(60):  # for an hour
        published.note_change()
        await asyncio.sleep(EVERY_S)
    task.cancel()
    assert len(records.used_at_s) == 6
    assert {after - before for before, after in pairwise(records.used_at_s)} == {USAGE_EVERY_S}


async def test_without_a_store_nothing_is_written() -> None:
    api = FakeCluster()
    task = asyncio.create_task(RunTimesMap(api, None, clock=clock).run())
    await asyncio.sleep(3 * EVERY_S)
    task.cancel()
    assert api.writes() == []


def test_the_map_is_small_even_for_the_largest_cluster() -> None:
    """Names of namespaces have 63 characters at most."""
    owner = "n" * 58
    groups = [
        RunGroup(owner=f"{owner}{number:05}", category="Speech", gpus=4096, jobs=20_000, run_s=(10_000_000.0,) * 9)
        for number in range(MOST_GROUPS)
    ]
    used = [
        Account(
            owner=f"{owner}{number:05}",
            replicas=4096,
            gpus_per_replica=128,
            jobs=100_000,
            gpu_s=1e12 + number,
            idle_gpu_s=1e12,
            core_s=1e13,
            wait_s=1e12,
        )
        for number in range(2 * MOST_ACCOUNTS)
    ]
    made = map_json(groups, used)
    assert sum(len(text) for text in made["data"].values()) < 500_000
    assert groups_from_json(made) == tuple(groups)
    assert f"{owner}{2 * MOST_ACCOUNTS - 1:05}" in made["data"]["usage"]  # the largest are kept
    assert f"{owner}00000" not in made["data"]["usage"]


CONFIG_MAP_BYTES = 2**20
"""What the API server takes. Source: Kubernetes, pkg/apis/core/validation, `MaxSecretSize`, for both."""


def test_the_map_fits_whatever_owners_are_called() -> None:
    """A user's name has 256 characters at most, of any script."""
    owner = "研" * 250
    groups = [
        RunGroup(owner=f"{owner}{number:05}", category="Speech", gpus=4096, jobs=MOST_GROUPS - number, run_s=(1e7,) * 9)
        for number in range(MOST_GROUPS)
    ]
    used = [
        Account(
            owner=f"{owner}{number:05}",
            replicas=4096,
            gpus_per_replica=128,
            jobs=100_000,
            gpu_s=1e12 - number,
            idle_gpu_s=1e12,
            core_s=1e13,
            wait_s=1e12,
        )
        for number in range(MOST_ACCOUNTS)
    ]
    made = map_json(groups, used)
    assert sum(len(key) + len(text.encode()) for key, text in made["data"].items()) < CONFIG_MAP_BYTES
    kept = groups_from_json(made)
    assert kept == tuple(groups[: len(kept)]), "the largest are kept, whole"
    accounts = orjson.loads(made["data"]["usage"])
    assert [account["owner"] for account in accounts] == [account.owner for account in used[: len(accounts)]]
    assert min(len(kept), len(accounts)) > 300, "as many as fit"
    assert map_json(groups, used[::-1]) == made


async def test_a_map_that_is_refused_is_said_aloud(caplog: pytest.LogCaptureFixture) -> None:
    class Refusing(FakeCluster):
        async def apply(self, path: str, body: Json, *, manager: str, timeout_s: float | None = None) -> Json:
            raise Rejected(422, "Invalid", "too long: must have at most 1048576 bytes")

    task = asyncio.create_task(RunTimesMap(Refusing(), Records(), clock=clock, aside=at_once).run())
    await asyncio.sleep(EVERY_S)
    task.cancel()
    (said,) = {found.getMessage() for found in caplog.records if found.levelname == "WARNING"}
    assert said == "coda-run-times is refused: too long: must have at most 1048576 bytes"


async def test_it_has_what_the_division_follows_of_the_jobs_of_the_week() -> None:
    api, now_s = FakeCluster(), clock()
    found = [record(number, ended_s=now_s - 60.0 * number, replicas=1 + number % 2) for number in range(80)]

    class Week(Records):
        def jobs(self, from_s: float, to_s: float) -> list[FinishedJob]:
            return found

    week = Week()
    await RunTimesMap(api, week, clock=clock, aside=at_once).write(week)
    past = past_use_from_json(api.item(PATH))
    assert (past.jobs, past.tuned_jobs, past.cores_per_gpu, past.large_share) == (80, 80, 3.0, 1.0)
    assert past.categories == (CategoryUse("NLP", 80, 3.0),)
    assert (past.cpu_jobs, past.cpu_wanted_share) == (LEAST_JOBS, 0.3)


@pytest.mark.parametrize("text", ["[]", "{", '{"jobs": 1}', "null"])
def test_a_division_that_somebody_else_wrote_is_refused_in_one_sentence(text: str) -> None:
    with pytest.raises(InvalidInput, match="no division as the operator writes it: delete it"):
        past_use_from_json({"data": {"division": text}})


@pytest.mark.parametrize(("name", "value"), [("coresPerGPU", -1), ("coresPerGPU", 1e9), ("largeShare", 1.5)])
def test_no_division_follows_what_no_cluster_uses(name: str, value: float) -> None:
    item = map_json((), (), PastUse(jobs=60))
    item["data"]["division"] = item["data"]["division"].replace(f'"{name}":null', f'"{name}":{value}')
    with pytest.raises(InvalidInput):
        past_use_from_json(item)


def test_a_map_of_an_older_operator_says_nothing_of_the_division() -> None:
    assert past_use_from_json({"data": {"runTimes": "[]"}}) == PastUse()
