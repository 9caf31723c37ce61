"""Ordinary accidents: nodes that go away alone or together, reboots, clocks that jump or differ."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from coda.errors import Outage
from coda_kube.api.client import Rejected
from coda_kube.objects.json_types import Json
from coda_kube.objects.quantities import time_from_seconds
from tests.extender.fake_api import Call
from tests.operator_tests.fake_cluster import NODES, PODS, FakeCluster, clock
from tests.operator_tests.operators import CONFIG, operator
from tests.operator_tests.rest_of_cluster import rest_of_cluster
from tests.operator_tests.test_lost_ranks import reaches, runs


def never(attempt: int, rank: int) -> None:
    return None


def set_ready(api: FakeCluster, node: str, ready: str, **status: Any) -> None:
    def change(item: Json) -> None:
        stamp = time_from_seconds(clock())
        item["status"]["conditions"] = [{"type": "Ready", "status": ready, "lastTransitionTime": stamp}]
        item["status"] |= status

    api.change(f"{NODES}/{node}", change)


def events(api: FakeCluster, job: str) -> list[str]:
    name = job.rsplit("/", 1)[1]
    return [item["reason"] for _, item in api.history("events") if item["involvedObject"]["name"] == name]


async def test_many_nodes_that_go_away_together_roll_nothing_back() -> None:
    """A load balancer is away for 10 min: every kubelet is unheard, every rank runs."""
    api = FakeCluster()
    async with rest_of_cluster(api, nodes=10, exit_code=never), operator(api) as process:
        job = await runs(api)
        for number in range(10):
            set_ready(api, f"n{number}", "Unknown")
        await asyncio.sleep(600)
        status = api.status(job)
        assert (status["phase"], status["attempt"], status["reason"]) == ("Running", 1, "NodeNotReady")
        assert "many nodes stopped being Ready together" in status["message"]
        assert process.count("coda_operator_node_loss_suspended") == 1
        for number in range(10):
            set_ready(api, f"n{number}", "True")
            await asyncio.sleep(5)
        assert await reaches(api, job, "Running", attempt=1, reason="Running")
        assert "NodeNotReady" in events(api, job)
        assert process.count("coda_operator_node_loss_suspended") == 0


async def test_a_node_that_stays_away_when_the_others_are_back_is_lost_then() -> None:
    api = FakeCluster()
    async with rest_of_cluster(api, nodes=10, exit_code=never) as rest, operator(api):
        job = await runs(api)
        rest.lost_nodes.add("n1")
        for number in range(10):
            set_ready(api, f"n{number}", "Unknown")
        await asyncio.sleep(600)
        for number in (0, *range(2, 10)):
            set_ready(api, f"n{number}", "True")
        back_s = clock()
        lost = await reaches(api, job, "Queued", attempt=2)
        assert lost["reason"] == "NodeLost"
        assert clock() - back_s >= CONFIG.node_loss_s - 1


async def test_a_few_nodes_that_go_away_are_lost_each_by_itself() -> None:
    api = FakeCluster()
    async with rest_of_cluster(api, nodes=10, exit_code=never) as rest, operator(api):
        job = await runs(api)
        rest.lost_nodes.add("n1")
        for number in (1, 8):
            set_ready(api, f"n{number}", "Unknown")
        assert (await reaches(api, job, "Queued", attempt=2))["reason"] == "NodeLost"


def cut(api: FakeCluster, only: str = "") -> None:
    """The API server answers no request whose path begins with `only`, and ends every watch."""

    def refuse(call: Call) -> None:
        if call.path.startswith(only):
            raise Outage("nobody answers")

    api.before = refuse
    api.restart()


@pytest.mark.parametrize(("seen_s", "away_s"), [(5, 90), (55, 30)])
async def test_a_node_is_not_lost_for_a_time_in_which_nobody_could_see_it_come_back(
    seen_s: float, away_s: float
) -> None:
    """Its kubelet needs up to 10 s to say so when the API server is back."""
    api = FakeCluster()
    async with rest_of_cluster(api, exit_code=never), operator(api):
        job = await runs(api)
        set_ready(api, "n1", "Unknown")
        await asyncio.sleep(seen_s)
        cut(api)
        await asyncio.sleep(away_s)
        api.before = None
        await asyncio.sleep(10)
        set_ready(api, "n1", "True")
        await asyncio.sleep(300)
        assert await reaches(api, job, "Running", attempt=1)


async def test_a_node_that_stays_away_after_an_outage_is_lost_then_and_cut_watches_put_that_not_off() -> None:
    api = FakeCluster()
    async with rest_of_cluster(api, exit_code=never) as rest, operator(api):
        job = await runs(api)
        rest.lost_nodes.add("n1")
        set_ready(api, "n1", "Unknown")
        await asyncio.sleep(5)
        cut(api)
        await asyncio.sleep(90)
        api.before = None
        back_s = clock()
        for _ in range(4):
            await asyncio.sleep(11)
            api.restart()
        assert (await reaches(api, job, "Queued", attempt=2))["reason"] == "NodeLost"
        assert CONFIG.node_loss_s - 1 <= clock() - back_s <= CONFIG.node_loss_s + 5


async def test_a_node_that_the_watch_has_not_shown_yet_is_not_given_up() -> None:
    api = FakeCluster()
    async with rest_of_cluster(api, nodes=8, exit_code=never) as rest, operator(api):
        cut(api, only=NODES)
        rest.first_node = 8
        add_nodes(api, "True", "n8", "n9", allocatable={"nvidia.com/gpu": "8", "cpu": "48", "memory": "128Gi"})
        job = await runs(api, onNodeLoss="Wait")
        await asyncio.sleep(120)
        api.before = None
        await asyncio.sleep(120)
        assert await reaches(api, job, "Running", attempt=1)


async def test_a_job_may_wait_for_its_node_and_goes_on_when_it_is_back() -> None:
    api = FakeCluster()
    async with rest_of_cluster(api, exit_code=never), operator(api):
        job = await runs(api, onNodeLoss="Wait")
        set_ready(api, "n1", "Unknown")
        status = await reaches(api, job, "Running", reason="NodeNotReady")
        assert status["message"].endswith("the attempt goes on, because spec.onNodeLoss is Wait")
        await asyncio.sleep(7200)
        set_ready(api, "n1", "True")
        await reaches(api, job, "Running", attempt=1, reason="Running")


@pytest.mark.parametrize("verdict", ["deleted", "out-of-service"])
async def test_a_job_waits_for_its_node_until_somebody_gives_it_up(verdict: str) -> None:
    api = FakeCluster()
    taint = {"key": "node.kubernetes.io/out-of-service", "value": "nodeshutdown", "effect": "NoExecute"}
    async with rest_of_cluster(api, exit_code=never) as rest, operator(api):
        job = await runs(api, onNodeLoss="Wait")
        rest.lost_nodes.add("n1")
        set_ready(api, "n1", "Unknown")
        await asyncio.sleep(600)
        assert api.status(job)["attempt"] == 1
        if verdict == "deleted":
            api.remove(f"{NODES}/n1")
        else:
            api.change(f"{NODES}/n1", lambda item: item.update(spec={"taints": [taint]}))
        await reaches(api, job, "Queued", attempt=2)


async def test_ranks_are_not_evicted_by_kubernetes_while_coda_judges_the_node() -> None:
    """By default, pods are evicted after 5 min on a node that is not Ready or not reachable."""
    api = FakeCluster()
    async with rest_of_cluster(api, exit_code=never), operator(api):
        await runs(api)
        tolerated = api.item(f"{PODS}/job-1-0")["spec"]["tolerations"]
    for trouble in ("not-ready", "unreachable"):
        key = f"node.kubernetes.io/{trouble}"
        assert {"key": key, "operator": "Exists", "effect": "NoExecute"} in tolerated


@pytest.mark.parametrize("seen_away", [True, False], ids=["the node was away", "only its boot id changed"])
async def test_a_rank_that_ended_with_its_node_is_not_the_jobs_fault(seen_away: bool) -> None:
    """Back in 50 s, its kubelet tells an exit code of 1 for a container that the reboot ended."""
    api = FakeCluster()
    async with rest_of_cluster(api, exit_code=never), operator(api):
        job = await runs(api)
        set_ready(api, "n1", "True", nodeInfo={"bootID": "first"})
        await asyncio.sleep(5)
        if seen_away:
            set_ready(api, "n1", "Unknown")
            await asyncio.sleep(50)
        set_ready(api, "n1", "True", nodeInfo={"bootID": "second"})
        await asyncio.sleep(10)
        ended = {"exitCode": 1, "reason": "Error"}
        status = {"phase": "Failed", "containerStatuses": [{"name": "main", "state": {"terminated": ended}}]}
        api.change(f"{PODS}/job-1-1", lambda pod: pod.update(status=status))
        restarted = await reaches(api, job, "Queued", attempt=2)
        assert (restarted["failures"], restarted["disruptions"], restarted["reason"]) == (0, 1, "NodeOutage")


async def test_a_rank_that_fails_on_a_node_that_is_fine_is_the_jobs_fault() -> None:
    api = FakeCluster()
    async with rest_of_cluster(api, exit_code=never), operator(api):
        job = await runs(api)
        set_ready(api, "n0", "Unknown")
        await asyncio.sleep(5)
        set_ready(api, "n0", "True")
        ended = {"exitCode": 1, "reason": "Error"}
        status = {"phase": "Failed", "containerStatuses": [{"name": "main", "state": {"terminated": ended}}]}
        api.change(f"{PODS}/job-1-1", lambda pod: pod.update(status=status))
        assert (await reaches(api, job, "Queued", attempt=2))["failures"] == 1


@pytest.mark.parametrize("skew_s", [-3600.0, -61.0, 61.0, 3600.0])
async def test_a_planner_whose_clock_differs_costs_no_attempt(skew_s: float) -> None:
    """Its deadline is a length of time: it counts from the moment at which the operator sees it."""
    api = FakeCluster()
    async with rest_of_cluster(api, exit_code=never, skew_s=skew_s), operator(api):
        job = await runs(api)
        assert api.status(job)["attempt"] == 1


@pytest.mark.parametrize("skew_s", [-3600.0, 0.0, 3600.0])
async def test_a_gang_that_is_not_bound_is_rolled_back_in_time_whatever_the_planners_clock_says(skew_s: float) -> None:
    api = FakeCluster()
    async with rest_of_cluster(api, exit_code=never, skew_s=skew_s) as rest, operator(api):
        rest.binds = False
        began_s = clock()
        job = api.submit()
        failed = await reaches(api, job, "Queued", attempt=2)
        assert failed["reason"] == "BindDeadlineExceeded"
        assert 55 <= clock() - began_s <= 65


async def test_a_gang_that_is_always_refused_tries_less_and_less_often_and_says_who_refuses() -> None:
    """Host ports, volumes, attach limits: only kube-scheduler knows why rank 1 never fits on its node."""
    api = FakeCluster()
    said = "0/4 nodes are available: 1 node(s) didn't have free ports for the requested pod ports"

    def refuse(pod: Json) -> None:
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": said}
        pod["status"] = {"phase": "Pending", "conditions": [condition]}

    async with rest_of_cluster(api, exit_code=never) as rest, operator(api):
        rest.binds = False
        job = api.submit()
        for attempt in range(1, 11):
            await api.until(lambda attempt=attempt: f"job-{attempt}-1" in api.pods(), timeout_s=8000)  # type: ignore[misc]
            api.change(f"{PODS}/job-{attempt}-1", refuse)
            waits = await reaches(api, job, "Queued", attempt=attempt + 1)
        assert waits["failures"] == 0
        expected = (
            f"attempt 10: n1 refused rank 1: {said}; 10 attempts in a row ended so; the next is tried 512 s later"
        )
        assert waits["message"].startswith(expected)
        assert [node["name"] for node in waits["avoidNodes"]] == ["n1"]
        begun_s = clock()
        await api.until(lambda: "job-11-1" in api.pods(), timeout_s=8000)
        assert 500 <= clock() - begun_s <= 3600


async def test_an_edit_ends_the_back_off() -> None:
    api = FakeCluster()
    api.admit = quota_on_pods
    async with rest_of_cluster(api, exit_code=never), operator(api):
        job = api.submit()
        for attempt in range(2, 10):
            await reaches(api, job, "Queued", attempt=attempt, disruptionsInARow=attempt - 1)
        api.edit(job, template={"spec": {"containers": [{"name": "main", "image": "train:2"}]}})
        await reaches(api, job, "Queued", attempt=9, reason="Edited")
        assert "notBefore" not in api.status(job)
        assert "disruptionsInARow" not in api.status(job)


def quota_on_pods(pod: Json) -> None:
    if "name" in pod["metadata"]:
        raise Rejected(403, "Forbidden", 'pods "job-1-0" is forbidden: exceeded quota: small')


def add_nodes(api: FakeCluster, ready: str | None, *names: str, **status: Any) -> None:
    stamp = time_from_seconds(clock())
    conditions = [] if ready is None else [{"type": "Ready", "status": ready, "lastTransitionTime": stamp}]
    for name in names:
        api.set(NODES, {"metadata": {"name": name}, "status": {"conditions": conditions, **status}})


LEFTOVERS = tuple(f"leftover-{number}" for number in range(12))


@pytest.mark.parametrize("ready", ["False", "Unknown", None])
async def test_nodes_that_were_never_ready_keep_no_other_from_being_lost(ready: str | None) -> None:
    """An autoscaler adds a batch of nodes, and they never join."""
    api = FakeCluster()
    async with rest_of_cluster(api, nodes=8, exit_code=never) as rest, operator(api) as process:
        job = await runs(api)
        add_nodes(api, ready, *LEFTOVERS)
        await asyncio.sleep(20)
        assert process.count("coda_operator_node_loss_suspended") == 0
        rest.lost_nodes.add("n1")
        set_ready(api, "n1", "Unknown")
        lost_s = clock()
        assert (await reaches(api, job, "Queued", attempt=2))["reason"] == "NodeLost"
        assert clock() - lost_s < CONFIG.node_loss_s + 60


def condition(kind: str, status: str, reason: str, since_s: float) -> Json:
    return {"type": kind, "status": status, "reason": reason, "lastTransitionTime": time_from_seconds(since_s)}


@pytest.mark.parametrize(
    "conditions",
    [
        pytest.param([], id="no kubelet"),
        pytest.param([condition("Ready", "Unknown", "NodeStatusNeverUpdated", 90.0)], id="a kubelet never spoke"),
        pytest.param(
            [
                condition("MemoryPressure", "False", "KubeletHasSufficientMemory", 50.0),
                condition("Ready", "False", "KubeletNotReady", 50.0),
            ],
            id="its kubelet has said the same since it came",
        ),
    ],
)
async def test_an_operator_that_begins_beside_leftovers_does_not_brake(conditions: list[Json]) -> None:
    api = FakeCluster()
    async with rest_of_cluster(api, nodes=8, exit_code=never):
        for name in LEFTOVERS:
            api.set(NODES, {"metadata": {"name": name}, "status": {"conditions": conditions}})
        async with operator(api) as process:
            await runs(api)
            assert process.count("coda_operator_node_loss_suspended") == 0


async def test_an_operator_that_begins_in_the_middle_of_an_outage_brakes() -> None:
    """It saw none of the nodes Ready, but their kubelets have spoken."""
    api = FakeCluster()
    async with rest_of_cluster(api, nodes=10, exit_code=never):
        async with operator(api):
            job = await runs(api)
        gone = [condition("Ready", "Unknown", "NodeStatusUnknown", clock())]
        for number in range(10):
            api.change(f"{NODES}/n{number}", lambda item: item["status"].update(conditions=gone))
        async with operator(api):
            await asyncio.sleep(600)
            assert api.status(job)["attempt"] == 1


async def test_the_brake_ends_when_the_nodes_that_hold_it_are_deleted() -> None:
    """Replaced by new ones, for example: their own ranks are lost, and no other rank has to wait for them."""
    api = FakeCluster()
    async with rest_of_cluster(api, nodes=10, exit_code=never) as rest, operator(api) as process:
        job = await runs(api, replicas=4)
        rest.lost_nodes |= {"n0", "n7", "n8", "n9"}
        for name in ("n0", "n7", "n8", "n9"):
            set_ready(api, name, "Unknown")
        await asyncio.sleep(300)
        assert process.count("coda_operator_node_loss_suspended") == 1
        for name in ("n7", "n8", "n9"):
            api.remove(f"{NODES}/{name}")
        assert (await reaches(api, job, "Queued", attempt=2))["reason"] == "NodeLost"
        assert process.count("coda_operator_node_loss_suspended") == 0
