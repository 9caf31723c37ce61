import asyncio
import time
from typing import Any

import pytest

from coda.errors import Outage
from tests.extender.fake_api import Call, FakeApi
from tests.extender.objects import JOBS, NODES, PODS, given_up, job_json, node_json, pod_json
from tests.extender.replicas import placement_of, replica, state_of, status


@pytest.fixture
async def api() -> FakeApi:
    return FakeApi()


def committed_under_a_pod_in_flight(api: FakeApi, ask: Any) -> dict[str, Any]:
    """Between the decision and its commit a foreign pod passes the filter for the planned node."""
    seen: dict[str, Any] = {}

    def pass_filter(call: Call) -> None:
        if call.verb == "apply":
            api.before = None
            seen["answer"] = ask(["n1"])

    api.before = pass_filter
    return seen


async def test_release_waits_for_a_foreign_pod_that_passed_the_filter_before_the_commit(api: FakeApi) -> None:
    pod = api.set(PODS, pod_json("foreign", gpus=1))
    async with replica(api, takeover_limit_s=0.0) as one:
        seen = committed_under_a_pod_in_flight(api, lambda names: one.ask(pod, names))
        await one.cluster.wait_until_synced()
        api.set(NODES, node_json("n1"))
        api.set(JOBS, job_json("gang"))
        await api.until(lambda: state_of(api, "gang") == "Committed")
        assert seen["answer"].passed == ["n1"]
        await asyncio.sleep(0.1)
        assert state_of(api, "gang") == "Committed"
        api.change(f"{PODS}/foreign", lambda item: item.update(status=given_up()))
        await api.until(lambda: state_of(api, "gang") == "Released")


async def test_a_placement_whose_place_a_foreign_pod_took_is_dropped_and_decided_again_elsewhere(api: FakeApi) -> None:
    pod = api.set(PODS, pod_json("foreign", gpus=1))
    async with replica(api, takeover_limit_s=0.0) as one:
        committed_under_a_pod_in_flight(api, lambda names: one.ask(pod, names))
        await one.cluster.wait_until_synced()
        api.set(NODES, node_json("n1"))
        api.set(JOBS, job_json("gang"))
        await api.until(lambda: state_of(api, "gang") == "Committed")
        api.change(f"{PODS}/foreign", lambda item: item["spec"].update(nodeName="n1"))
        await api.until(lambda: "placement" not in status(api, "gang"))
        api.set(NODES, node_json("n2"))
        await api.until(lambda: state_of(api, "gang") == "Released")
    assert placement_of(api, "gang")["nodes"] == ["n2"]


async def test_a_foreign_pod_that_never_settles_costs_the_placement_not_the_gang(api: FakeApi) -> None:
    pod = api.set(PODS, pod_json("foreign", gpus=1))
    async with replica(api, takeover_limit_s=0.0, settle_limit_s=0.1) as one:
        committed_under_a_pod_in_flight(api, lambda names: one.ask(pod, names))
        await one.cluster.wait_until_synced()
        api.set(NODES, node_json("n1"))
        api.set(JOBS, job_json("gang"))
        await api.until(lambda: state_of(api, "gang") == "Committed")
        api.set(NODES, node_json("n2"))
        await api.until(lambda: placement_of(api, "gang").get("nodes") == ["n2"])


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
