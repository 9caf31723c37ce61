"""Pods that ask for seats on the real node, and what the API server says of them."""

from __future__ import annotations

from coda_kube.api.client import Client
from coda_kube.objects.json_types import Json
from tests.e2e.jobs import wait_for
from tests.realnode.scene import PATIENCE_S, PODS, guaranteed_pod, is_running, main_status

NODE = "/api/v1/nodes/real-0"
PROFILE = "/apis/coda.scheduler/v1alpha1/nodeprofiles/real-0"
SHARING = "coda.scheduler/sharing"
SEATS = 4


def pod(name: str, resource: str, **more: str) -> Json:
    """A pod that idles, with one of these. `more`: further resources."""
    found = guaranteed_pod(name, cores="50m", gpus=0)
    amounts = {"cpu": "50m", "memory": "256Mi", resource: "1", **more}
    found["spec"]["containers"][0]["resources"] = {"requests": amounts, "limits": amounts}
    return found


async def running(admin: Client, name: str) -> Json:
    """The pod once its container has started."""
    return await wait_for(admin, f"{PODS}/{name}", is_running, within_s=PATIENCE_S)


async def offered(admin: Client, resource: str, count: int) -> None:
    """Wait until the node has so many for pods."""

    def has(item: Json) -> bool:
        return bool(item["status"]["allocatable"].get(resource) == str(count))

    await wait_for(admin, NODE, has, within_s=PATIENCE_S)


def is_numbered(profile: Json) -> bool:
    """True if the profile says which GPU is which resource."""
    return all("index" in gpu for gpu in profile.get("status", {}).get("gpus") or [{}])


def is_unschedulable(item: Json) -> bool:
    """True if the scheduler found no node for the pod."""
    return any(each.get("reason") == "Unschedulable" for each in item["status"].get("conditions", ()))


def identities(pods: list[Json]) -> list[tuple[str, int]]:
    """The containers, and how often they were started again."""
    return [(main_status(item)["containerID"], main_status(item)["restartCount"]) for item in pods]
