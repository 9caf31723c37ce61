"""What the extender may not believe any more once the API server's data come from a backup."""

from __future__ import annotations

import asyncio
from typing import Any

from coda.errors import Outage
from coda_extender.guard.guard import TAKEN
from coda_extender.protocol import Answer
from coda_kube.api.watch_cache import WatchCache
from coda_kube.cluster_state import ClusterState
from coda_kube.objects.read import job_from_json, placement_from_json
from coda_kube.state.job_assumptions import JobAssumptions
from tests.extender.fake_api import Call, FakeApi
from tests.extender.guards import Known
from tests.extender.objects import JOBS, NODES, PODS, Item, job_json, node_json, placement, pod_json, rank_json
from tests.extender.replicas import placement_of, replica, status

RUNNING = {"phase": "Running"}


def cut(api: FakeApi) -> list[bool]:
    """While the list says True, no request arrives."""
    is_away = [False]

    def check(_call: Call) -> None:
        if is_away[0]:
            raise Outage("no route")

    api.before = check
    return is_away


async def test_no_gang_is_planned_on_nodes_whose_pods_run_again_since_a_restore() -> None:
    """The pods had ended, and the versions pass the known ones before anybody is back in touch."""
    api = FakeApi()
    is_away = cut(api)
    api.set(NODES, node_json("n1"))
    api.set(JOBS, job_json("old", gpus=4, phase="Running", placement=placement("n1")))
    rank = rank_json("old", 0, "n1", node="n1", gpus=4)
    api.set(PODS, rank | {"status": RUNNING})
    api.set(PODS, pod_json("foreign", gpus=2, node="n1", status=RUNNING))
    async with replica(api, takeover_limit_s=0.0) as one:
        await one.cluster.wait_until_synced()
        backup = api.backup()
        for name in ("old-1-0", "foreign"):
            api.change(f"{PODS}/{name}", lambda pod: pod.update(status={"phase": "Succeeded"}))
        api.change(f"{JOBS}/old", lambda job: job["status"].update(phase="Succeeded"))
        await asyncio.sleep(0.1)
        assert one.cluster.state.use.of("n1").gpus == 0
        is_away[0] = True
        api.restart(backup)
        for number in range(10):
            api.set(PODS, pod_json(f"other-{number}"))
        is_away[0] = False
        api.set(JOBS, job_json("gang", gpus=4))
        async with asyncio.timeout(10):
            while one.cluster.state.use.of("n1").gpus != 6 or "pending" not in status(api, "gang"):
                await asyncio.sleep(0.02)
        await asyncio.sleep(0.2)
        assert placement_of(api, "gang") == {}


def test_versions_of_before_prove_no_bind_of_after(known: Known) -> None:
    known.version = 1000
    known.pod(None, first := pod_json("first", gpus=1))
    known.pod(None, later := pod_json("later", gpus=1))
    for _ in range(3):
        known.ask(later, "n2")
        known.now_s += 2.0
    known.guard.begin_again()
    known.version = 10
    known.pod(None, old := pod_json("old", gpus=1))
    known.pod(None, taker := pod_json("taker", gpus=8))
    known.pod(taker, pod_json("taker", gpus=8, node="n1"))
    assert known.ask(old, "n1", "n2") == Answer(passed=["n2"], refused={"n1": TAKEN})
    assert first["metadata"]["resourceVersion"] == "1001"


def test_a_pod_that_waits_on_a_node_counts_there_for_a_bounded_time_after_a_restore(known: Known) -> None:
    """News of it have lower versions than its filter call, and would be ignored."""
    known.pod(None, waits := pod_json("waits", gpus=1))
    known.ask(waits, "n1", "n2")
    known.pod(waits, waits | {"status": {"phase": "Pending", "nominatedNodeName": "n1"}})
    known.now_s += 1000.0
    assert len(known.guard.in_flight.pods()) == 1
    known.guard.begin_again()
    assert len(known.guard.in_flight.pods()) == 1
    known.now_s += 31.0
    assert known.guard.in_flight.pods() == ()


def test_a_write_counts_no_more_once_an_older_job_came_back() -> None:
    """Its placement would hide the one that the job has again."""
    item = job_json("gang", placement=placement("n1", plan="again"))
    item["metadata"] |= {"namespace": "default", "resourceVersion": "5"}
    job = job_from_json(item, {})
    assert job is not None
    written = placement_from_json({"placement": placement("n2", plan="lost", attempt=2)})
    assumptions = JobAssumptions()
    assumptions.begin_write(job.id, 5, written)
    assert assumptions.with_job(job, 5).placement == written
    assumptions.begin_write(job.id, 9, written)
    assert assumptions.with_job(job, 5).placement == job.placement
    assert not assumptions.is_writing(job.id)


def stopped(version: int, *, is_stopped: bool) -> Item:
    order = {"stop": {"cause": "Reclaim", "by": "default/b", "time": "2026-01-01T00:00:00Z"}} if is_stopped else {}
    item = job_json("gang", phase="Running", placement=placement("n1") | order)
    item["metadata"] |= {"namespace": "default", "resourceVersion": str(version)}
    return item


def test_an_order_to_stop_that_was_taken_back_frees_nothing() -> None:
    """By a restored backup, or because somebody else wrote first and the order was never stored."""
    state = ClusterState(lambda: 0.0)
    before, ordered = stopped(5, is_stopped=False), stopped(6, is_stopped=True)
    state.on_job(None, before)
    state.on_pod(None, rank_json("gang", 0, "n1", node="n1"))
    state.on_job(before, ordered)
    assert state.leaving()["n1"].gpus == 8
    state.on_job(ordered, stopped(5, is_stopped=False))
    assert state.leaving() == {}


async def test_an_ended_rank_of_a_job_that_runs_again_counts_as_bound() -> None:
    """Pods are listed before jobs: the job must not pass for a finished one until then."""
    api = FakeApi()
    is_away = cut(api)
    api.set(NODES, node_json("n1"))
    api.set(JOBS, job_json("old", replicas=2, gpus=4, phase="Launched", placement=placement("n1", "n1")))
    for number in range(2):
        api.set(PODS, rank_json("old", number, "n1", node="n1", gpus=4))
    api.change(f"{PODS}/old-1-0", lambda pod: pod.update(status={"phase": "Succeeded"}))
    async with replica(api, takeover_limit_s=0.0) as one:
        await one.cluster.wait_until_synced()
        backup = api.backup()
        api.change(f"{PODS}/old-1-1", lambda pod: pod.update(status={"phase": "Succeeded"}))
        api.change(f"{JOBS}/old", lambda job: job["status"].update(phase="Succeeded"))
        await asyncio.sleep(0.1)
        assert one.cluster.state.job_json_by_id == {}
        delayed = _list_late(api, one.cluster.jobs)
        is_away[0] = True
        api.restart(backup)
        is_away[0] = False
        await asyncio.sleep(0.6)
        delayed.set()
        async with asyncio.timeout(10):
            while not one.cluster.state.job_json_by_id:
                await asyncio.sleep(0.02)
        found = [*one.cluster.state.starting()]
        assert [sorted(job.bound) for job in found] == [[0, 1]]


def _list_late(api: FakeApi, jobs: WatchCache) -> asyncio.Event:
    """Hold back the lists of jobs until the event."""
    event = asyncio.Event()
    list_pages = api.list_pages

    async def late(path: str, query: Any = None, page: int = 1000) -> Any:
        if path.endswith(f"/{jobs.plural}"):
            await event.wait()
        return await list_pages(path, query, page)

    api.list_pages = late  # type: ignore[method-assign]
    return event
