"""Ranks that a drain, a node's shutdown or its pressure ends, and peers that fail of it: told in any order, the job is
not at fault, and no healthy node is avoided."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

import pytest

from coda_kube.objects.json_types import Json
from coda_kube.objects.quantities import time_from_seconds
from tests.operator_tests.fake_cluster import PODS, FakeCluster, clock
from tests.operator_tests.operators import operator
from tests.operator_tests.rest_of_cluster import finish, rest_of_cluster
from tests.operator_tests.test_accidents import never, set_ready
from tests.operator_tests.test_lost_ranks import reaches, runs

LOGS = {
    "no cause": b"2026-01-01T00:00:01.0Z step 400 loss 0.3\n",
    "peer lost": b"2026-01-01T00:00:02.0Z RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:598] "
    b"Connection closed by peer [10.0.0.7]:2345\n",
    "store lost": b"2026-01-01T00:00:02.0Z torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: "
    b"The connection to the C10d store has failed.\n",
}
OWN = b"2026-01-01T00:00:02.0Z ModuleNotFoundError: No module named 'apex'\n"
BROKEN = b"2026-01-01T00:00:02.0Z RuntimeError: CUDA error: uncorrectable ECC error encountered\n"
KUBELET = {"Terminated": (143, "node shutdown"), "Evicted": (137, "The node was low on resource: memory. ")}


def cluster(log: bytes) -> FakeCluster:
    """Rank 0 prints `log`, rank 1 nothing that says why."""
    api = FakeCluster()
    api.log_of = lambda pod: log if pod.endswith("-0") else LOGS["no cause"]
    return api


def fails(api: FakeCluster, rank: int, code: int = 1) -> None:
    api.change(f"{PODS}/job-1-{rank}", lambda pod: finish(pod, code))


def mark(pod: Json, reason: str) -> None:
    stamp = time_from_seconds(clock())
    mark = {"type": "DisruptionTarget", "status": "True", "reason": reason, "lastTransitionTime": stamp}
    pod["status"]["conditions"].append(mark)


def end_by_kubelet(api: FakeCluster, reason: str) -> None:
    """Rank 1: a kubelet tells that it ended a pod in one piece with the pod's end, and deletes nothing."""
    code, message = KUBELET[reason]

    def change(pod: Json) -> None:
        finish(pod, code)
        pod["status"] |= {"phase": "Failed", "reason": reason, "message": message}
        mark(pod, "TerminationByKubelet")

    if api.exists(f"{PODS}/job-1-1"):
        api.change(f"{PODS}/job-1-1", change)


def delete(api: FakeCluster) -> None:
    """Rank 1, as `kubectl delete pod` does."""
    api.end(f"{PODS}/job-1-1")


def drain(api: FakeCluster) -> None:
    """Rank 1."""
    delete(api)
    api.change(f"{PODS}/job-1-1", lambda pod: mark(pod, "EvictionByEvictionAPI"))


async def blamed(api: FakeCluster, job: str) -> tuple[int, int, list[str]]:
    """Failures, disruptions and the nodes that the job avoids, once its next attempt waits."""
    status = await reaches(api, job, "Queued", attempt=2)
    return status.get("failures", 0), status["disruptions"], [node["name"] for node in status.get("avoidNodes", ())]


@pytest.mark.parametrize("log", LOGS.values(), ids=list(LOGS))
@pytest.mark.parametrize("reason", KUBELET)
@pytest.mark.parametrize("later_s", [-0.3, 0.0, 0.3, 0.9, 2.9])
async def test_what_a_kubelet_ended_is_no_failure_of_the_job_whoever_is_told_of_first(
    reason: str, log: bytes, later_s: float
) -> None:
    api = cluster(log)
    async with rest_of_cluster(api, exit_code=never), operator(api):
        job = await runs(api, retries=0)
        await asyncio.sleep(3600)
        if later_s < 0:
            end_by_kubelet(api, reason)
            await asyncio.sleep(-later_s)
        if api.exists(f"{PODS}/job-1-0"):
            fails(api, 0)
        if later_s > 0:
            await asyncio.sleep(later_s)
        if later_s >= 0:
            end_by_kubelet(api, reason)
        assert await blamed(api, job) == (0, 1, ["n1"])


@pytest.mark.parametrize("log", LOGS.values(), ids=list(LOGS))
async def test_a_node_that_shuts_down_says_so_before_its_pods_have_ended(log: bytes) -> None:
    """The rank on it saves for as long as it may; its peers fail of its closed connections."""
    api = cluster(log)
    async with rest_of_cluster(api, exit_code=never, stop_s=25.0), operator(api):
        job = await runs(api, retries=0)
        await asyncio.sleep(3600)
        set_ready(api, "n1", "False")
        await asyncio.sleep(0.2)
        fails(api, 0)
        assert await blamed(api, job) == (0, 1, ["n1"])


@pytest.mark.parametrize("log", LOGS.values(), ids=list(LOGS))
@pytest.mark.parametrize("code", [0, 1, 137, 143])
@pytest.mark.parametrize("is_drain", [True, False])
async def test_a_drain_while_no_operator_runs_is_no_failure_of_the_job(log: bytes, code: int, is_drain: bool) -> None:
    api = cluster(log)
    async with rest_of_cluster(api, exit_code=never, stop_s=20.0) as rest:
        async with operator(api):
            job = await runs(api, retries=0)
            await asyncio.sleep(3600)
        rest.moves_pods = False
        end = drain if is_drain else delete
        end(api)
        await asyncio.sleep(5)
        fails(api, 1, code)
        fails(api, 0)
        await asyncio.sleep(15)
        rest.moves_pods = True
        async with operator(api):
            assert await blamed(api, job) == (0, 1, [])


@pytest.mark.parametrize("drained_first", [True, False])
async def test_a_failure_with_a_cause_of_its_own_counts_beside_a_drain(drained_first: bool) -> None:
    """The operator is away, so it sees both at once."""
    api = cluster(OWN)
    async with rest_of_cluster(api, exit_code=never, stop_s=20.0) as rest:
        async with operator(api):
            job = await runs(api, retries=3)
        rest.moves_pods = False
        if drained_first:
            drain(api)
        fails(api, 0)
        if not drained_first:
            drain(api)
        async with operator(api):
            status = await reaches(api, job, "Failed")
    assert (status["failures"], status["failure"]["reason"], status["failure"]["rank"]) == (1, "Import error", 0)


def become_unready(api: FakeCluster) -> None:
    """The node of rank 1."""
    set_ready(api, "n1", "False")


@pytest.mark.parametrize(
    ("end", "avoided"),
    [(drain, ["n0"]), (partial(end_by_kubelet, reason="Evicted"), ["n0", "n1"]), (become_unready, ["n0", "n1"])],
    ids=["drained", "evicted", "node not Ready"],
)
async def test_a_broken_gpu_is_told_of_although_another_rank_is_ended_from_outside(
    end: Callable[[FakeCluster], None], avoided: list[str]
) -> None:
    api = cluster(BROKEN)
    async with rest_of_cluster(api, exit_code=never, stop_s=20.0), operator(api):
        job = await runs(api, retries=0)
        await asyncio.sleep(3600)
        fails(api, 0)
        await asyncio.sleep(0.5)
        end(api)
        assert await blamed(api, job) == (0, 1, avoided)
        failure = api.status(job)["failure"]
    assert (failure["reason"], failure["node"], failure["rank"]) == ("GPU ECC error", "n0", 0)
    assert failure["decision"] == "it is tried again without n0, and not counted as a failure"


async def test_an_operator_that_begins_within_the_wait_waits_too() -> None:
    api = cluster(LOGS["no cause"])
    async with rest_of_cluster(api, exit_code=never):
        async with operator(api):
            job = await runs(api, retries=0)
            await asyncio.sleep(3600)
            fails(api, 0)
            await asyncio.sleep(1)
        async with operator(api):
            await asyncio.sleep(2.5)
            end_by_kubelet(api, "Evicted")
            assert await blamed(api, job) == (0, 1, ["n1"])


@pytest.mark.parametrize(
    ("log", "ranks", "longest_s"),
    [(OWN, (0,), 1.5), (LOGS["no cause"], (0,), 3.5), (LOGS["peer lost"], (0,), 3.5), (LOGS["no cause"], (0, 1), 1.5)],
    ids=["its own cause", "no cause", "peer lost", "all have ended"],
)
async def test_a_job_whose_ranks_nobody_ends_hardly_waits(log: bytes, ranks: tuple[int, ...], longest_s: float) -> None:
    api = cluster(log)
    async with rest_of_cluster(api, exit_code=never), operator(api):
        job = await runs(api)
        await asyncio.sleep(3600)
        for rank in ranks:
            fails(api, rank)
        begun_s = clock()
        await api.until(lambda: api.status(job)["phase"] != "Running", timeout_s=60)
        assert clock() - begun_s <= longest_s


async def test_logs_are_read_twice_at_most_while_news_is_awaited() -> None:
    """Ranks of a large gang end one after the other."""
    read: list[str] = []
    api = cluster(b"")

    def log_of(pod: str) -> bytes:
        read.append(pod)
        return LOGS["no cause"]

    api.log_of = log_of
    async with rest_of_cluster(api, exit_code=never, nodes=8), operator(api):
        job = await runs(api, replicas=8)
        for rank in range(6):
            fails(api, rank)
            await asyncio.sleep(0.3)
        await reaches(api, job, "Queued", attempt=2)
    assert max(read.count(pod) for pod in read) <= 2
