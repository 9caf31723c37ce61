"""Which pods are counted, and how often: through crashes, fail-overs and outages of the store."""

from __future__ import annotations

import asyncio

import pytest

from coda.history.cpu_jobs import CpuEnding
from coda_operator.cpu_history import pod_watch
from coda_operator.cpu_history.pod_watch import KEPT_S
from coda_operator.cpu_history.recorder import COUNTED_S, TIDY_EVERY_S
from tests.operator_tests.cpu_history.pods import PODS, cpu_pod, evicted, phase
from tests.operator_tests.cpu_history.replicas import Replica, Table, put
from tests.operator_tests.fake_cluster import FakeCluster, clock


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
