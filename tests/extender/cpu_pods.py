"""The pods of CPU jobs on a fake API server, and what became of them."""

from __future__ import annotations

from typing import Any

from coda.policy import ArraysConfig, PolicyConfig
from coda_kube.objects.json_types import Json
from coda_kube.objects.names import ANNOTATION_BORROWS, GATE
from coda_kube.objects.pods.node_terms import pin_of
from tests.extender.fake_api import FakeApi
from tests.extender.objects import PODS, pod_json

CODA = PolicyConfig(policy="coda", arrays=ArraysConfig(large_share=0.5))
OWNER = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "uid-web", "controller": True}

OTHER = OWNER | {"name": "other", "uid": "uid-other"}


def gated(name: str, *, cpu: int, **metadata: Any) -> Json:
    spec = {"schedulingGates": [{"name": GATE}]}
    metadata = {"creationTimestamp": "2026-01-01T00:00:00Z", "annotations": {}} | metadata
    return pod_json(name, cpu=str(cpu), spec=spec, metadata=metadata)


def pod(api: FakeApi, name: str) -> Json:
    found: Json = api.item(f"{PODS}/{name}")
    return found


def is_released(api: FakeApi, name: str) -> bool:
    return not pod(api, name)["spec"]["schedulingGates"]


def bind(api: FakeApi, name: str) -> None:
    """As kube-scheduler and the kubelet do."""
    api.change(f"{PODS}/{name}", lambda item: item["spec"].update(nodeName=pin_of(item["spec"])))


def releases(api: FakeApi) -> int:
    return len([call for call in api.writes("patch") if call.path.startswith(PODS)])


async def fill(api: FakeApi) -> list[str]:
    """12 pods of 4 cores of a Deployment fill the node; those that borrow."""
    names = [f"web-{number}" for number in range(12)]
    for name in names:
        api.set(PODS, gated(name, cpu=4, ownerReferences=[OWNER]))
    await api.until(lambda: all(is_released(api, name) for name in names))
    for name in names:
        bind(api, name)
    return [name for name in names if pod(api, name)["metadata"]["annotations"].get(ANNOTATION_BORROWS) == "true"]


def evictions(api: FakeApi) -> list[str]:
    calls = [call.path for call in api.writes("create") if call.path.endswith("/eviction")]
    return [path.split("/")[-2] for path in calls]


def events(api: FakeApi) -> list[Json]:
    return [call.body for call in api.writes("create") if call.path.endswith("/events")]
