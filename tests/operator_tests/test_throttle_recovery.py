"""What a dead agent left on its node is undone by a pod there, once, and only when it is dead."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from coda.contention.throttles import LEASE_S, ThrottleReport, nodes_with_stale_throttles
from coda_kube.objects.json_types import Json
from coda_kube.objects.quantities import time_from_seconds
from coda_operator.throttle_recovery import AGENTS_PATH, PODS_PATH, ThrottleRecovery
from coda_operator.view.agents import PROFILES_PATH, Agents
from tests.extender.fake_api import FakeApi

NOW_S = 1_700_000_000.0
AGENTS_NOW_S = NOW_S - 7200.0  # the clocks of the nodes are two hours behind
CONTAINER = {
    "name": "agent",
    "image": "coda-agent:1",
    "readinessProbe": {"httpGet": {"path": "/readyz", "port": "http"}},
    "ports": [{"name": "http", "containerPort": 9092}],
    "securityContext": {"privileged": True},
}


@pytest.fixture
async def api() -> FakeApi:
    api = FakeApi()
    template = {"metadata": {"labels": {}}, "spec": {"hostPID": True, "containers": [CONTAINER]}}
    api.set(AGENTS_PATH.rpartition("/")[0], {"metadata": {"name": "coda-agent"}, "spec": {"template": template}})
    return api


def profile(node: str, *, throttles: int, age_s: float) -> dict[str, Any]:
    status = {"throttleCount": throttles, "time": time_from_seconds(AGENTS_NOW_S - age_s), "age": age_s}
    return {"metadata": {"name": node, "resourceVersion": "1"}, "status": status}


async def looked(api: FakeApi, *profiles: dict[str, Any]) -> ThrottleRecovery:
    """Each profile is seen when it is written; what the operator does meanwhile does not matter."""
    now_s = [0.0]
    recovery = ThrottleRecovery(api, Agents(api).cache, clock=lambda: now_s[0])
    for item in sorted(profiles, key=lambda item: -float(item["status"]["age"])):
        now_s[0] = NOW_S - max(0.0, item["status"]["age"])
        recovery.profiles.put(item)
        await recovery.recover()
    now_s[0] = NOW_S
    await recovery.recover()
    return recovery


async def pods(api: FakeApi) -> list[dict[str, Any]]:
    return [dict(item) for item in (await api.list_pages(PODS_PATH))["items"]]


async def test_a_node_whose_agent_is_dead_gets_a_pod_that_restores(api: FakeApi) -> None:
    await looked(api, profile("n1", throttles=2, age_s=LEASE_S + 1))
    (pod,) = await pods(api)
    (container,) = pod["spec"]["containers"]
    assert (pod["metadata"]["name"], pod["spec"]["nodeName"]) == ("coda-restore-n1", "n1")
    assert (pod["spec"]["hostPID"], pod["spec"]["restartPolicy"]) == (True, "Never")
    assert container["args"] == ["--restore"]
    assert container["securityContext"] == {"privileged": True}
    assert not {"readinessProbe", "ports"} & container.keys()


@pytest.mark.parametrize(("throttles", "age_s"), [(0, 10_000), (2, LEASE_S - 1), (2, -50)])
async def test_a_node_that_is_tended_or_untouched_is_left_alone(api: FakeApi, throttles: int, age_s: float) -> None:
    await looked(api, profile("n1", throttles=throttles, age_s=age_s))
    assert await pods(api) == []
    assert not [call for call in api.calls if call.verb != "list"]


async def test_a_profile_that_cannot_be_read_stops_no_other(api: FakeApi, caplog: pytest.LogCaptureFixture) -> None:
    broken = profile("n0", throttles=2, age_s=LEASE_S + 1)
    broken["status"]["time"] = "yesterday"
    await looked(api, broken, profile("n1", throttles=2, age_s=LEASE_S + 1))
    assert [pod["spec"]["nodeName"] for pod in await pods(api)] == ["n1"]
    assert "NodeProfile n0 cannot be read" in caplog.text


async def test_a_second_look_makes_no_second_pod(api: FakeApi) -> None:
    recovery = await looked(api, profile("n1", throttles=1, age_s=1000))
    await recovery.recover()
    assert len(await pods(api)) == 1


async def test_a_pod_that_ended_without_help_is_replaced(api: FakeApi) -> None:
    recovery = await looked(api, profile("n1", throttles=1, age_s=1000))
    (first,) = await pods(api)
    api.set(PODS_PATH, {**first, "status": {"phase": "Failed"}})
    await recovery.recover()
    await recovery.recover()
    (second,) = await pods(api)
    assert second["metadata"]["uid"] != first["metadata"]["uid"]


async def test_without_an_installed_agent_it_says_so_and_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    await looked(FakeApi(), profile("n1", throttles=1, age_s=1000))
    assert "node n1, whose agent is dead, are not undone yet" in caplog.text


def test_nodes_are_named_in_order() -> None:
    nodes = [ThrottleReport(node=name, throttles=1, renewed_s=0.0) for name in ("b", "a")]
    assert nodes_with_stale_throttles(nodes, LEASE_S + 1) == ("a", "b")


async def test_after_an_outage_agents_have_time_to_speak_first(api: FakeApi) -> None:
    """Nobody could renew anything meanwhile, and the operator that leads anew looks at all of it."""
    api.set(PROFILES_PATH, profile("n1", throttles=1, age_s=LEASE_S + 20))
    recovery = asyncio.create_task(ThrottleRecovery(api, Agents(api).cache, clock=lambda: NOW_S).run())
    for _ in range(100):
        await asyncio.sleep(0)
    recovery.cancel()
    await asyncio.gather(recovery, return_exceptions=True)
    assert await pods(api) == []


class Garbled(FakeApi):
    async def list_pages(self, path: str, query: Mapping[str, str] | None = None, page: int = 1000) -> Json:
        raise ValueError("garbage")


async def test_a_watch_that_meets_a_bug_is_out_of_touch_and_tries_again(caplog: pytest.LogCaptureFixture) -> None:
    """Else its profiles grow old, and every throttled node counts as untended."""
    api = Garbled()
    recovery = ThrottleRecovery(api, Agents(api).cache, clock=lambda: NOW_S)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(recovery.run(), timeout=10)
    assert not recovery.profiles.in_touch.is_set()
    assert caplog.text.count("an error of our own; listing again") == 1
