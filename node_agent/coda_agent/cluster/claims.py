"""Which devices the pods of this node have by dynamic resource claims, and the UUIDs of these devices.

Nothing is watched, and nothing is read where no pod has a claim, so a cluster without the feature is never asked for
it. A claim's allocation never changes while a pod uses it: each is read once. Slices are listed when a pod with claims
is new, since a driver may have made its devices again. Source: KEP-4381; KEP-5004 for claims that stand for
`nvidia.com/gpu`."""

from __future__ import annotations

import asyncio
import logging
import math
import random
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from coda.errors import CodaError
from coda_agent.claimed_device import ClaimedDevice
from coda_agent.cluster.put_off import PutOff
from coda_kube.api.client import Client, NotFound, NotServed
from coda_kube.api.retry_pauses import growing_s
from coda_kube.objects.json_types import Json

log = logging.getLogger(__name__)

Item = Mapping[str, Any]

GROUP: Final = "/apis/resource.k8s.io"
VERSIONS: Final = ("v1", "v1beta2", "v1beta1")  # from Kubernetes 1.34, 1.33, 1.32
UUID: Final = "uuid"  # the attribute, which NVIDIA's driver gives to GPUs and MIG slices

LOOK_S: Final = 2.0
"""Seconds between two looks for pods whose claims are not read yet. Our choice."""

AGAIN_S: Final = 5.0
LONGEST_S: Final = 60.0
"""The least seconds until something is asked for again that was not there, and the bound of that. Our choice."""

LONGEST_ABSENT_S: Final = 3600.0
"""The bound for a device that no slice of this node names: a pool for several nodes has none. Our choice."""

LIST_AGAIN_S: Final = 60.0
"""The least seconds between two lists of slices for new pods whose devices are known. Our choice."""

BROKEN: Final = (CodaError, LookupError, TypeError, ValueError, AttributeError)


class ClaimUse(NamedTuple):
    """A container that may use the devices of a claim of its namespace. `request`: only those for it; "": all."""

    claim: str
    container: str
    request: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimingPod:
    """A running pod with claims."""

    uid: str
    namespace: str
    uses: tuple[ClaimUse, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Claims:
    """What was read of them. `devices_by_pod`: (container, device), by pod uid; missing: not read yet."""

    devices_by_pod: Mapping[str, tuple[tuple[str, ClaimedDevice], ...]] = field(default_factory=dict)
    uuid_by_device: Mapping[ClaimedDevice, str] = field(default_factory=dict)


def claim_uses_from_json(spec: Item, status: Item) -> tuple[ClaimUse, ...]:
    """Return which container of a pod uses which claim, also those that the scheduler made for extended resources."""
    names: dict[str, str | None] = {
        one["name"]: one.get("resourceClaimName") for one in status.get("resourceClaimStatuses") or ()
    }
    names |= {
        one["name"]: one["resourceClaimName"]
        for one in spec.get("resourceClaims") or ()
        if one.get("resourceClaimName")
    }
    uses = {
        ClaimUse(name, container["name"], claim.get("request") or "")
        for container in (*(spec.get("initContainers") or ()), *(spec.get("containers") or ()))
        for claim in (container.get("resources") or {}).get("claims") or ()
        if (name := names.get(claim["name"]))
    }
    extended = status.get("extendedResourceClaimStatus") or {}
    for one in extended.get("requestMappings") or ():
        uses.add(ClaimUse(extended["resourceClaimName"], one["containerName"], one["requestName"]))
    return tuple(sorted(uses))


def uuids_from_slices(slices: Iterable[Item]) -> Mapping[ClaimedDevice, str | None]:
    """Return the UUID of each device, of the newest generation of each pool; None: it has none."""
    newest: dict[tuple[str, str], int] = {}
    specs = [one["spec"] for one in slices]
    for spec in specs:
        pool = spec["driver"], spec["pool"]["name"]
        newest[pool] = max(newest.get(pool, 0), int(spec["pool"].get("generation") or 0))
    return {
        ClaimedDevice(driver=spec["driver"], pool=spec["pool"]["name"], device=device["name"]): _uuid_of(
            device, spec["driver"]
        )
        for spec in specs
        if int(spec["pool"].get("generation") or 0) == newest[spec["driver"], spec["pool"]["name"]]
        for device in spec.get("devices") or ()
    }


def devices_from_claim(claim: Item, request: str) -> Iterator[ClaimedDevice]:
    """Yield what was allocated for `request` ("": for all), without devices that are only watched (admin access)."""
    allocation = ((claim.get("status") or {}).get("allocation") or {}).get("devices") or {}
    for result in allocation.get("results") or ():
        is_for = not request or result["request"].partition("/")[0] == request.partition("/")[0]
        if is_for and not result.get("adminAccess"):
            yield ClaimedDevice(driver=result["driver"], pool=result["pool"], device=result["device"])


class ClaimReader:
    """Reads the claims of this node's pods, and the ResourceSlices of `node`. `now_s`: a clock that never jumps."""

    def __init__(self, client: Client, node: str, now_s: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._node = node
        self._now_s = now_s
        self._version: str | None = None
        self._devices: dict[str, tuple[tuple[str, ClaimedDevice], ...]] = {}  # by pod uid
        self._unreadable: PutOff[str] = PutOff(AGAIN_S, LONGEST_S)  # pods, by uid
        self._uuids: Mapping[ClaimedDevice, str | None] = {}  # of the devices in this node's slices
        self._absent: PutOff[ClaimedDevice] = PutOff(AGAIN_S, LONGEST_ABSENT_S)
        self._listed_s = -math.inf
        self._has_new_pods = False  # since then

    @property
    def claims(self) -> Claims:
        """What was read."""
        uuids = {device: uuid for device, uuid in self._uuids.items() if uuid is not None}
        return Claims(devices_by_pod=dict(self._devices), uuid_by_device=uuids)

    async def run(self, pods: Callable[[], Collection[ClaimingPod]]) -> None:
        """Keep it up to date until cancelled. `pods`: the running ones with claims."""
        failures = 0  # in a row
        while True:
            try:
                await self.refresh(found := pods())
                has_answer = self._version is not None or not found
            except BROKEN as error:
                has_answer = False
                if not failures:
                    log.warning("the claims of this node's pods cannot be read: %s: %s", type(error).__name__, error)
            pause_s = LOOK_S if has_answer else growing_s(failures, AGAIN_S, LONGEST_S)
            failures = 0 if has_answer else failures + 1
            await asyncio.sleep(pause_s * random.uniform(0.5, 1.5))

    async def refresh(self, pods: Collection[ClaimingPod]) -> bool:
        """Forget all but `pods`, and read what is not known of them. Return whether the claims of all are known now.

        A pod whose claims cannot be read holds up no other, and is tried again later. So is a device that no slice of
        this node names. Raises what reading the slices raises."""
        here, now_s = {pod.uid for pod in pods}, self._now_s()
        self._devices = {uid: devices for uid, devices in self._devices.items() if uid in here}
        self._unreadable.forget_all_except(here, now_s)
        if not here:
            return True
        self._version = self._version or await self._served_version()
        if self._version is None:
            return False
        for pod in pods:
            if pod.uid not in self._devices and self._unreadable.is_due(pod.uid, now_s):
                await self._read_claims(pod, now_s)
        await self._find({device for devices in self._devices.values() for _container, device in devices}, now_s)
        return here <= self._devices.keys()

    async def _read_claims(self, pod: ClaimingPod, now_s: float) -> None:
        try:
            self._devices[pod.uid] = await self._devices_of(pod)
            self._has_new_pods = True
        except BROKEN as error:
            if self._unreadable.put_off(pod.uid, now_s):
                who = f"the pod with uid {pod.uid} in namespace {pod.namespace}"
                log.warning("the claims of %s cannot be read: %s: %s", who, type(error).__name__, error)
            if isinstance(error, NotFound | NotServed):  # perhaps of the version, after an upgrade
                self._version = await self._served_version() or self._version

    async def _find(self, asked: Set[ClaimedDevice], now_s: float) -> None:
        """List the slices if they may say more of the devices `asked` for. One that vanished meanwhile stays known."""
        self._absent.forget_all_except(asked, now_s)
        missing = {device for device in asked - self._uuids.keys() if self._absent.is_due(device, now_s)}
        is_old = self._has_new_pods and now_s >= self._listed_s + LIST_AGAIN_S
        if not missing and not (asked and is_old):
            return
        query = {"fieldSelector": f"spec.nodeName={self._node}"}
        try:
            found = await self._client.list_pages(f"{GROUP}/{self._version}/resourceslices", query)
        except NotServed:
            self._version = await self._served_version() or self._version
            raise
        kept = {device: uuid for device, uuid in self._uuids.items() if device in asked}
        self._uuids = {**kept, **uuids_from_slices(found["items"])}
        self._listed_s, self._has_new_pods = now_s, False
        for device in missing - self._uuids.keys():
            self._absent.put_off(device, now_s)

    async def _served_version(self) -> str | None:
        try:
            group = await self._client.get(GROUP)
        except NotServed:
            return None
        served = {version["version"] for version in group["versions"]}
        return next((version for version in VERSIONS if version in served), None)

    async def _devices_of(self, pod: ClaimingPod) -> tuple[tuple[str, ClaimedDevice], ...]:
        found: set[tuple[str, ClaimedDevice]] = set()
        claims: dict[str, Json] = {}
        for use in pod.uses:
            if use.claim not in claims:
                path = f"{GROUP}/{self._version}/namespaces/{pod.namespace}/resourceclaims/{use.claim}"
                claims[use.claim] = await self._client.get(path)
            found |= {(use.container, device) for device in devices_from_claim(claims[use.claim], use.request)}
        return tuple(sorted(found, key=lambda pair: (pair[0], pair[1].driver, pair[1].pool, pair[1].device)))


def _uuid_of(device: Item, driver: str) -> str | None:
    """Names of attributes may leave the driver out. Version v1beta1 has them one level deeper."""
    attributes = device.get("attributes") or (device.get("basic") or {}).get("attributes") or {}
    uuid = (attributes.get(UUID) or attributes.get(f"{driver}/{UUID}") or {}).get("string")
    return uuid if isinstance(uuid, str) and uuid else None
