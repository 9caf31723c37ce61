"""GPUs fail on one node for two users: nothing is placed there, until time or an administrator ends it."""

from __future__ import annotations

import asyncio
from typing import Any

from coda.correlation.suspect_nodes import CORDON_S
from coda_kube.failures.node_failures import MOST, NodeFailures, node_failure_from_json
from coda_kube.objects.json_types import Json
from coda_kube.objects.names import ANNOTATION_CLEARED, ANNOTATION_USER
from coda_kube.objects.quantities import time_from_seconds
from coda_operator.cordon_writer import Cordons
from coda_operator.view.cluster import ClusterView
from tests.operator_tests.fake_cluster import NODES, FakeCluster, clock
from tests.operator_tests.operators import operator
from tests.operator_tests.rest_of_cluster import rest_of_cluster
from tests.operator_tests.test_lost_ranks import reaches

ECC = b"2026-01-01T00:00:01.0Z RuntimeError: CUDA error: uncorrectable ECC error encountered\n"


def submitted(api: FakeCluster, name: str, user: str) -> str:
    path = api.submit(name)
    api.change(path, lambda job: job["metadata"].setdefault("annotations", {}).update({ANNOTATION_USER: user}))
    return path


def avoided(api: FakeCluster, job: str) -> list[str]:
    return [entry["name"] for entry in api.status(job).get("avoidNodes") or ()]


async def checks(api: FakeCluster, cluster: ClusterView, share: float = 0.1) -> Cordons:
    shown: list[int] = []
    cordons = Cordons(api, cluster, shown.append, identity="op", share=share, clock=clock)
    await cordons.check()
    return cordons


async def test_a_node_that_fails_two_users_is_avoided_by_all_who_wait_until_it_is_trusted() -> None:
    api = FakeCluster()
    api.log_of = lambda pod: ECC if pod.endswith("-1-1") else b""
    fails = {"exit_code": lambda attempt, rank: (1 if rank == 1 else None) if attempt == 1 else 0}
    async with rest_of_cluster(api, nodes=12, **fails) as rest, operator(api) as running:
        cluster = running.cluster
        await reaches(api, submitted(api, "a", "ann"), "Succeeded", attempt=2)
        await checks(api, cluster)
        assert cluster.suspicion.cordons == {}
        await reaches(api, submitted(api, "b", "bob"), "Succeeded", attempt=2)
        rest.plans = False
        waits = submitted(api, "waits", "eve")
        await reaches(api, waits, "Queued")
        assert avoided(api, waits) == []
        cordons = await checks(api, cluster)
        await api.until(lambda: avoided(api, waits) == ["n1"], timeout_s=30)
        (event,) = [one for one in api.all("events") if one["involvedObject"]["kind"] == "Node"]
        assert (event["reason"], event["involvedObject"]["name"]) == ("SuspectGPU", "n1")
        assert "GPU ECC error in jobs of 2 users" in event["message"]

        late = submitted(api, "late", "eve")  # accepted afterwards: it has the node from the start
        await reaches(api, late, "Queued")
        assert avoided(api, late) == ["n1"]

        stamp = {ANNOTATION_CLEARED: time_from_seconds(clock() + 1)}
        api.change(f"{NODES}/n1", lambda node: node["metadata"].update(annotations=stamp))
        await api.until(lambda: bool(cluster.nodes.cleared_s()), timeout_s=30)
        await cordons.check()
        await api.until(lambda: avoided(api, waits) == avoided(api, late) == [], timeout_s=30)
        assert {one["reason"] for one in api.all("events")} >= {"SuspectGPU", "Trusted"}


async def test_time_ends_it_and_a_new_leader_decides_the_same() -> None:
    api = FakeCluster()
    api.log_of = lambda pod: ECC if pod.endswith("-1-1") else b""
    fails = {"exit_code": lambda attempt, rank: (1 if rank == 1 else None) if attempt == 1 else 0}
    async with rest_of_cluster(api, nodes=12, **fails):
        async with operator(api):
            for name, user in (("a", "ann"), ("b", "bob")):
                await reaches(api, submitted(api, name, user), "Succeeded", attempt=2)
        async with operator(api) as running:
            await api.until(lambda: len([*running.cluster.failed_jobs.on_nodes.all()]) == 2, timeout_s=30)
            cordons = await checks(api, running.cluster)
            assert list(running.cluster.suspicion.cordons) == ["n1"]
            until_s = running.cluster.suspicion.cordons["n1"].until_s
            assert CORDON_S - 60 < until_s - clock() <= CORDON_S
            await asyncio.sleep(until_s - clock())  # virtual time
            await cordons.check()
            assert running.cluster.suspicion.cordons == {}


def job(uid: str = "u", ago_s: float = 1.0, **failure: Any) -> Json:
    told = {"node": "n1", "reason": "GPU ECC error", "retry": "other-node", "explicit": True}
    told |= {"time": time_from_seconds(clock() - ago_s)} | failure
    return {"metadata": {"uid": uid, "name": "j", "namespace": "ns"}, "status": {"failure": told}}


async def test_only_failures_of_the_gpu_count() -> None:
    assert node_failure_from_json(job()) is not None
    for odd in ({"reason": "MPI runtime failure"}, {"retry": "no"}, {"explicit": False}, {"node": ""}, {"time": None}):
        assert node_failure_from_json(job(**odd)) is None


async def test_memory_is_bounded() -> None:
    failures = NodeFailures()
    for number in range(MOST + 10):
        failures.see(job(f"u{number}", ago_s=MOST + 10 - number), clock())
    assert len([*failures.all()]) == MOST
    failures.forget("u2005")
    failures.forget("u2005")
    assert len([*failures.all()]) == MOST - 1
    failures.forget_all()
    assert [*failures.all()] == []
