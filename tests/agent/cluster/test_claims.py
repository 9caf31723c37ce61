"""Claims of this node's pods: read once, for pods that have some, in every version of their API."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from coda_agent.claimed_device import ClaimedDevice
from coda_agent.cluster.claims import (
    AGAIN_S,
    GROUP,
    ClaimingPod,
    ClaimReader,
    ClaimUse,
    claim_uses_from_json,
    devices_from_claim,
    uuids_from_slices,
)
from coda_kube.api.client import Client, NotFound, NotServed, error_from_answer
from coda_kube.objects.json_types import Json

DRIVER = "gpu.nvidia.com"
GPU_0 = ClaimedDevice(driver=DRIVER, pool="n1", device="gpu-0")
GPU_1 = ClaimedDevice(driver=DRIVER, pool="n1", device="gpu-1")
POD = ClaimingPod(uid="u1", namespace="vision", uses=(ClaimUse("claim-1", "main"),))


SLICES = f"{GROUP}/v1/resourceslices"
CLAIM = f"{GROUP}/v1/namespaces/vision/resourceclaims/claim-1"


def pod(uid: str, claim: str = "claim-1") -> ClaimingPod:
    return ClaimingPod(uid=uid, namespace="vision", uses=(ClaimUse(claim, "main"),))


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def gpu(name: str, uuid: str | None) -> Json:
    return {"name": name, "attributes": {} if uuid is None else {"uuid": {"string": uuid}}}


def slice_json(*devices: Json, generation: int = 1) -> Json:
    pool = {"name": "n1", "generation": generation, "resourceSliceCount": 1}
    return {"spec": {"driver": DRIVER, "nodeName": "n1", "pool": pool, "devices": list(devices)}}


def claim_json(*devices: str, request: str = "gpus", **more: Any) -> Json:
    results = [{"driver": DRIVER, "pool": "n1", "device": one, "request": request, **more} for one in devices]
    return {"status": {"allocation": {"devices": {"results": results}}}}


class Server(Client):
    """Answers these paths alone, and remembers what it was asked."""

    def __init__(self, version: str = "v1") -> None:
        self.items: dict[str, Json] = {}
        self.asked: list[str] = []
        if version:
            self.items = {
                GROUP: {"versions": [{"version": "v1alpha3"}, {"version": version}]},
                f"{GROUP}/{version}/resourceslices": {"items": [slice_json(gpu("gpu-0", "GPU-0"))]},
                f"{GROUP}/{version}/namespaces/vision/resourceclaims/claim-1": claim_json("gpu-0"),
            }

    async def get(self, path: str, query: Any = None) -> Json:
        self.asked.append(path)
        if path not in self.items:
            served = any(known.startswith(path.rpartition("/")[0] + "/") for known in self.items)
            raise NotFound(404, "NotFound", path) if served else error_from_answer(404, "404 page not found\n")
        return copy.deepcopy(self.items[path])

    async def list_pages(self, path: str, query: Any = None, page: int = 1000) -> Json:
        assert query == {"fieldSelector": "spec.nodeName=n1"}
        if path not in self.items:  # a kind that is served has a list
            raise error_from_answer(404, "404 page not found\n")
        return await self.get(path)


@pytest.mark.parametrize("version", ["v1", "v1beta2", "v1beta1"])
async def test_the_uuid_of_a_claimed_device_is_read_once(version: str) -> None:
    server = Server(version)
    reader = ClaimReader(server, "n1")
    assert await reader.refresh([POD])
    assert reader.claims.devices_by_pod == {"u1": (("main", GPU_0),)}
    assert reader.claims.uuid_by_device == {GPU_0: "GPU-0"}
    asked = len(server.asked)
    assert await reader.refresh([POD])
    assert len(server.asked) == asked
    await reader.refresh([])
    assert reader.claims.devices_by_pod == {}


async def test_nothing_is_asked_where_no_pod_has_a_claim_and_its_absence_is_no_error() -> None:
    server = Server("")
    reader = ClaimReader(server, "n1")
    assert await reader.refresh([])
    assert server.asked == []
    assert not await reader.refresh([POD])
    assert reader.claims.devices_by_pod == {}


async def test_a_device_that_no_slice_names_yet_is_asked_for_again_and_one_without_uuid_is_not() -> None:
    server, clock = Server(), Clock()
    server.items[SLICES] = {"items": []}
    reader = ClaimReader(server, "n1", clock)
    await reader.refresh([POD])
    server.items[SLICES] = {"items": [slice_json(gpu("gpu-0", None))]}
    clock.now_s += AGAIN_S
    await reader.refresh([POD])
    assert reader.claims.uuid_by_device == {}
    server.items[SLICES] = {"items": [slice_json(gpu("gpu-0", "GPU-0"))]}
    clock.now_s += 10_000
    await reader.refresh([POD])
    assert server.asked.count(SLICES) == 2


async def test_a_device_of_a_pool_for_several_nodes_is_asked_for_ever_more_seldom() -> None:
    """Its slices have no `spec.nodeName`, so no list of this node's slices ever has it."""
    server, clock = Server(), Clock()
    server.items[CLAIM] = claim_json("nic-0")
    reader = ClaimReader(server, "n1", clock)
    for _ in range(24 * 1800):
        assert await reader.refresh([POD])
        clock.now_s += 2
    assert server.asked.count(SLICES) <= 10 + 24


async def test_slices_are_listed_again_for_a_new_pod_at_most_once_a_minute() -> None:
    server, clock = Server(), Clock()
    reader = ClaimReader(server, "n1", clock)
    await reader.refresh([POD])
    server.items[SLICES] = {"items": [slice_json(gpu("gpu-0", "GPU-new"), generation=2)]}
    pods = [POD]
    for number in range(59):
        pods.append(pod(f"more-{number}"))
        clock.now_s += 1
        await reader.refresh(pods)
    assert (server.asked.count(SLICES), reader.claims.uuid_by_device) == (1, {GPU_0: "GPU-0"})
    clock.now_s += 1
    await reader.refresh(pods)
    assert (server.asked.count(SLICES), reader.claims.uuid_by_device) == (2, {GPU_0: "GPU-new"})
    server.items[SLICES] = {"items": []}
    clock.now_s += 1000
    await reader.refresh([*pods, pod("last")])
    assert (server.asked.count(SLICES), reader.claims.uuid_by_device) == (3, {GPU_0: "GPU-new"})


@pytest.mark.parametrize(
    "claim", [None, {"status": {"allocation": {"devices": {"results": [{"request": 7}]}}}}, {"status": [7]}]
)
async def test_a_claim_that_cannot_be_read_hides_no_other_pod_and_is_logged_once(
    caplog: pytest.LogCaptureFixture, claim: Json | None
) -> None:
    server, clock = Server(), Clock()
    bad = pod("u0", claim="bad")
    if claim is not None:
        server.items[CLAIM.replace("claim-1", "bad")] = claim
    reader = ClaimReader(server, "n1", clock)
    for _ in range(1000):
        assert not await reader.refresh([bad, POD])
        clock.now_s += 2
    assert reader.claims.devices_by_pod == {"u1": (("main", GPU_0),)}
    assert caplog.text.count("the claims of the pod with uid u0 in namespace vision cannot be read") == 1
    assert server.asked.count(CLAIM.replace("claim-1", "bad")) <= 5 + 2000 / 60
    server.items[CLAIM.replace("claim-1", "bad")] = claim_json("gpu-0")
    clock.now_s += 60
    assert await reader.refresh([bad, POD])


async def test_another_version_is_found_when_the_first_is_served_no_more() -> None:
    server, clock = Server("v1beta1"), Clock()
    reader = ClaimReader(server, "n1", clock)
    await reader.refresh([POD])
    server.items = Server("v1").items
    assert not await reader.refresh([POD, pod("u2")])
    clock.now_s += AGAIN_S
    assert await reader.refresh([POD, pod("u2")])
    server.items = {CLAIM: claim_json("gpu-0"), **Server("v1beta2").items}
    clock.now_s += 1000
    with pytest.raises(NotServed):
        await reader.refresh([POD, pod("u3")])
    await reader.refresh([POD, pod("u3")])
    assert server.asked[-1] == f"{GROUP}/v1beta2/resourceslices"


def test_only_the_newest_generation_of_a_pool_counts() -> None:
    old = slice_json(gpu("gpu-0", "GPU-old"), gpu("gpu-1", "GPU-1"))
    new = slice_json(gpu("gpu-0", "GPU-0"), generation=2)
    assert uuids_from_slices([new, old]) == {GPU_0: "GPU-0"}
    qualified = {"name": "gpu-1", "basic": {"attributes": {f"{DRIVER}/uuid": {"string": "GPU-1"}}}}
    assert uuids_from_slices([slice_json(qualified)]) == {GPU_1: "GPU-1"}


@pytest.mark.parametrize(
    ("claim", "wanted", "expected"),
    [
        pytest.param(claim_json("gpu-0", "gpu-1"), "", [GPU_0, GPU_1], id="all of a claim"),
        pytest.param(claim_json("gpu-0"), "gpus", [GPU_0], id="of one request"),
        pytest.param(claim_json("gpu-0", request="gpus/large"), "gpus", [GPU_0], id="of one of its alternatives"),
        pytest.param(claim_json("gpu-0"), "nics", [], id="of another request"),
        pytest.param(claim_json("gpu-0", adminAccess=True), "", [], id="only to watch it"),
        pytest.param({"status": {}}, "", [], id="not allocated"),
    ],
)
def test_which_devices_a_claim_gives(claim: Json, wanted: str, expected: list[ClaimedDevice]) -> None:
    assert list(devices_from_claim(claim, wanted)) == expected


MAIN = {"name": "main", "resources": {"claims": [{"name": "gpu", "request": "gpus"}]}}
MAPPING = {"containerName": "main", "resourceName": "nvidia.com/gpu", "requestName": "container-0-request-0"}


@pytest.mark.parametrize(
    ("spec", "status", "expected"),
    [
        pytest.param(
            {"resourceClaims": [{"name": "gpu", "resourceClaimName": "mine"}], "containers": [MAIN]},
            {},
            (ClaimUse("mine", "main", "gpus"),),
            id="a claim by name",
        ),
        pytest.param(
            {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "t"}], "containers": [MAIN]},
            {"resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": "made"}]},
            (ClaimUse("made", "main", "gpus"),),
            id="a claim from a template",
        ),
        pytest.param(
            {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "t"}], "containers": [MAIN]},
            {},
            (),
            id="a claim that is not made yet",
        ),
        pytest.param(
            {"containers": [{"name": "main"}]},
            {"extendedResourceClaimStatus": {"resourceClaimName": "made", "requestMappings": [MAPPING]}},
            (ClaimUse("made", "main", "container-0-request-0"),),
            id="a claim that stands for nvidia.com/gpu",
        ),
        pytest.param({"containers": [{"name": "main"}]}, {}, (), id="none"),
    ],
)
def test_which_claims_a_pod_uses(spec: Json, status: Json, expected: tuple[ClaimUse, ...]) -> None:
    assert claim_uses_from_json(spec, status) == expected
