"""A gang that a ResourceQuota with scopes keeps out: nobody is stopped for it, and it says what it waits for."""

from __future__ import annotations

from typing import Any

import pytest

from coda.policy import ArraysConfig, PolicyConfig
from tests.extender.fake_api import FakeApi
from tests.extender.objects import JOBS, NODES, PODS, job_json, node_json, placement, rank_json
from tests.extender.replicas import placement_of, replica

QUOTAS = "/api/v1/namespaces/default/resourcequotas"
CODA = PolicyConfig(policy="coda", arrays=ArraysConfig(large_share=0.5))
HIGH = {
    "scopeSelector": {"matchExpressions": [{"scopeName": "PriorityClass", "operator": "In", "values": ["coda-high"]}]}
}


def run(api: FakeApi, name: str, node: str, *, gpus: int) -> None:
    job = job_json(name, gpus=gpus, phase="Running", placement=placement(node, plan=f"of-{name}"))
    job["spec"]["resumable"] = True
    api.set(JOBS, job)
    api.set(PODS, rank_json(name, 0, node, node=node, plan=f"of-{name}", gpus=gpus))


@pytest.mark.parametrize(
    ("scopes", "pod", "is_stopped"),
    [
        pytest.param({}, None, False, id="a quota without scopes"),
        pytest.param(HIGH, {"priorityClassName": "coda-high", "terminating": False}, False, id="of its class"),
        pytest.param(HIGH, {"priorityClassName": "", "terminating": False}, True, id="of another class"),
        pytest.param(HIGH, None, True, id="accepted by an operator that did not say its class"),
    ],
)
async def test_nobody_is_stopped_for_a_gang_that_a_quota_keeps_out(
    scopes: dict[str, Any], pod: dict[str, Any] | None, is_stopped: bool
) -> None:
    """A guest of one GPU stands where a gang of eight would go: it moves for it, but for this."""
    api = FakeApi()
    for name, gpus in (("n1", 8), ("n2", 8), ("n3", 1)):
        api.set(NODES, node_json(name, gpus=gpus))
    run(api, "guest", "n1", gpus=1)
    run(api, "resident", "n2", gpus=8)
    key = "requests.nvidia.com/gpu"
    spec, status = {"hard": {key: "8"}} | scopes, {"used": {key: "7"}}
    api.set(QUOTAS, {"metadata": {"name": "high", "namespace": "default"}, "spec": spec, "status": status})
    async with replica(api, policy=CODA):
        large = job_json("large")
        large["status"]["request"] |= {"quota": {key: "8", "pods": "1"}} | ({} if pod is None else {"scopes": pod})
        api.set(JOBS, large)
        if is_stopped:
            await api.until(lambda: bool((placement_of(api, "guest") or {}).get("stop")), timeout_s=8)
            return
        await api.until(lambda: bool(api.item(f"{JOBS}/large")["status"].get("pending")), timeout_s=8)
        assert api.item(f"{JOBS}/large")["status"]["pending"]["code"] == "QuotaExceeded"
        assert "stop" not in (placement_of(api, "guest") or {})
