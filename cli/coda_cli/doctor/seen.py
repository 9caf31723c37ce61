"""What `coda doctor` reads of a cluster. What the user may not read is None, and is said to be so."""

from __future__ import annotations

import asyncio
import base64
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from coda_cli.version.parts import Part, parts_of
from coda_kube.api.client import Client, NotFound, NotServed, Rejected
from coda_kube.objects.json_types import Json
from coda_kube.objects.names import API_VERSION, OPERATOR_LEASE, PLANNER_LEASE, SYSTEM_NAMESPACE
from coda_kube.objects.quantities import seconds_from_time
from coda_kube.served_schema import OPENAPI

LEASES: Final = {PLANNER_LEASE: "planner", OPERATOR_LEASE: "operator"}
_ADMISSION: Final = "/apis/admissionregistration.k8s.io/v1"
_CERTIFICATES: Final = {"labelSelector": "app.kubernetes.io/name=coda,app.kubernetes.io/component=tls"}
_DEPLOYMENTS: Final = f"/apis/apps/v1/namespaces/{SYSTEM_NAMESPACE}/deployments"
_POOL_ACCOUNTS: Final = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/coda-pool-user"
_OURS: Final = {"labelSelector": "app.kubernetes.io/name=coda"}
_RENEWED_WITHIN_S: Final = 8.0  # leaders renew every 2 s
_LOOK_EVERY_S: Final = 0.5

Items = Sequence[Json] | None


class Lead(Enum):
    """What a Lease says of a part's leader."""

    RENEWED = "renewed"
    LEFT = "left"  # its holder does not renew it
    NOBODY = "nobody"  # it is not there, or has no holder


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A cluster at one moment. None: not readable; an empty list also where the API server does not know the kind."""

    server: str  # its address: kubectl may mean another cluster
    version: str  # of Kubernetes, as v1.36.3
    schema: Json | None  # of Coda's kinds; None: they are not installed
    leads: Mapping[str, Lead | None]  # by Lease
    nodes: Items
    daemon_sets: Items
    profiles: Items
    namespaces: Items
    refusing: Items  # bindings of validating policies
    mutating: Items  # bindings of mutating policies
    clock_ahead_s: float  # how far this machine's clock is before the API server's
    now_s: float  # by the API server's clock, since 1970
    node_clocks_s: Mapping[str, float] | None  # the same of each node, by its Lease
    parts: Sequence[Part]  # the versions of everything
    scheduler: Json | None  # ConfigMap of Coda's kube-scheduler; empty: none is there
    certificates: Mapping[str, bytes] | None  # PEM, by the name of the Secret
    by_cert_manager: bool = False  # the operator leaves them to it
    jobs: Items = None  # TrainingJobs
    resource_slices: Items = None  # devices of dynamic resource allocation
    tenants: Items = None  # VirtualClusters
    operator_settings: Mapping[str, str] = field(default_factory=dict)  # as its Deployment sets them, by variable
    extender_settings: Mapping[str, str] = field(default_factory=dict)  # the same of the extender
    pool_accounts: Json | None = field(default_factory=dict)  # ClusterRoleBinding of the chart; empty: none is there
    history_volume: Json | None = field(default_factory=dict)  # PersistentVolume of the history; empty: none is there


async def look(client: Client) -> Seen:
    """Read everything at once. Raises a CodaError if the cluster does not answer. Takes up to 8 s."""
    version = str((await client.get("/version"))["gitVersion"])
    ahead_s = time.time() - client.clock()
    reads = (
        _items(client, "/api/v1/nodes"),
        _items(client, "/apis/apps/v1/daemonsets"),
        _items(client, f"/apis/{API_VERSION}/nodeprofiles"),
        _items(client, "/api/v1/namespaces"),
        _items(client, f"{_ADMISSION}/validatingadmissionpolicybindings", _OURS),
        _items(client, f"{_ADMISSION}/mutatingadmissionpolicybindings", _OURS),
        _items(client, f"/apis/{API_VERSION}/trainingjobs"),
        _items(client, "/apis/resource.k8s.io/v1/resourceslices"),
        _items(client, f"/apis/{API_VERSION}/virtualclusters"),
    )
    more = asyncio.gather(
        _items(client, "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"),
        _one(client, f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/configmaps/coda-scheduler"),
        _items(client, f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/secrets", _CERTIFICATES),
        _one(client, f"{_DEPLOYMENTS}/coda-operator"),
        _one(client, f"{_DEPLOYMENTS}/coda-extender"),
        parts_of(client),
    )
    accounts = asyncio.ensure_future(_one(client, _POOL_ACCOUNTS))
    leads = asyncio.gather(*(lead(client, name) for name in LEASES))
    nodes, daemon_sets, profiles, namespaces, refusing, mutating, jobs, slices, tenants = await asyncio.gather(*reads)
    leases, scheduler, secrets, operator, extender, parts = await more
    history_volume = None if operator is None else await _volume(client, history_claim(operator))
    return Seen(
        server=client.server,
        version=version,
        schema=await _schema(client),
        leads=dict(zip(LEASES, await leads, strict=True)),
        nodes=nodes,
        daemon_sets=daemon_sets,
        profiles=profiles,
        namespaces=namespaces,
        refusing=refusing,
        mutating=mutating,
        clock_ahead_s=ahead_s,
        now_s=client.clock(),
        node_clocks_s=None if leases is None else dict(_clocks(leases)),
        parts=parts,
        scheduler=scheduler,
        certificates=None if secrets is None else dict(_certificates(secrets)),
        by_cert_manager=leaves_certificates(operator or {}),
        jobs=jobs,
        resource_slices=slices,
        tenants=tenants,
        operator_settings=settings_of(operator or {}),
        extender_settings=settings_of(extender or {}),
        pool_accounts=await accounts,
        history_volume=history_volume,
    )


def _clocks(leases: Sequence[Json]) -> Iterator[tuple[str, float]]:
    """How far each node's clock is before the API server's: both have written the time of the last renewal.

    The API server's time has whole seconds, so the difference is rounded down to them, too."""
    for lease in leases:
        renewed_s = seconds_from_time((lease.get("spec") or {}).get("renewTime"))
        stamped_s = max((seconds_from_time(by.get("time")) for by in _writers_of_renewals(lease)), default=0.0)
        if renewed_s and stamped_s:
            yield str(lease["metadata"]["name"]), math.floor(renewed_s) - stamped_s


def _writers_of_renewals(lease: Json) -> list[Json]:
    writers = lease["metadata"].get("managedFields") or ()
    return [by for by in writers if "f:renewTime" in ((by.get("fieldsV1") or {}).get("f:spec") or {})]


def _certificates(secrets: Sequence[Json]) -> Iterator[tuple[str, bytes]]:
    """The certificates alone: no key is kept."""
    for secret in secrets:
        text = (secret.get("data") or {}).get("tls.crt") or ""
        try:
            yield str(secret["metadata"]["name"]), base64.b64decode(text, validate=True)
        except ValueError:
            yield str(secret["metadata"]["name"]), b""


def leaves_certificates(operator: Json) -> bool:
    """Whether the chart tells the operator's Deployment to leave certificates to cert-manager.

    Annotations of the Secrets do not tell: after a switch back the operator keeps those that are still good."""
    return settings_of(operator).get("CODA_CERTIFICATES") == "foreign"


def settings_of(deployment: Json) -> dict[str, str]:
    """Return the environment that a Deployment gives its containers, without what comes from elsewhere.

    The API server leaves out a value that is empty."""
    pod = deployment.get("spec", {}).get("template", {}).get("spec", {})
    variables = [one for container in pod.get("containers") or () for one in container.get("env") or ()]
    return {one["name"]: str(one.get("value") or "") for one in variables if not one.get("valueFrom")}


def history_claim(operator: Json) -> str:
    """Return the claim whose volume the operator's Deployment mounts for the history; empty for none."""
    pod = operator.get("spec", {}).get("template", {}).get("spec", {})
    claims = [one.get("persistentVolumeClaim") or {} for one in pod.get("volumes") or () if one["name"] == "history"]
    return str(claims[0].get("claimName") or "") if claims else ""


async def _volume(client: Client, claim: str) -> Json | None:
    """The volume that a claim of Coda's has; empty without one, None if the user may not look."""
    if not claim:
        return {}
    found = await _one(client, f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/persistentvolumeclaims/{claim}")
    name = ((found or {}).get("spec") or {}).get("volumeName")
    return await _one(client, f"/api/v1/persistentvolumes/{name}") if name else found and {}


async def _one(client: Client, path: str) -> Json | None:
    """The object; empty if it is not there, None if the user may not look."""
    try:
        return await client.get(path)
    except NotFound:
        return {}
    except Rejected:
        return None


async def _items(client: Client, path: str, query: Mapping[str, str] | None = None) -> Items:
    try:
        return list((await client.list_pages(path, query))["items"])
    except NotServed:
        return []
    except Rejected:
        return None


async def _schema(client: Client) -> Json | None:
    try:
        return await client.get(OPENAPI)
    except NotServed:
        return None


async def lead(
    client: Client, name: str, *, within_s: float = _RENEWED_WITHIN_S, every_s: float = _LOOK_EVERY_S
) -> Lead | None:
    """Return what the Lease of that name says, looking `every_s` for up to `within_s`; None if the user may not look.

    Whether it changes tells: clocks of two machines are not compared. Raises a CodaError if nothing answers."""
    path = f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM_NAMESPACE}/leases/{name}"
    first = await _one(client, path)
    if first is None:
        return None
    if not (first.get("spec") or {}).get("holderIdentity"):
        return Lead.NOBODY
    for _ in range(int(within_s / every_s)):
        await asyncio.sleep(every_s)
        now = await _one(client, path)
        if now is None:
            return None
        if now.get("metadata", {}).get("resourceVersion") != first["metadata"]["resourceVersion"]:
            return Lead.RENEWED if now else Lead.NOBODY
    return Lead.LEFT
