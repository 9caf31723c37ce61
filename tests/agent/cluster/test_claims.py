"""Claims of this node's pods: read once, for pods that have some, in every version of their API."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from coda_agent.claimed_device import ClaimedDevice
from coda_agent.cluster.claims import (
    GROUP,
    ClaimingPod,
    ClaimReader,
    ClaimUse,
    claim_uses_from_json,
    devices_from_claim,
    uuids_from_slices,
)
from coda_kube.api.client import Client, NotFound
from coda_kube.objects.json_types import Json

DRIVER = "gpu.nvidia.com"
GPU_0 = ClaimedDevice(driver=DRIVER, pool="n1", device="gpu-0")
GPU_1 = ClaimedDevice(driver=DRIVER, pool="n1", device="gpu-1")
POD = ClaimingPod(uid="u1", namespace="vision", uses=(ClaimUse("claim-1", "main"),))


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
            raise NotFound(404, "NotFound", path)
        return copy.deepcopy(self.items[path])

    async def list_pages(self, path: str, query: Any = None, page: int = 1000) -> Json:
        assert query == {"fieldSelector": "spec.nodeName=n1"}
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
    server = Server()
    slices = f"{GROUP}/v1/resourceslices"
    server.items[slices] = {"items": []}
    reader = ClaimReader(server, "n1")
    assert not await reader.refresh([POD])
    server.items[slices] = {"items": [slice_json(gpu("gpu-0", None))]}
    assert await reader.refresh([POD])
    assert reader.claims.uuid_by_device == {}


async def test_what_cannot_be_read_keeps_what_is_known() -> None:
    server = Server()
    reader = ClaimReader(server, "n1")
    await reader.refresh([POD])
    with pytest.raises(NotFound):
        await reader.refresh([POD, ClaimingPod(uid="u2", namespace="vision", uses=(ClaimUse("gone", "main"),))])
    assert reader.claims.devices_by_pod == {"u1": (("main", GPU_0),)}


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
