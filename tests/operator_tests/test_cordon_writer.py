"""GPUs of a node are suspect: nothing is placed there, until time, a run or an administrator ends it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest

from coda.correlation.suspect_nodes import CORDON_S, RUN_PART
from coda_kube.failures.node_failures import MOST, NodeFailures, node_failure_from_json, node_runs_from_json
from coda_kube.objects.json_types import Json
from coda_kube.objects.names import ANNOTATION_CLEARED, ANNOTATION_USER
from coda_kube.objects.quantities import time_from_seconds
from coda_operator.cordon_writer import Cordons
from coda_operator.view.agents import PROFILES_PATH
from coda_operator.view.cluster import ClusterView
from tests.operator_tests.fake_cluster import NODES, FakeCluster, clock
from tests.operator_tests.operators import Operator, operator
from tests.operator_tests.rest_of_cluster import rest_of_cluster
from tests.operator_tests.test_lost_ranks import reaches

ECC = b"2026-01-01T00:00:01.0Z RuntimeError: CUDA error: uncorrectable ECC error encountered\n"
USERS = ("ann", "bob", "eve", "joe")
GPU = "GPU-1"


def submitted(api: FakeCluster, name: str, user: str) -> str:
    path = api.submit(name)
    api.change(path, lambda job: job["metadata"].setdefault("annotations", {}).update({ANNOTATION_USER: user}))
    return path


def avoided(api: FakeCluster, job: str) -> list[str]:
    return [entry["name"] for entry in api.status(job).get("avoidNodes") or ()]


def node_events(api: FakeCluster) -> list[tuple[str, str]]:
    found = [one for one in api.all("events") if one["involvedObject"]["kind"] == "Node"]
    return [(one["involvedObject"]["name"], one["reason"]) for one in sorted(found, key=lambda one: one["eventTime"])]


def write_profile(api: FakeCluster, node: str, *seen: tuple[int, str], watches: bool = True) -> None:
    """What the agent of a node tells now. `seen`: Xids, and the uids of the pods."""
    now = time_from_seconds(clock())
    xids = [{"gpu": GPU, "xid": xid, "count": 1, "time": now, "podUIDs": [uid]} for xid, uid in seen]
    status = {"time": now, "watchesXids": watches, "xids": xids}
    path = f"{PROFILES_PATH}/{node}"
    if api.exists(path):
        api.change(path, lambda profile: profile.update(status=status))
    else:
        api.set(PROFILES_PATH, {"metadata": {"name": node}, "status": status})


@asynccontextmanager
async def agents_heard(running: Operator) -> AsyncIterator[None]:
    task = asyncio.create_task(running.cluster.agents.cache.run())
    await running.cluster.agents.cache.synced.wait()
    yield
    task.cancel()
    await asyncio.wait({task})


def cordons_of(api: FakeCluster, cluster: ClusterView, share: float = 0.1) -> Cordons:
    shown: list[int] = []
    return Cordons(api, cluster, shown.append, identity="op", share=share, clock=clock)


async def test_a_node_that_four_users_name_is_avoided_by_all_who_wait_until_it_is_trusted() -> None:
    api = FakeCluster()
    api.log_of = lambda pod: ECC if pod.endswith("-1-1") else b""
    fails = {"exit_code": lambda attempt, rank: (1 if rank == 1 else None) if attempt == 1 else 0}
    async with rest_of_cluster(api, nodes=12, **fails) as rest, operator(api) as running, agents_heard(running):
        cluster = running.cluster
        cordons = cordons_of(api, cluster)
        for number, user in enumerate(USERS):
            await cordons.check()
            assert cluster.suspicion.cordons == {}, f"the logs of {number} users are not enough"
            await reaches(api, submitted(api, f"of-{user}", user), "Succeeded", attempt=2)
        rest.plans = False
        waits = submitted(api, "waits", "kim")
        await reaches(api, waits, "Queued")
        assert avoided(api, waits) == []
        await cordons.check()
        await api.until(lambda: avoided(api, waits) == ["n1"], timeout_s=30)
        assert node_events(api) == [("n1", "SuspectGPU")]

        late = submitted(api, "late", "kim")  # accepted afterwards: it has the node from the start
        await reaches(api, late, "Queued")
        assert avoided(api, late) == ["n1"]

        stamp = {ANNOTATION_CLEARED: time_from_seconds(clock() + 1)}
        api.change(f"{NODES}/n1", lambda node: node["metadata"].update(annotations=stamp))
        await api.until(lambda: bool(cluster.nodes.cleared_s()), timeout_s=30)
        await cordons.check()
        await api.until(lambda: avoided(api, waits) == avoided(api, late) == [], timeout_s=30)
        assert node_events(api) == [("n1", "SuspectGPU"), ("n1", "Trusted")]


@pytest.mark.parametrize("differs_s", [-120.0, 0.0, 120.0, 36 * 365 * 86_400.0])
async def test_a_node_is_trusted_from_when_that_is_written_whatever_the_administrators_clock_says(
    differs_s: float,
) -> None:
    api = FakeCluster()
    async with rest_of_cluster(api, nodes=12), operator(api) as running, agents_heard(running):
        cordons, cluster = cordons_of(api, running.cluster), running.cluster
        await asyncio.sleep(300)
        write_profile(api, "n1", (79, "gone"))
        await asyncio.sleep(30)
        await cordons.check()
        assert list(cluster.suspicion.cordons) == ["n1"]
        stamp = {ANNOTATION_CLEARED: time_from_seconds(clock() + differs_s)}
        api.change(f"{NODES}/n1", lambda node: node["metadata"].update(annotations=stamp))
        await asyncio.sleep(1)
        await cordons.check()
        assert cluster.suspicion.cordons == {}
        await asyncio.sleep(60)
        write_profile(api, "n1", (79, "gone"))
        await asyncio.sleep(1)
        await cordons.check()
        assert list(cluster.suspicion.cordons) == ["n1"]


async def test_a_date_in_the_future_makes_no_node_immune_to_the_next_operator() -> None:
    api = FakeCluster()
    async with rest_of_cluster(api, nodes=12):
        stamp = {ANNOTATION_CLEARED: "2062-01-01T00:00:00Z"}
        api.change(f"{NODES}/n1", lambda node: node["metadata"].update(annotations=stamp))
        async with operator(api) as running, agents_heard(running):
            await asyncio.sleep(60)
            write_profile(api, "n1", (79, "gone"))
            await asyncio.sleep(1)
            await cordons_of(api, running.cluster).check()
            assert list(running.cluster.suspicion.cordons) == ["n1"]


async def test_what_an_agent_saw_cordons_at_once_and_explains_the_failure() -> None:
    api = FakeCluster()
    api.log_of = lambda pod: b""
    fails = {"exit_code": lambda attempt, rank: (1 if rank == 1 else None) if attempt == 1 else 0}
    async with rest_of_cluster(api, nodes=12, **fails) as rest, operator(api) as running, agents_heard(running):
        for node in range(12):
            write_profile(api, f"n{node}")
        job = submitted(api, "a", "ann")
        await api.until(lambda: "a-1-1" in api.pods() and api.pods()["a-1-1"]["status"]["phase"] == "Failed")
        write_profile(api, "n1", (79, api.pods()["a-1-1"]["metadata"]["uid"]))  # after the rank failed
        status = await reaches(api, job, "Succeeded", attempt=2)
        failure = status["failure"]
        assert (failure["reason"], failure["xid"], failure["node"]) == ("CUDA failure", 79, "n1")
        assert (status["failures"], status["disruptions"]) == (0, 1)
        rest.plans = False
        waits = submitted(api, "waits", "bob")
        await reaches(api, waits, "Queued")
        await cordons_of(api, running.cluster).check()
        await api.until(lambda: avoided(api, waits) == ["n1"], timeout_s=30)
        (event,) = [one for one in api.all("events") if one["involvedObject"]["kind"] == "Node"]
        assert "its agent saw Xid 79 on GPU-1" in event["message"]


async def test_where_the_agent_watches_and_saw_nothing_four_liars_change_nothing() -> None:
    api = FakeCluster()
    api.log_of = lambda pod: ECC if pod.endswith("-1-1") else b""
    fails = {"exit_code": lambda attempt, rank: (1 if rank == 1 else None) if attempt == 1 else 0}
    async with rest_of_cluster(api, nodes=12, **fails), operator(api) as running, agents_heard(running):
        write_profile(api, "n1")
        for user in USERS:
            await reaches(api, submitted(api, f"of-{user}", user), "Succeeded", attempt=2)
        assert len([*running.cluster.failed_jobs.on_nodes.all()]) == 4
        await cordons_of(api, running.cluster).check()
        assert running.cluster.suspicion.cordons == {}


async def test_nothing_is_judged_before_the_agents_are_heard() -> None:
    """Logs about the hardware prove nothing where an agent watches, and nobody knows yet which nodes have one."""
    api = FakeCluster()
    api.log_of = lambda pod: ECC if pod.endswith("-1-1") else b""
    fails = {"exit_code": lambda attempt, rank: (1 if rank == 1 else None) if attempt == 1 else 0}
    async with rest_of_cluster(api, nodes=12, **fails), operator(api) as running:
        write_profile(api, "n1")
        for user in USERS:
            await reaches(api, submitted(api, f"of-{user}", user), "Succeeded", attempt=2)
        cordons = cordons_of(api, running.cluster)
        await cordons.check()
        assert running.cluster.suspicion.cordons == {}
        async with agents_heard(running):
            await cordons.check()
            assert running.cluster.suspicion.cordons == {}


async def test_an_agent_speaks_only_for_pods_of_its_own_node() -> None:
    api = FakeCluster()
    fails = {"exit_code": lambda attempt, rank: (1 if rank == 1 else None) if attempt == 1 else 0}
    async with rest_of_cluster(api, nodes=12, **fails), operator(api) as running, agents_heard(running):
        write_profile(api, "n1")
        job = submitted(api, "a", "ann")
        await api.until(lambda: "a-1-1" in api.pods())
        write_profile(api, "n7", (79, api.pods()["a-1-1"]["metadata"]["uid"]))
        status = await reaches(api, job, "Succeeded", attempt=2)
        assert "xid" not in status["failure"]


async def test_a_run_that_succeeds_ends_the_probation() -> None:
    api = FakeCluster()
    fails = {"exit_code": lambda attempt, rank: 0, "run_s": lambda attempt, rank: CORDON_S * RUN_PART + 1}
    async with rest_of_cluster(api, nodes=12, **fails), operator(api) as running, agents_heard(running):
        cordons = cordons_of(api, running.cluster)
        write_profile(api, "n1", (79, "gone"))
        await api.until(lambda: bool(running.cluster.agents.xids()), timeout_s=30)
        await cordons.check()
        assert list(running.cluster.suspicion.cordons) == ["n1"]
        await asyncio.sleep(CORDON_S)  # virtual time
        await cordons.check()
        assert node_events(api) == [("n1", "SuspectGPU"), ("n1", "OnProbation")]
        await reaches(api, submitted(api, "a", "ann"), "Succeeded")
        await cordons.check()
        assert node_events(api)[2:] == [("n1", "Trusted")]
        assert running.cluster.suspicion.probation == frozenset()


async def test_who_leads_no_more_shows_no_cordon() -> None:
    api, shown = FakeCluster(), list[int]()
    async with rest_of_cluster(api, nodes=12), operator(api) as running, agents_heard(running):
        write_profile(api, "n1", (79, "gone"))
        await api.until(lambda: bool(running.cluster.agents.xids()), timeout_s=30)
        cordons = Cordons(api, running.cluster, shown.append, identity="op", share=0.1, clock=clock)
        leading = asyncio.create_task(cordons.run())
        await asyncio.sleep(1)  # virtual time
        assert shown == [1]
        leading.cancel()
        await asyncio.wait({leading})
        assert shown == [1, 0]


async def test_a_profile_that_comes_late_or_again_changes_no_time() -> None:
    api = FakeCluster()
    async with rest_of_cluster(api, nodes=12), operator(api) as running, agents_heard(running):
        write_profile(api, "n1", (79, "gone"))
        await api.until(lambda: bool(running.cluster.agents.xids()), timeout_s=30)
        (before,) = running.cluster.agents.xids()
        first = api.item(f"{PROFILES_PATH}/n1")["status"]["xids"]
        await asyncio.sleep(61)
        status = {"time": time_from_seconds(clock() - 3), "watchesXids": True, "xids": first}
        api.change(f"{PROFILES_PATH}/n1", lambda profile: profile.update(status=status))
        await asyncio.sleep(1)
        assert [*running.cluster.agents.xids()] == [before]
        again = [entry | {"firstTime": entry["time"], "time": status["time"]} for entry in first]
        api.change(f"{PROFILES_PATH}/n1", lambda profile: profile["status"].update(xids=again))
        await asyncio.sleep(1)
        (repeated,) = running.cluster.agents.xids()
        assert repeated.first_s == before.first_s
        assert repeated.time_s > before.time_s + 50


def set_status(profile: Json, **fields: Any) -> None:
    profile["status"] |= fields


async def test_an_error_stamped_by_a_clock_that_was_ahead_grows_no_younger() -> None:
    """So an administrator's word about the node holds."""
    api = FakeCluster()
    async with rest_of_cluster(api, nodes=12), operator(api) as running, agents_heard(running):
        write_profile(api, "n1", (79, "gone"))
        await api.until(lambda: bool(running.cluster.agents.xids()), timeout_s=30)
        (before,) = running.cluster.agents.xids()
        ahead = time_from_seconds(clock() + 6 * 3600)
        xids = [
            entry | {"firstTime": ahead, "time": ahead} for entry in api.item(f"{PROFILES_PATH}/n1")["status"]["xids"]
        ]
        for _ in range(3):
            await asyncio.sleep(1800)
            fields = partial(set_status, time=time_from_seconds(clock()), xids=xids)
            api.change(f"{PROFILES_PATH}/n1", fields)
        await asyncio.sleep(1)
        assert [(one.first_s, one.time_s) for one in running.cluster.agents.xids()] == [(before.first_s, before.time_s)]


async def test_a_node_that_takes_the_name_of_a_suspect_one_is_trusted() -> None:
    api = FakeCluster()
    api.log_of = lambda pod: ECC if pod.endswith("-1-1") else b""
    fails = {"exit_code": lambda attempt, rank: (1 if rank == 1 else None) if attempt == 1 else 0}
    async with rest_of_cluster(api, nodes=12, **fails), operator(api) as running, agents_heard(running):
        cordons, cluster = cordons_of(api, running.cluster), running.cluster
        for user in USERS:
            await reaches(api, submitted(api, f"of-{user}", user), "Succeeded", attempt=2)
        await cordons.check()
        assert cluster.suspicion.cordons.keys() == {"n1"}
        another = api.item(f"{NODES}/n1")
        api.remove(f"{NODES}/n1")
        another["metadata"] = {"name": "n1", "creationTimestamp": time_from_seconds(clock())}
        api.set(NODES, another)
        await api.until(lambda: bool(cluster.nodes.created_s()), timeout_s=30)
        await cordons.check()
        assert cluster.suspicion.cordons == {}


async def test_time_ends_it_and_a_new_leader_decides_the_same() -> None:
    api = FakeCluster()
    api.log_of = lambda pod: ECC if pod.endswith("-1-1") else b""
    fails = {"exit_code": lambda attempt, rank: (1 if rank == 1 else None) if attempt == 1 else 0}
    async with rest_of_cluster(api, nodes=12, **fails):
        async with operator(api):
            for user in USERS:
                await reaches(api, submitted(api, f"of-{user}", user), "Succeeded", attempt=2)
        async with operator(api) as running, agents_heard(running):
            await api.until(lambda: len([*running.cluster.failed_jobs.on_nodes.all()]) == 4, timeout_s=30)
            cordons = cordons_of(api, running.cluster)
            await cordons.check()
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


async def test_a_failure_that_an_operator_with_a_fast_clock_stamped_counts_from_when_it_is_seen() -> None:
    failures, seen_s, ahead = NodeFailures(), clock(), job(ago_s=-8 * 3600.0)
    failures.see(ahead, seen_s)
    for later_s in (0.0, 5.0, 3600.0):
        failures.see(ahead, seen_s + later_s)
        assert [one.time_s for one in failures.all()] == [seen_s]
    failures.see(ahead, seen_s + 9 * 3600.0)
    assert [*failures.all()] == []
    again = job(ago_s=-9 * 3600.0)  # it failed once more
    failures.see(again, seen_s + 9 * 3600.0)
    assert [one.time_s for one in failures.all()] == [seen_s + 9 * 3600.0]


async def test_a_run_is_known_by_its_last_attempt_and_odd_objects_prove_nothing() -> None:
    status = {"phase": "Succeeded", "attempt": 2, "launchTime": time_from_seconds(100.0)}
    status |= {"completionTime": time_from_seconds(200.0), "placement": {"attempt": 2, "nodes": ["n1", "n0", "n1"]}}
    done = {"metadata": {"uid": "u"}, "spec": {"gpusPerReplica": 8}, "status": status}
    assert [(run.node, run.began_s, run.ended_s) for run in node_runs_from_json(done)] == [
        ("n0", 100.0, 200.0),
        ("n1", 100.0, 200.0),
    ]
    for odd in (
        {"phase": "Failed"},
        {"launchTime": None},
        {"placement": None},
        {"attempt": 3},
        {"completionTime": "x"},
    ):
        assert node_runs_from_json(done | {"status": status | odd}) == ()
    assert node_runs_from_json(done | {"spec": {"gpusPerReplica": 0}}) == ()


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
