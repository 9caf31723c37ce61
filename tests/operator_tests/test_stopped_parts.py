"""An uninstallation goes on only once Coda's parts are stopped for good, and no dead node holds it up."""

from __future__ import annotations

import pytest

from coda.errors import CodaError
from coda_kube.objects.json_types import Json
from coda_operator.uninstall.parts import WRITERS, stop
from tests.extender.fake_api import Call, FakeApi

PODS = "/api/v1/namespaces/coda-system/pods"
WITHIN_S = 0.1


def pod(part: str, *, is_ending: bool = False, phase: str = "Running") -> Json:
    labels = {"app.kubernetes.io/name": "coda", "app.kubernetes.io/component": part}
    item: Json = {"metadata": {"name": f"coda-{part}-1", "labels": labels}, "status": {"phase": phase}}
    if is_ending:
        item["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    return item


def with_pods(*pods: Json) -> FakeApi:
    api = FakeApi()
    for item in pods:
        api.set(PODS, item)
    return api


async def test_parts_that_run_on_are_named_with_the_reason() -> None:
    """As where a GitOps tool makes a Deployment again as soon as it is deleted."""
    api = with_pods(pod("operator"), pod("agent"), pod("uninstall"))
    with pytest.raises(CodaError) as caught:
        await stop(api, WRITERS, within_s=WITHIN_S)
    assert str(caught.value) == (
        "coda-system/coda-agent-1 and coda-system/coda-operator-1 run still, or again, and write for Coda: "
        "switch off first whatever makes them again, such as the automated sync of a GitOps tool"
    )


async def test_pods_that_do_not_end_hold_nobody_up(caplog: pytest.LogCaptureFixture) -> None:
    """On a dead node a pod is being deleted for as long as the node is away."""
    api = with_pods(pod("agent", is_ending=True), pod("extender", phase="Failed"), pod("restore", is_ending=True))
    await stop(api, WRITERS, within_s=WITHIN_S)
    assert "these pods do not end, perhaps their nodes are dead: coda-system/coda-agent-1" in caplog.text


async def test_it_waits_for_pods_that_end() -> None:
    api = with_pods(pod("operator", is_ending=True), pod("agent"))

    def end(call: Call) -> None:
        if call.verb == "delete" and call.path.endswith("/coda-extender"):
            api.remove(f"{PODS}/coda-agent-1")
            api.remove(f"{PODS}/coda-operator-1")

    api.before = end
    await stop(api, WRITERS, within_s=60.0)


async def test_parts_that_came_back_meanwhile_are_seen() -> None:
    api = with_pods(pod("operator"))
    with pytest.raises(CodaError, match="coda-system/coda-operator-1 runs still, or again, and writes for Coda"):
        await stop(api, {"scheduler": "deployments"}, stopped=WRITERS, within_s=WITHIN_S)
    api = with_pods(pod("agent", is_ending=True))
    await stop(api, {"scheduler": "deployments"}, stopped=WRITERS, within_s=60.0)
