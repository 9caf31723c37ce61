"""What Coda leaves besides jobs and pods: keys of nodes, profiles, Leases, lists, certificates, admission policies."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final

from coda.errors import Conflict
from coda_kube.api.client import Client, NotFound
from coda_kube.api.until import read_or_absent
from coda_kube.objects.json_types import Json
from coda_kube.objects.names import API_VERSION, GROUP, OPERATOR_LEASE, PLANNER_LEASE, POOL_TAINT, SYSTEM_NAMESPACE
from coda_operator.uninstall.parallel import in_parallel

log = logging.getLogger(__name__)

_NODES: Final = "/api/v1/nodes"
_PROFILES: Final = f"/apis/{API_VERSION}/nodeprofiles"
_ADMISSION: Final = "/apis/admissionregistration.k8s.io/v1"

RECORDS: Final = {
    f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM_NAMESPACE}/leases": (
        OPERATOR_LEASE,
        PLANNER_LEASE,
        "coda-scheduler",
    ),
    f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/configmaps": (
        "coda-pool-nodes-0",
        "coda-pool-nodes-1",
        "coda-returned-places",
        "coda-run-times",
    ),
    f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/secrets": ("coda-authority", "coda-extender-tls", "coda-scheduler-tls"),
}


async def remove_policies(client: Client, kind: str, names: Iterable[str]) -> None:
    """Delete admission policies, `kind` mutating or validating, the bindings first."""
    for plural in (f"{kind}admissionpolicybindings", f"{kind}admissionpolicies"):
        for name in names:
            await client.delete(f"{_ADMISSION}/{plural}/{name}")
    log.info("the %s admission policies are gone", kind)


async def delete_records(client: Client) -> None:
    """Delete what the parts wrote in Coda's namespace. The history's volume stays: its owner decides."""
    for path, names in RECORDS.items():
        for name in names:
            await client.delete(f"{path}/{name}")
    log.info("Leases, lists and certificates are gone")


async def limited_nodes(client: Client) -> list[str]:
    """The nodes on which CPU pods are still limited, by their profiles."""
    profiles = await _profiles(client)
    return sorted(one["metadata"]["name"] for one in profiles if (one.get("status") or {}).get("throttleCount"))


async def _profiles(client: Client) -> list[Json]:
    """Empty where nobody knows NodeProfiles."""
    nothing: Json = {"items": []}
    return list((await read_or_absent(lambda: client.list_pages(_PROFILES), nothing))["items"])


async def delete_profiles(client: Client) -> None:
    """Delete every NodeProfile. The agents, which made them, are gone."""
    profiles = await _profiles(client)
    await in_parallel(client.delete(f"{_PROFILES}/{profile['metadata']['name']}") for profile in profiles)


async def clean_nodes(client: Client) -> None:
    """Take the pool's taint and Coda's labels and annotations off every node; names of racks and zones stay."""
    nodes = (await client.list_pages(_NODES))["items"]
    cleaned = sum(await in_parallel(_clean(client, node) for node in nodes))
    log.info("%d nodes were cleaned", cleaned)


async def _clean(client: Client, node: Json) -> bool:
    path, cleaned = f"{_NODES}/{node['metadata']['name']}", False
    while (patch := node_patch(node)) is not None:
        try:
            node, cleaned = await client.patch(path, patch), True
        except Conflict:
            node = await client.get(path)
        except NotFound:
            break
    return cleaned


def node_patch(node: Json) -> Json | None:
    """Return the merge patch that takes off what is Coda's; None if there is nothing."""
    metadata, spec = node["metadata"], node.get("spec") or {}
    patch: Json = {}
    for field in ("labels", "annotations"):
        if gone := {key: None for key in metadata.get(field) or () if key.startswith(f"{GROUP}/")}:
            patch.setdefault("metadata", {})[field] = gone
    taints = spec.get("taints") or []
    kept = [taint for taint in taints if taint.get("key") != POOL_TAINT]
    if len(kept) != len(taints):
        patch["spec"] = {"taints": kept or None}
    if not patch:
        return None
    patch.setdefault("metadata", {})["resourceVersion"] = metadata["resourceVersion"]
    return patch
