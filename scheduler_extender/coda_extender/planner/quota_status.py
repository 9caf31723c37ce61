"""The status of VirtualClusters and ArrayQuotas: what each uses, lends and borrows, written when it changed."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from math import inf
from typing import Any, Final

from coda.cycle import Part
from coda.errors import CodaError
from coda.history.division import PastUse
from coda.model.resources import Resources
from coda.nodes.array_use import ArrayUse, QuotaUse, TenantLoans
from coda.policy import Component, PolicyConfig, policy_of
from coda_extender.cluster.cluster import ExtenderCluster
from coda_kube.api.client import Client, NotFound
from coda_kube.api.watch_cache import WatchCache
from coda_kube.objects.json_types import Json
from coda_kube.objects.names import API_VERSION, ARRAY_QUOTA, EXTENDER, VIRTUAL_CLUSTER
from coda_kube.objects.quantities import time_from_seconds
from coda_kube.objects.run_times import PATH, past_use_from_json
from coda_kube.quotas.array_quotas import array_quota_status, division_status

log = logging.getLogger(__name__)

READ_EVERY_S: Final = 60.0
"""Between two readings of the past: as often as the operator writes it."""

LOOK_EVERY_S: Final = 5.0
"""Between two looks: so an object is written at most that often. Our choice: what `kubectl get` users notice."""

_JOBS_AT_ONCE: Final = 500  # our choice: about a millisecond; then filter calls are answered


class QuotaStatus:
    """Compares what the objects show with what is, and writes the difference."""

    def __init__(self, client: Client, cluster: ExtenderCluster, policy: PolicyConfig) -> None:
        self._client = client
        self._cluster = cluster
        self._policy = policy
        self._past = PastUse()
        self._read_s = -inf  # when the past was read, on the steady clock

    async def run(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            await self.write()
            await asyncio.sleep(LOOK_EVERY_S)

    async def write(self) -> None:
        """Write every status that differs. What cannot be written is tried at the next look.

        O(virtual clusters + nodes); with ArrayQuotas, or tenants under a policy with arrays, O(nodes and jobs)
        besides."""
        quotas, tenants = self._cluster.array_quotas.by_key, self._cluster.virtual_clusters.by_key
        has_arrays = policy_of(self._policy.policy).has_arrays and Component.ARRAYS not in self._policy.without
        use = await self._array_use() if quotas or (tenants and has_arrays) else None
        await self._write_virtual_clusters(use.loans_by_tenant if use is not None and has_arrays else None)
        if quotas and use is not None:
            await self._write_array_quotas(use.use_by_quota, has_arrays=has_arrays)

    async def _write_virtual_clusters(self, loans: Mapping[str, TenantLoans] | None) -> None:
        cache, tenants = self._cluster.virtual_clusters, self._cluster.state.tenants
        nodes = [node.allocatable for _, node in self._cluster.state.items(Part.NODES)] if cache.by_key else []
        there = Resources(gpus=sum([one.gpus for one in nodes]), cpu_m=sum([one.cpu_m for one in nodes]))
        for name, item in list(cache.by_key.items()):
            if tenants.get(name) is not None:  # it could be read
                held = None if loans is None else loans.get(name, TenantLoans())
                await self._write_if_changed(VIRTUAL_CLUSTER, cache, item, tenants.status_of(name, held, there))

    async def _write_array_quotas(self, use_by_quota: Mapping[str, QuotaUse], *, has_arrays: bool) -> None:
        cache, policy = self._cluster.array_quotas, self._policy
        quotas = {quota.name: quota for _, quota in self._cluster.state.items(Part.ARRAYS)}
        if any(quota.is_auto for quota in quotas.values()):
            await self._read_past()
        now_s = self._client.clock()
        for name, item in list(cache.by_key.items()):
            use, quota = use_by_quota.get(name), quotas.get(name)
            if use is not None and quota is not None:
                gpus = use.large_gpus.reserved + use.small_gpus.reserved
                told = (item.get("status") or {}).get("division") or {}
                division = division_status(quota, gpus, policy.arrays, self._past, told, now_s)
                status = array_quota_status(item, use, division, policy=policy.policy, has_arrays=has_arrays)
                await self._write_if_changed(ARRAY_QUOTA, cache, item, status)

    async def _read_past(self) -> None:
        """Read what the operator says of the past; without an answer, what was read before counts."""
        if time.monotonic() - self._read_s < READ_EVERY_S:
            return
        self._read_s = time.monotonic()
        try:
            self._past = past_use_from_json(await self._client.get(PATH))
        except NotFound:
            self._past = PastUse()
        except CodaError as error:
            log.warning("the division Auto goes on with what was known before: %s", error)

    async def _array_use(self) -> ArrayUse:
        """What the arrays hold. Nodes count as they are at the beginning, and so do jobs."""
        state = self._cluster.state
        nodes = [node for _, node in state.items(Part.NODES)]
        quotas = [quota for _, quota in state.items(Part.ARRAYS)]
        use = ArrayUse(nodes, quotas, self._policy.arrays)
        for number, (_, job) in enumerate(state.items(Part.JOBS), start=1):
            use.add(job)
            if number % _JOBS_AT_ONCE == 0:
                await asyncio.sleep(0)
        for _ in use.add_up():
            await asyncio.sleep(0)
        return use

    async def _write_if_changed(self, kind: str, cache: WatchCache, item: Json, status: Json) -> None:
        shown: Mapping[str, Any] = item.get("status") or {}
        self._set_times(status, shown)
        if status == shown:
            return
        name = item["metadata"]["name"]
        body = {"apiVersion": API_VERSION, "kind": kind, "metadata": {"name": name}, "status": status}
        try:
            path = f"/apis/{API_VERSION}/{cache.plural}/{name}/status"
            cache.put(await self._client.apply(path, body, manager=EXTENDER))
        except NotFound:
            return
        except CodaError as error:
            log.warning("the status of %s %s is not written: %s", kind, name, error)

    def _set_times(self, status: Json, shown: Mapping[str, Any]) -> None:
        """A condition that stays keeps its time."""
        before = {condition.get("type"): condition for condition in shown.get("conditions") or ()}
        for condition in status["conditions"]:
            known = before.get(condition["type"]) or {}
            stays = known.get("status") == condition["status"]
            now = time_from_seconds(self._client.clock())
            condition["lastTransitionTime"] = known.get("lastTransitionTime") if stays else now
