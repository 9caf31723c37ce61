"""Who asks for a trial: the job itself, or its tenant for all its large gangs."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from coda.model.trial_run import TrialRun
from coda.tenants import MAX_LEVELS
from coda_kube.api.client import Client
from coda_kube.api.watch_cache import WatchCache, metadata_only
from coda_kube.objects.json_types import Json
from coda_kube.objects.names import API_VERSION

Item = Mapping[str, Any]

TENANTS_PATH: Final = f"/apis/{API_VERSION}/virtualclusters"
KNOWN_S: Final = 5.0
"""Seconds that a new gang waits until the tenants are known; then it counts as one of none. Our choice."""
_READ: Final = ("namespaces", "parent", "trialsFromGPUs")


class Trials:
    """The VirtualClusters, as far as they ask for trials, and the platform's nodes for them.

    Whoever needs the tenants runs the cache. One that cannot be read yet asks for nothing."""

    def __init__(self, client: Client | None = None, node_selector: Mapping[str, str] | None = None) -> None:
        self.node_selector = dict(node_selector or {})
        self.cache = (
            WatchCache(client, TENANTS_PATH, listener=self._on_change, held_part=_read_part, may_be_missing=True)
            if client is not None
            else None
        )
        self._from_gpus_by_namespace: dict[str, int] | None = None

    async def run(self) -> None:
        """Watch the tenants until cancelled."""
        if self.cache is not None:
            await self.cache.run()

    async def known(self, job: Item) -> None:
        """Wait until it is known whether the tenant of this job asks for a trial, at most `KNOWN_S`."""
        if self.cache is None or "trial" in job["spec"] or _gpus(job) < 2 or self.cache.synced.is_set():
            return
        try:
            async with asyncio.timeout(KNOWN_S):
                await self.cache.synced.wait()
        except TimeoutError:
            return

    def wants(self, job: Item, trial: TrialRun | None) -> bool:
        """True if the job is to have a trial. What it says itself counts before its tenant. `trial`: that it has.

        A trial that was begun is not given up because its tenant asks for none by now. O(1)."""
        spec = job["spec"]
        if "trial" in spec:
            return bool(spec["trial"].get("runSeconds", 1))
        gpus = _gpus(job)
        if gpus < 2:
            return False
        if trial is not None and trial.is_open:
            return True
        from_gpus = self._thresholds().get(job["metadata"]["namespace"], 0)
        return 0 < from_gpus <= gpus

    def _thresholds(self) -> dict[str, int]:
        if self._from_gpus_by_namespace is None:
            tenants = self.cache.by_key.values() if self.cache is not None else ()
            self._from_gpus_by_namespace = thresholds({one["metadata"]["name"]: one for one in tenants})
        return self._from_gpus_by_namespace

    def _on_change(self, old: Json | None, new: Json | None) -> None:
        self._from_gpus_by_namespace = None


def thresholds(tenant_by_name: Mapping[str, Item]) -> dict[str, int]:
    """Return from how many GPUs on the gangs of each namespace are tried; a namespace without a trial is absent.

    A tenant that does not say asks for what the one above it asks for. A namespace that two name counts for the older
    of them (ties: by name). O(tenants log tenants + namespaces)."""
    by_age = sorted(
        tenant_by_name.values(),
        key=lambda one: (one["metadata"].get("creationTimestamp") or "", one["metadata"]["name"]),
    )
    found: dict[str, int] = {}
    for tenant in by_age:
        from_gpus = _from_gpus(tenant, tenant_by_name)
        for namespace in tenant["spec"].get("namespaces") or ():
            found.setdefault(namespace, from_gpus)
    return {namespace: from_gpus for namespace, from_gpus in found.items() if from_gpus}


def _from_gpus(tenant: Item | None, tenant_by_name: Mapping[str, Item]) -> int:
    """The first that says something counts, from the tenant up. A loop of parents ends after the most levels."""
    for _ in range(MAX_LEVELS):
        if tenant is None:
            return 0
        if said := tenant["spec"].get("trialsFromGPUs"):
            return int(said)
        tenant = tenant_by_name.get(tenant["spec"].get("parent") or "")
    return 0


def _gpus(job: Item) -> int:
    return int(job["spec"]["replicas"]) * int(job["spec"]["gpusPerReplica"])


def _read_part(tenant: Json) -> Json:
    spec = tenant.get("spec") or {}
    kept = metadata_only(tenant) | {"spec": {name: spec[name] for name in _READ if name in spec}}
    kept["metadata"] |= {"creationTimestamp": tenant["metadata"].get("creationTimestamp")}
    return kept
