import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from coda.errors import Outage
from coda.policy import PolicyConfig
from coda_extender.guard.guard import WITHHELD
from tests.extender.deciders import InProcess
from tests.extender.fake_api import Call, FakeApi
from tests.extender.objects import JOBS, NODES, PODS, Item, given_up, job_json, node_json, pod_json
from tests.extender.replicas import Replica, placement_of, replica, state_of, status


@pytest.fixture
async def api() -> FakeApi:
    return FakeApi()


@contextlib.asynccontextmanager
async def deciding(api: FakeApi, meanwhile: Callable[[Replica], None], **config: Any) -> AsyncIterator[Replica]:
    """A replica that starts a gang on n1; between the decision and its write happens `meanwhile`."""
    ones: list[Replica] = []

    async def start() -> InProcess:
        return InProcess(PolicyConfig(), lambda: meanwhile(ones[0]))

    async with replica(api, start=start, takeover_limit_s=0.0, **config) as one:
        ones.append(one)
        await one.cluster.wait_until_synced()
        api.set(NODES, node_json("n1"))
        api.set(JOBS, job_json("gang"))
        yield one


def passed_the_filter(pod: Item, *nodes: str) -> Callable[[Replica], None]:
    def ask(one: Replica) -> None:
        assert one.ask(pod, [*nodes]).passed == [*nodes]

    return ask


async def test_release_waits_for_a_foreign_pod_that_passed_the_filter_before_the_commit(api: FakeApi) -> None:
    pod = api.set(PODS, pod_json("foreign", gpus=1))
    async with deciding(api, passed_the_filter(pod, "n1")):
        await api.until(lambda: state_of(api, "gang") == "Committed")
        await asyncio.sleep(0.1)
        assert state_of(api, "gang") == "Committed"
        api.change(f"{PODS}/foreign", lambda item: item.update(status=given_up()))
        await api.until(lambda: state_of(api, "gang") == "Released")


async def test_a_placement_whose_place_a_foreign_pod_took_is_dropped_and_decided_again_elsewhere(api: FakeApi) -> None:
    pod = api.set(PODS, pod_json("foreign", gpus=1))
    async with deciding(api, passed_the_filter(pod, "n1")):
        await api.until(lambda: state_of(api, "gang") == "Committed")
        api.change(f"{PODS}/foreign", lambda item: item["spec"].update(nodeName="n1"))
        await api.until(lambda: "placement" not in status(api, "gang"))
        api.set(NODES, node_json("n2"))
        await api.until(lambda: state_of(api, "gang") == "Released")
    assert placement_of(api, "gang")["nodes"] == ["n2"]


async def test_a_foreign_pod_that_never_settles_costs_the_placement_not_the_gang(api: FakeApi) -> None:
    pod = api.set(PODS, pod_json("foreign", gpus=1))
    async with deciding(api, passed_the_filter(pod, "n1"), settle_limit_s=0.1):
        await api.until(lambda: state_of(api, "gang") == "Committed")
        api.set(NODES, node_json("n2"))
        await api.until(lambda: placement_of(api, "gang").get("nodes") == ["n2"])


def states_written(api: FakeApi) -> list[str | None]:
    return [(call.body["status"].get("placement") or {}).get("state") for call in api.writes()]


async def test_with_nothing_in_the_way_one_write_commits_and_releases(api: FakeApi) -> None:
    async with deciding(api, lambda _one: None) as one:
        await api.until(lambda: state_of(api, "gang") == "Released")
        assert states_written(api) == ["Released"]
        assert one.count("coda_planner_commits_total") == one.count("coda_planner_releases_total") == 1


async def test_a_pod_in_flight_to_other_nodes_is_not_in_the_way(api: FakeApi) -> None:
    pod = api.set(PODS, pod_json("foreign", gpus=1))
    api.set(NODES, node_json("n2", gpus=4))
    async with deciding(api, passed_the_filter(pod, "n2")):
        await api.until(lambda: state_of(api, "gang") == "Released")
        assert states_written(api) == ["Released"]


async def test_a_pod_that_asks_while_the_write_is_under_way_is_refused(api: FakeApi) -> None:
    """The capacity counts as withheld before the write is sent, not when it is answered."""
    pod = api.set(PODS, pod_json("foreign", gpus=1))
    refused: list[Any] = []
    async with deciding(api, lambda _one: None) as one:

        def ask(call: Call) -> None:
            if call.verb == "apply":
                refused.append(one.ask(pod, ["n1"]).refused)

        api.before = ask
        await api.until(lambda: state_of(api, "gang") == "Released")
    assert refused == [{"n1": WITHHELD}]


def bind_a_pod(api: FakeApi, one: Replica) -> None:
    one.cluster.pods.put(api.set(PODS, pod_json("quick", gpus=1, node="n1")))


def cordon(api: FakeApi, one: Replica) -> None:
    one.cluster.state.on_node(None, api.change(f"{NODES}/n1", lambda node: node["spec"].update(unschedulable=True)))


def remove_the_node(api: FakeApi, one: Replica) -> None:
    one.cluster.state.on_node(api.item(f"{NODES}/n1"), None)
    one.cluster.guard.node_changed("n1")
    api.remove(f"{NODES}/n1")


@pytest.mark.parametrize("meanwhile", [bind_a_pod, cordon, remove_the_node])
async def test_what_the_decision_did_not_see_keeps_the_first_write_from_releasing(
    api: FakeApi, meanwhile: Callable[[FakeApi, Replica], None]
) -> None:
    async with deciding(api, lambda one: meanwhile(api, one)):
        await api.until(lambda: len(states_written(api)) >= 2)
        assert states_written(api)[:2] == ["Committed", None]


async def test_nothing_is_planned_while_pods_are_not_watched(api: FakeApi) -> None:
    """A pod may have been bound unseen; its time in flight must not run out unheard."""

    def no_pods(call: Call) -> None:
        if call.path == "/api/v1/pods":
            raise Outage("connection refused")

    api.set(NODES, node_json("n1"))
    async with replica(api) as one:
        await api.until(one.planner.leads)
        api.before = no_pods
        api.set(JOBS, job_json("gang"))
        api.compact()  # every watch is over, all others come back
        await api.until(lambda: "default/gang" in one.cluster.state.job_json_by_id)
        await asyncio.sleep(0.2)
        assert state_of(api, "gang") is None
        answer = one.ask(pod_json("foreign"), ["n1"])
        assert (list(answer.passed), bool(answer.error)) == ([], True)
        api.before = None
        await api.until(lambda: state_of(api, "gang") == "Released")


async def test_after_a_failover_unbound_pods_count_everywhere_for_a_while(api: FakeApi) -> None:
    api.set(NODES, node_json("n1"))
    api.set(PODS, pod_json("foreign", gpus=1))
    api.set(PODS, pod_json("of another scheduler".replace(" ", "-"), gpus=1, scheduler="other"))
    api.set(JOBS, job_json("gang"))
    started_s = time.monotonic()
    async with replica(api, takeover_limit_s=0.4):
        await api.until(lambda: state_of(api, "gang") == "Released")
    assert time.monotonic() - started_s >= 0.4


async def test_a_gang_does_not_wait_for_a_pod_that_waits_for_its_volume_on_another_node(api: FakeApi) -> None:
    for name in ("n1", "n2"):
        api.set(NODES, node_json(name))
    pod = api.set(PODS, pod_json("foreign", gpus=1))
    async with replica(api, takeover_limit_s=0.0) as one:
        await one.cluster.wait_until_synced()
        await api.until(one.planner.leads)
        assert one.ask(pod, ["n1", "n2"]).passed == ["n1", "n2"]
        api.change(f"{PODS}/foreign", lambda item: item["status"].update(nominatedNodeName="n1"))
        api.set(JOBS, job_json("gang"))
        await api.until(lambda: state_of(api, "gang") == "Released")
    assert placement_of(api, "gang")["nodes"] == ["n2"]
