"""The pods of CPU jobs on a fake API server, and what became of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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

    def run(item: Json) -> None:
        item["spec"].update(nodeName=pin_of(item["spec"]))
        item["status"].update(phase="Running")

    api.change(f"{PODS}/{name}", run)


def releases(api: FakeApi) -> int:
    return len([call for call in api.writes("patch") if call.path.startswith(PODS)])


async def fill(api: FakeApi, owners: Sequence[Mapping[str, Any]] = (OWNER,)) -> list[str]:
    """12 pods of 4 cores fill the node, of these owners in turn; returns those that borrow, in the order of the queue.

    Each has the label `app`, with its owner's name."""
    names = [f"web-{number}" for number in range(12)]
    for number, name in enumerate(names):
        owner = owners[number % len(owners)]
        api.set(PODS, gated(name, cpu=4, ownerReferences=[owner], labels={"app": owner["name"]}))
    await api.until(lambda: all(is_released(api, name) for name in names))
    for name in names:
        bind(api, name)
    return [name for name in names if pod(api, name)["metadata"]["annotations"].get(ANNOTATION_BORROWS) == "true"]


def budget(api: FakeApi, app: str, allowed: int, name: str | None = None) -> None:
    """A PodDisruptionBudget of the pods with this label."""
    api.set(
        "/apis/policy/v1/namespaces/default/poddisruptionbudgets",
        {
            "metadata": {"name": name or app},
            "spec": {"selector": {"matchLabels": {"app": app}}},
            "status": {"disruptionsAllowed": allowed, "desiredHealthy": 2, "currentHealthy": 2 + allowed},
        },
    )


def evictions(api: FakeApi, *, trials: bool = False) -> list[str]:
    """The pods that were to be evicted, or for which that was only tried."""
    calls = [call for call in api.writes("create") if call.path.endswith("/eviction")]
    return [call.path.split("/")[-2] for call in calls if trials == ("dryRun" in call.body["deleteOptions"])]


def events(api: FakeApi) -> list[Json]:
    return [call.body for call in api.writes("create") if call.path.endswith("/events")]
