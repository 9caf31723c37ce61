"""What the operator knows of the cluster: late and missing events, relabelled pods, nodes that come and go."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine, Iterable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from coda.errors import Outage
from coda_kube.objects.json_types import Json
from coda_kube.objects.names import KIND, LABEL_ATTEMPT, LABEL_JOB, LABEL_JOB_UID, LABEL_RANK
from coda_operator.__main__ import _term
from coda_operator.liveness import Liveness
from coda_operator.view.cluster import LISTING_S, ClusterView
from coda_operator.view.job_record import record_from_json
from coda_operator.work_queue import WorkQueue
from tests.extender.fake_api import Call
from tests.operator_tests.fake_cluster import JOBS, NODES, PODS, FakeCluster, clock


@asynccontextmanager
async def watched(api: FakeCluster) -> AsyncIterator[tuple[ClusterView, list[str]]]:
    """A cluster whose watches run, and the keys it woke."""
    woken: list[str] = []
    cluster = ClusterView(api, woken.append, woken.append, clock=clock)
    running = asyncio.create_task(cluster.run())
    await cluster.synced()
    try:
        yield cluster, woken
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running


def feed(cluster: ClusterView, api: FakeCluster, path: str) -> Json:
    """Tell the cluster of a job, as kopf would."""
    cluster.apply_job_event("ADDED", api.item(path))
    return api.item(path)


def rank_json(job: Json, rank: int, *, attempt: int = 1, node: str | None = None, job_label: str = "") -> Json:
    name = job["metadata"]["name"]
    return {
        "metadata": {
            "name": f"{name}-{attempt}-{rank}",
            "ownerReferences": [{"kind": KIND, "name": job_label or name, "uid": job["metadata"]["uid"]}],
            "labels": {
                LABEL_JOB: job_label or name,
                LABEL_JOB_UID: job["metadata"]["uid"],
                LABEL_ATTEMPT: str(attempt),
                LABEL_RANK: str(rank),
            },
        },
        "spec": {"containers": [{"name": "main"}]} | ({"nodeName": node} if node else {}),
        "status": {"phase": "Pending"},
    }


def node_json(name: str, ready: str = "True", *, since: str = "2026-01-01T00:00:00Z", **allocatable: str) -> Json:
    condition = {"type": "Ready", "status": ready, "lastTransitionTime": since}
    return {"metadata": {"name": name}, "status": {"conditions": [condition], "allocatable": allocatable}}


def known(cluster: ClusterView, key: str) -> Json:
    job = cluster.job(key)
    assert job is not None
    return job.json


async def settle() -> None:
    await asyncio.sleep(0.01)


async def test_the_end_of_a_job_told_after_the_start_of_its_namesake_ends_only_itself() -> None:
    api = FakeCluster()
    async with watched(api) as (cluster, _):
        old = feed(cluster, api, api.submit("twin"))
        api.remove(f"{JOBS}/twin")
        new = feed(cluster, api, api.submit("twin"))
        cluster.apply_job_event(
            "DELETED", old | {"metadata": old["metadata"] | {"resourceVersion": str(api.version - 1)}}
        )
        assert cluster.jobs.by_key["default/twin"]["metadata"]["uid"] == new["metadata"]["uid"]
        cluster.apply_job_event("DELETED", new)
        assert cluster.jobs.by_key == {}


async def test_jobs_that_went_while_kopf_could_not_watch_are_dropped_after_its_next_listing() -> None:
    api = FakeCluster()
    async with watched(api) as (cluster, woken):
        for name in ("stays", "went"):
            feed(cluster, api, api.submit(name))
        api.remove(f"{JOBS}/went")
        woken.clear()
        cluster.apply_job_event(None, api.item(f"{JOBS}/stays"))
        feed(cluster, api, api.submit("came"))
        await asyncio.sleep(LISTING_S + 1)
        assert sorted(cluster.jobs.by_key) == ["default/came", "default/stays"]
        assert "default/went" in woken


async def test_a_list_lasts_until_kopf_has_told_of_no_job_for_a_moment() -> None:
    api = FakeCluster()
    async with watched(api) as (cluster, _):
        cluster.listing.set()  # a term begins
        for number in range(8):
            await asyncio.sleep(LISTING_S / 2)
            assert cluster.listing.is_set()
            cluster.apply_job_event(None, api.item(api.submit(f"job-{number}")))
        await asyncio.sleep(LISTING_S + 1)
        assert not cluster.listing.is_set()


async def test_a_term_begins_with_a_list_of_the_jobs() -> None:
    api = FakeCluster()
    async with watched(api) as (cluster, woken):

        async def reconcile(key: str) -> float | None:
            woken.append(key)
            return None

        def works() -> Iterable[Coroutine[Any, Any, None]]:
            assert cluster.listing.is_set()
            return (asyncio.sleep(0),)

        queue = WorkQueue(reconcile, clock=clock)
        liveness = Liveness(lambda: True, queue.is_busy, lambda: 0, lambda: None, clock=clock)
        await _term(cluster, queue, works, liveness)


async def test_a_first_listing_costs_no_second_one() -> None:
    api = FakeCluster()
    async with watched(api) as (cluster, _):
        api.submit("one")
        asked = len(api.calls)
        cluster.apply_job_event(None, api.item(f"{JOBS}/one"))
        await asyncio.sleep(60)
        assert len(api.calls) == asked


async def test_between_two_terms_no_job_is_known_but_its_lost_pods_are_remembered_while_it_exists() -> None:
    api = FakeCluster()
    async with watched(api) as (cluster, _):
        stays, went = (feed(cluster, api, api.submit(name)) for name in ("stays", "went"))
        for job in (stays, went):
            api.set(PODS, rank_json(job, 0))
        await settle()
        for job in (stays, went):
            api.remove(f"{PODS}/{job['metadata']['name']}-1-0")
        await settle()
        cluster.forget_jobs()
        assert cluster.jobs.by_key == {}
        api.remove(f"{JOBS}/went")
        await asyncio.sleep(2 * LISTING_S)
        assert (cluster.vanished(stays, 1), cluster.vanished(went, 1)) == (frozenset({0}), frozenset())
        cluster.apply_job_event(None, api.item(f"{JOBS}/stays"))
        assert set(cluster.jobs.by_key) == {"default/stays"}


async def test_a_pod_wakes_the_job_whose_uid_it_carries_whatever_its_other_labels_say() -> None:
    api = FakeCluster()
    async with watched(api) as (cluster, woken):
        job = feed(cluster, api, api.submit("mine"))
        woken.clear()
        api.set(PODS, rank_json(job, 0, job_label="other"))
        await settle()
        assert woken == ["default/mine"]


async def test_a_pod_of_no_job_known_wakes_nobody() -> None:
    """Of an earlier job of that name; or of another namespace: who may create pods there has no say about ours."""
    api = FakeCluster()
    async with watched(api) as (cluster, woken):
        job = feed(cluster, api, api.submit("mine"))
        woken.clear()
        api.set(PODS, rank_json({"metadata": job["metadata"] | {"uid": "earlier"}}, 0))
        api.set("/api/v1/namespaces/other/pods", rank_json(job, 0))
        await settle()
        assert (cluster.pods_of(job), woken) == ((), [])


async def test_a_pod_relabelled_to_another_job_is_not_kept_as_a_ghost() -> None:
    api = FakeCluster()
    async with watched(api) as (cluster, woken):
        one, two = (feed(cluster, api, api.submit(name)) for name in ("one", "two"))
        api.set(PODS, rank_json(one, 0))
        await settle()
        woken.clear()
        stolen = {LABEL_JOB_UID: two["metadata"]["uid"]}
        api.change(f"{PODS}/one-1-0", lambda pod: pod["metadata"]["labels"].update(stolen))
        await settle()
        assert (list(cluster.pods_of(one)), len(cluster.pods_of(two))) == ([], 1)
        assert set(woken) == {"default/one", "default/two"}
        assert cluster.vanished(one, 1) == {0}


async def test_ranks_whose_pod_is_gone_are_remembered_for_the_newest_attempt() -> None:
    api = FakeCluster()
    async with watched(api) as (cluster, _):
        job = feed(cluster, api, api.submit("mine"))
        for attempt, rank in ((1, 0), (1, 1), (2, 0)):
            api.set(PODS, rank_json(job, rank, attempt=attempt))
        for name in ("mine-1-0", "mine-2-0", "mine-1-1"):
            api.remove(f"{PODS}/{name}")
        await settle()
        assert cluster.vanished(job, 1) == frozenset()
        assert cluster.vanished(job, 2) == {0}
        api.remove(f"{JOBS}/mine")
        api.set(PODS, rank_json(job, 7, attempt=2))
        cluster.apply_job_event("DELETED", job)
        api.remove(f"{PODS}/mine-2-7")
        await settle()
        assert cluster._vanished_by_job_uid == {}


async def test_a_list_drops_no_pod_that_is_newer_than_itself() -> None:
    """A create that was slow arrives between the list and its answer."""
    api = FakeCluster()
    async with watched(api) as (cluster, _):
        job = feed(cluster, api, api.submit("mine"))
        api.set(PODS, rank_json(job, 0))
        list_pages = api.list_pages

        async def slow_list(*arguments: Any) -> Json:
            listing = await list_pages(*arguments)
            api.remove(f"{PODS}/mine-1-0")
            api.set(PODS, rank_json(job, 1))
            await settle()
            return listing

        api.list_pages = slow_list  # type: ignore[method-assign,assignment]  # this server is slow today
        await cluster.read_pods_again(record_from_json("default/mine", job))
        assert [pod.rank for pod in cluster.pods_of(job)] == [1]


@pytest.mark.parametrize("passed", [False, True], ids=["versions are older", "versions passed the known ones"])
async def test_pods_that_a_restored_backup_brings_back_are_not_missed(passed: bool) -> None:
    """They were seen to end. An operator that leads anew is told of the job before its cache lists the pods again."""

    def no_watch(call: Call) -> None:
        if call.path in ("/api/v1/pods", "/api/v1/nodes"):
            raise Outage("no route")

    api = FakeCluster()
    async with watched(api) as (cluster, _):
        job = feed(cluster, api, api.submit("mine"))
        for rank in (0, 1):
            api.set(PODS, rank_json(job, rank))
        await settle()
        backup = api.backup()
        for rank in (0, 1):
            api.remove(f"{PODS}/mine-1-{rank}")
        await settle()
        api.before = no_watch
        api.restart(backup)
        cluster.forget_jobs()
        for number in range(10 * passed):
            api.submit(f"other-{number}")
        read = cluster.read_pods_again(record_from_json("default/mine", feed(cluster, api, f"{JOBS}/mine")))
        with contextlib.nullcontext() if passed else pytest.raises(Outage):
            await read
        assert {pod.rank for pod in cluster.pods_of(job)} == ({0, 1} if passed else set())
        api.before = None
        await asyncio.sleep(20)
        assert {pod.rank for pod in cluster.pods_of(job)} == {0, 1}
        assert cluster.vanished(job, 1) == frozenset()
        assert cluster.restored.is_set()


def unready(cluster: ClusterView, job: Json) -> dict[str, float]:
    return dict(cluster.nodes.unready_since_s({pod.node for pod in cluster.pods_of(job) if pod.node}))


async def test_a_lost_node_wakes_the_jobs_on_it_once() -> None:
    api = FakeCluster()
    api.set(NODES, node_json("n1"))
    async with watched(api) as (cluster, woken):
        job = feed(cluster, api, api.submit("mine"))
        feed(cluster, api, api.submit("elsewhere"))
        for rank in (0, 1):
            api.set(PODS, rank_json(job, rank, node="n1"))
        await settle()
        woken.clear()
        away_s = clock()
        for beat in range(3):
            api.set(NODES, node_json("n1", "Unknown", since="2026-01-01T01:00:00Z", beat=str(beat)))
            await settle()
        assert woken == ["default/mine"]
        assert unready(cluster, job) == {"n1": away_s}
        api.set(NODES, node_json("n1", "True"))
        await settle()
        assert unready(cluster, job) == {}


async def test_how_long_a_node_is_away_goes_on_over_kinds_of_away_but_not_over_a_return_nobody_saw() -> None:
    """By our own clock: what the node's controller writes is only compared with itself."""
    api = FakeCluster()
    api.set(NODES, node_json("n1", "False", since="2026-01-01T00:00:00Z"))
    async with watched(api) as (cluster, _):
        first_s = clock()
        await asyncio.sleep(40)
        api.set(NODES, node_json("n1", "Unknown", since="2026-01-01T00:00:40Z"))
        await settle()
        assert cluster.nodes.unready_since_s(["n1"]) == {"n1": first_s}
        again_s = clock()
        api.set(NODES, node_json("n1", "Unknown", since="2026-01-01T00:09:00Z"))
        await settle()
        assert cluster.nodes.unready_since_s(["n1"]) == {"n1": again_s}


async def test_of_nodes_that_never_come_back_nothing_is_kept_once_their_pods_are_gone() -> None:
    api = FakeCluster()
    async with watched(api) as (cluster, _):
        job = feed(cluster, api, api.submit("mine"))
        for number in range(3):
            api.set(NODES, node_json(f"n{number}"))
        api.set(PODS, rank_json(job, 0, node="n0"))
        api.set(PODS, rank_json(job, 1, node="never-was"))
        await settle()
        for number in range(3):
            api.remove(f"{NODES}/n{number}")
        await settle()
        assert set(unready(cluster, job)) == {"n0", "never-was"}
        api.remove(f"{PODS}/mine-1-0")
        api.remove(f"{PODS}/mine-1-1")
        await settle()
        assert cluster.nodes._unready_since_s == {}


async def test_of_a_node_that_was_given_up_before_it_went_nothing_is_kept() -> None:
    """An administrator taints a node that is not Ready as out of service, and then deletes it."""
    api = FakeCluster()
    away = node_json("n1", "Unknown")
    api.set(NODES, away | {"spec": {"taints": [{"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute"}]}})
    async with watched(api) as (cluster, _):
        assert cluster.nodes.outages(["n1"]).keys() == {"n1"}
        api.remove(f"{NODES}/n1")
        await settle()
        assert cluster.nodes.outages(["n1"]) == {}


async def test_the_most_cores_follow_the_nodes_and_leave_one_to_daemons() -> None:
    api = FakeCluster()
    api.set(NODES, {"metadata": {"name": "bare"}})
    async with watched(api) as (cluster, _):
        assert cluster.nodes.most_cores(8) == 0
        api.set(NODES, node_json("small", **{"cpu": "16", "nvidia.com/gpu": "4"}))
        api.set(NODES, node_json("big", **{"cpu": "95500m", "nvidia.com/gpu": "8"}))
        await settle()
        assert (cluster.nodes.most_cores(8), cluster.nodes.most_cores(1)) == (94, 94)
        assert [cluster.nodes.part_of_cores(gpus) for gpus in (8, 4, 1, 16)] == [94, 15, 3, 0]
        api.remove(f"{NODES}/big")
        await settle()
        assert (cluster.nodes.most_cores(8), cluster.nodes.most_cores(1)) == (0, 15)
        assert (cluster.nodes.part_of_cores(8), cluster.nodes.part_of_cores(1)) == (0, 3)


async def test_a_job_is_known_as_it_was_told_whatever_becomes_of_what_told_it() -> None:
    api = FakeCluster()
    async with watched(api) as (cluster, _):
        path = api.submit("mine")
        told = feed(cluster, api, path)
        known(cluster, "default/mine")["spec"]["replicas"] = -1
        assert known(cluster, "default/mine") == told
        api.remove(path)
        cluster.apply_job_event("DELETED", told)
        assert cluster.job("default/mine") is None
        cluster.apply_job_event("MODIFIED", told)
        assert cluster.job("default/mine") is None
        cluster.apply_job_event("ADDED", api.item(api.submit("mine")))
        cluster.forget_jobs()
        assert cluster.job("default/mine") is None


async def test_finished_jobs_and_pods_are_kept_small() -> None:
    api = FakeCluster()
    async with watched(api) as (cluster, _):
        path = api.submit("mine")
        api.change(path, lambda job: job.update(status={"phase": "Failed", "reason": "TemplateRefused"}))
        assert "template" in feed(cluster, api, path)["spec"]
        assert "template" in known(cluster, "default/mine")["spec"]
        api.change(path, lambda job: job.update(status={"phase": "Failed", "placement": {}, "request": {"cpu": 1}}))
        job = feed(cluster, api, path)
        kept = known(cluster, "default/mine")
        assert ("template" in kept["spec"], kept["status"]) == (False, {"phase": "Failed", "request": {"cpu": 1}})
        api.set(PODS, rank_json(job, 0))
        await settle()
        assert cluster.pods.by_key["default/mine-1-0"].keys() == {"metadata"}
