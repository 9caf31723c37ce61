"""Which pods are counted, and how often: through crashes, fail-overs and outages of the store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from coda.errors import Outage
from coda.history.cpu_jobs import CpuEnding, FinishedCpuJob
from coda_kube.objects.json_types import Json
from coda_operator.cpu_history import pod_watch
from coda_operator.cpu_history.pod_watch import KEPT_S, CpuPodWatch
from coda_operator.cpu_history.recorder import COUNTED_S, TIDY_EVERY_S, CpuRecorder
from coda_operator.history.writer import LONGEST_TRY_S, RecordRefused
from coda_operator.metrics import CpuHistoryMetrics
from tests.operator_tests.cpu_history.pods import PODS, cpu_pod, evicted, phase
from tests.operator_tests.fake_cluster import FakeCluster, clock


@dataclass
class Table:
    """A store in memory that counts each pod once, as `CpuJobTable` does."""

    is_away: bool = False
    refused: str = ""
    counted: dict[str, float] = field(default_factory=dict)
    written: list[FinishedCpuJob] = field(default_factory=list)
    batches: int = 0

    def write(self, jobs: Sequence[FinishedCpuJob], now_s: float) -> int:
        if self.is_away:
            raise Outage("nobody answers")
        if any(job.uid == self.refused for job in jobs):
            raise RecordRefused("no place")
        new = [job for job in jobs if job.uid not in self.counted]
        self.counted |= {job.uid: now_s for job in new}
        self.written += new
        self.batches += 1
        return len(new)

    def forget_counted(self, before_s: float, existing: Collection[str]) -> int:
        old = [uid for uid, at_s in self.counted.items() if at_s < before_s and uid not in existing]
        for uid in old:
            del self.counted[uid]
        return len(old)

    def delete_before(self, ended_s: float) -> int:
        kept = [job for job in self.written if job.ended_s >= ended_s]
        deleted = len(self.written) - len(kept)
        self.written = kept
        return deleted


async def at_once(function: Callable[..., Any], *values: Any) -> Any:
    return function(*values)


class Replica:
    """One operator, as far as CPU jobs go."""

    def __init__(
        self,
        api: FakeCluster,
        table: Table,
        *,
        kept_s: float = 90 * 86400.0,
        aside: Callable[..., Awaitable[Any]] = at_once,
    ) -> None:
        self.registry = CollectorRegistry()
        self.watch = CpuPodWatch(api, clock=clock)
        self.recorder = CpuRecorder(
            self.watch,
            table,
            lambda: asyncio.sleep(0),
            CpuHistoryMetrics(self.registry),
            kept_s=kept_s,
            clock=clock,
            aside=aside,
        )

    @asynccontextmanager
    async def running(self, *, leads: bool = True) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(self.watch.run())]
        if leads:
            tasks.append(asyncio.create_task(self.recorder.run()))
        try:
            await self.watch.cache.synced.wait()
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    @asynccontextmanager
    async def leading(self) -> AsyncIterator[None]:
        """A term of a replica that watches."""
        task = asyncio.create_task(self.recorder.run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def count(self, name: str) -> float | None:
        return self.registry.get_sample_value(f"coda_operator_history_cpu_jobs_{name}")


@pytest.fixture
def api() -> FakeCluster:
    return FakeCluster()


@pytest.fixture
def table() -> Table:
    return Table()


def put(api: FakeCluster, status: Json, name: str = "work", **more: Any) -> None:
    more.setdefault("created_s", clock())
    api.set(PODS, cpu_pod(status, name=name, **more))


async def test_each_pod_that_ends_is_counted_once_whoever_tells_of_it(api: FakeCluster, table: Table) -> None:
    put(api, phase("Running"))
    async with Replica(api, table).running():
        put(api, phase("Succeeded"))
        await asyncio.sleep(5)
        api.change(f"{PODS}/work", lambda pod: pod["metadata"].update(labels={"seen": "yes"}))
        await asyncio.sleep(5)
        assert [job.ending for job in table.written] == [CpuEnding.SUCCEEDED]
    async with Replica(api, table).running():  # after a crash the pod is still there
        await asyncio.sleep(5)
        api.remove(f"{PODS}/work")
        await asyncio.sleep(5)
    assert len(table.written) == 1


async def test_a_pod_that_is_deleted_while_it_runs_or_waits_is_counted(api: FakeCluster, table: Table) -> None:
    put(api, phase("Running"), "runs")
    put(api, {}, "waits", gated=True)
    put(api, evicted("Running"), "lent", borrows=True)
    async with Replica(api, table).running():
        for name in ("runs", "waits", "lent"):
            api.remove(f"{PODS}/{name}")
        await asyncio.sleep(5)
    endings = {job.uid: job.ending for job in table.written}
    assert endings == {
        "uid-runs": CpuEnding.DELETED,
        "uid-waits": CpuEnding.DELETED,
        "uid-lent": CpuEnding.RECLAIMED,
    }


async def test_two_pods_of_one_name_are_two_jobs(api: FakeCluster, table: Table) -> None:
    put(api, phase("Running"), "web-0", uid="first")
    async with Replica(api, table).running():
        api.remove(f"{PODS}/web-0")
        put(api, phase("Running"), "web-0", uid="second")
        await asyncio.sleep(5)
        api.remove(f"{PODS}/web-0")
        await asyncio.sleep(5)
    assert [job.uid for job in table.written] == ["first", "second"]


async def test_pods_that_are_no_cpu_jobs_are_not_counted(api: FakeCluster, table: Table) -> None:
    pod = cpu_pod(phase("Succeeded"))
    pod["metadata"]["annotations"] = {}
    api.set(PODS, pod)
    async with Replica(api, table).running():
        await asyncio.sleep(5)
        api.remove(f"{PODS}/work")
        await asyncio.sleep(5)
    assert table.written == []


async def test_thousands_of_pods_of_a_job_are_a_few_transactions(api: FakeCluster, table: Table) -> None:
    async with Replica(api, table).running():
        for number in range(3000):
            put(api, phase("Succeeded"), f"p{number}")
        await asyncio.sleep(60)
    assert len(table.written) == 3000
    assert table.batches < 20


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


@pytest.mark.parametrize("other_leads", [True, False], ids=["another one leads between", "it leads again"])
async def test_a_change_of_leader_loses_nothing_while_the_store_is_away(
    api: FakeCluster, table: Table, other_leads: bool
) -> None:
    """For hours the store is away, and pods end and go; then a Lease is lost, and the store comes back."""
    table.is_away = True
    first, second = Replica(api, table), Replica(api, table)
    async with first.running(leads=False), second.running(leads=False):
        async with first.leading():
            for number in range(100):
                put(api, phase("Succeeded"), f"p{number}")
                api.remove(f"{PODS}/p{number}")
                await asyncio.sleep(60)
        assert first.count("waiting") == 100
        assert second.count("waiting") == 0, "it could store none, and tried none"
        if other_leads:
            async with second.leading():
                await asyncio.sleep(60)
                table.is_away = False
                await asyncio.sleep(600)
        table.is_away = False
        await asyncio.sleep(KEPT_S / 2)
        async with first.leading():
            await asyncio.sleep(600)
        assert (first.count("waiting"), first.count("lost"), second.count("lost")) == (0, 0, 0)
    assert sorted(job.uid for job in table.written) == sorted(f"uid-p{number}" for number in range(100))


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


async def test_what_waits_too_long_beside_another_leader_is_lost_and_counted(api: FakeCluster, table: Table) -> None:
    """It would count twice if the other one had stored it, and that was forgotten."""
    replica = Replica(api, table)
    table.is_away = True
    async with replica.running(leads=False):
        async with replica.leading():
            put(api, phase("Succeeded"), "old")
            api.remove(f"{PODS}/old")
            await asyncio.sleep(60)
        await asyncio.sleep(KEPT_S)
        table.is_away = False
        async with replica.leading():
            await asyncio.sleep(60)
        assert (replica.count("waiting"), replica.count("lost"), replica.count("stored_total")) == (0, 1, 0)


async def test_what_finds_no_place_is_lost_and_counted(
    api: FakeCluster, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pod_watch, "MOST_PENDING", 5)
    replica = Replica(api, table)
    table.is_away = True
    async with replica.running():
        for number in range(8):
            put(api, phase("Failed"), f"p{number}")
        await asyncio.sleep(60)
        assert (replica.count("waiting"), replica.count("lost")) == (5, 3)


async def test_a_record_that_the_store_refuses_takes_no_other_with_it(api: FakeCluster, table: Table) -> None:
    replica = Replica(api, table)
    table.refused = "uid-p1"
    async with replica.running():
        for number in range(3):
            put(api, phase("Failed"), f"p{number}")
        await asyncio.sleep(30)
    assert sorted(job.uid for job in table.written) == ["uid-p0", "uid-p2"]
    assert (replica.count("refused_total"), replica.count("waiting")) == (1, 0)


async def test_a_fail_over_loses_nothing_that_the_next_leader_saw(api: FakeCluster, table: Table) -> None:
    """Pods end, and go, after the leader was killed and before another one leads."""
    put(api, phase("Running"), "gone")
    put(api, phase("Running"), "stays")
    second = Replica(api, table)
    async with second.running(leads=False):
        async with Replica(api, table).running():
            await asyncio.sleep(5)
        api.remove(f"{PODS}/gone")
        put(api, phase("Succeeded"), "stays")
        await asyncio.sleep(15)
        async with second.leading():
            await asyncio.sleep(5)
    assert sorted(job.uid for job in table.written) == ["uid-gone", "uid-stays"]


@pytest.mark.parametrize("stays_s", [1.0, KEPT_S / 2, KEPT_S + 1.0, COUNTED_S + 3 * TIDY_EVERY_S])
@pytest.mark.parametrize("later_s", [1.0, KEPT_S - 30.0, KEPT_S + 30.0, 3 * COUNTED_S])
async def test_what_one_leader_has_counted_the_next_does_not_count_again(
    api: FakeCluster, table: Table, stays_s: float, later_s: float
) -> None:
    """The pod stays for a while after its end, and the fail-over comes a while after it has gone."""
    put(api, phase("Running"))
    first, second = Replica(api, table), Replica(api, table)
    async with second.running(leads=False):
        async with first.running():
            put(api, phase("Succeeded"))
            await asyncio.sleep(stays_s)
            await asyncio.sleep(2)
            api.remove(f"{PODS}/work")
            await asyncio.sleep(later_s)
        async with second.leading():
            await asyncio.sleep(60)
    assert len(table.written) == 1


async def test_what_is_kept_of_counted_pods_goes_with_them(api: FakeCluster, table: Table) -> None:
    async with Replica(api, table).running():
        put(api, phase("Succeeded"), "stays")
        put(api, phase("Succeeded"), "goes")
        await asyncio.sleep(5)
        api.remove(f"{PODS}/goes")
        await asyncio.sleep(COUNTED_S + 2 * TIDY_EVERY_S)
        assert [*table.counted] == ["uid-stays"]


async def test_a_cluster_that_is_never_idle_is_tidied_up_too(api: FakeCluster, table: Table) -> None:
    """Pods end all the time: something waits whenever the recorder looks."""
    kept_s = 3600.0
    async with Replica(api, table, kept_s=kept_s).running():
        for number in range(int((kept_s + COUNTED_S + 3 * TIDY_EVERY_S) / 120)):
            put(api, phase("Succeeded"), f"p{number}")
            api.remove(f"{PODS}/p{number}")
            await asyncio.sleep(120)
    assert min(table.counted.values()) >= clock() - COUNTED_S - 2 * TIDY_EVERY_S
    assert min(job.ended_s for job in table.written) >= clock() - kept_s - 2 * TIDY_EVERY_S
    assert len(table.written) >= kept_s / 120 - 1


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
