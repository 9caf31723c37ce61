"""Reads who asks for a trial: the job itself, or its tenant for all its large gangs (`coda.tenants.trial_rules`)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from coda.model.trial_run import TrialRun
from coda.tenants.trial_rules import LEAST_GPUS, TrialRule, is_tried_first, least_gpus_tried
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
        if self.cache is None or "trial" in job["spec"] or _gpus(job) < LEAST_GPUS or self.cache.synced.is_set():
            return
        try:
            async with asyncio.timeout(KNOWN_S):
                await self.cache.synced.wait()
        except TimeoutError:
            return

    def wants(self, job: Item, trial: TrialRun | None) -> bool:
        """True if the job is to have a trial. `trial`: that it has. O(1)."""
        spec = job["spec"]
        return is_tried_first(
            says=bool(spec["trial"].get("runSeconds", 1)) if "trial" in spec else None,
            gpus=_gpus(job),
            trial=trial,
            from_gpus=self._least_gpus().get(job["metadata"]["namespace"], 0),
        )

    def _least_gpus(self) -> dict[str, int]:
        if self._from_gpus_by_namespace is None:
            tenants = self.cache.by_key.values() if self.cache is not None else ()
            self._from_gpus_by_namespace = least_gpus_tried(map(_rule, tenants))
        return self._from_gpus_by_namespace

    def _on_change(self, old: Json | None, new: Json | None) -> None:
        self._from_gpus_by_namespace = None


def _rule(tenant: Item) -> TrialRule:
    metadata, spec = tenant["metadata"], tenant["spec"]
    return TrialRule(
        tenant=metadata["name"],
        created=metadata.get("creationTimestamp") or "",
        parent=spec.get("parent") or "",
        namespaces=tuple(spec.get("namespaces") or ()),
        from_gpus=int(spec.get("trialsFromGPUs") or 0),
    )


def _gpus(job: Item) -> int:
    return int(job["spec"]["replicas"]) * int(job["spec"]["gpusPerReplica"])


def _read_part(tenant: Json) -> Json:
    spec = tenant.get("spec") or {}
    kept = metadata_only(tenant) | {"spec": {name: spec[name] for name in _READ if name in spec}}
    kept["metadata"] |= {"creationTimestamp": tenant["metadata"].get("creationTimestamp")}
    return kept
