"""Reads what `coda.allocator.memory_growth` must know of a rank that was killed for memory.

The pod says what it really had: a LimitRange may have given it a limit that the template does not name. A dry run says
whether the API server takes a rank with more. Nothing is read for a job that does not let its memory grow.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from coda.allocator.memory_growth import KilledRank, QuotaRoom, RankMemory, grown_memory
from coda.lifecycle import RankPod, Situation
from coda.lifecycle.evidence import killed_for_memory
from coda_kube.api.client import Client, NotFound, Rejected
from coda_kube.objects.json_types import Json
from coda_kube.objects.pod_requests import pod_amounts, readable_quantities
from coda_kube.objects.pods.main_container import main_container
from coda_kube.objects.quantities import milli_from_quantity, whole_from_quantity
from coda_kube.objects.quota_scopes import counts_pod
from coda_operator.reconcile.api_refusals import QUOTA_EXCEEDED, Blame, blame_for, reason_to_wait
from coda_operator.reconcile.pod_spec import probe_pod
from coda_operator.reconcile.request_slots import RequestSlots
from coda_operator.view import ClusterView, JobRecord

_KEYS = {"requests.memory": False, "memory": False, "limits.memory": True}


class KilledRanks:
    """Asks the API server."""

    def __init__(self, client: Client, cluster: ClusterView, requests: RequestSlots) -> None:
        self._client = client
        self._cluster = cluster
        self._requests = requests

    async def of(self, job: JobRecord, now: Situation) -> KilledRank | None:
        """Return the rank that was killed for memory, and what bounds its growth; None without one. Raises Outage."""
        pod = killed_for_memory(now)
        if pod is None:
            return None
        try:
            async with self._requests.reading():
                item = await self._client.get(f"{job.pods_path}/{pod.name}")
                quotas = await self._client.list_pages(f"{job.pods_path.rpartition('/')[0]}/resourcequotas")
        except NotFound:
            return None
        killed = self._killed(job, pod, item, quotas["items"])
        grown = grown_memory(killed)
        return killed if grown is None else replace(killed, refusal=await self._refusal(job, grown))

    def _killed(self, job: JobRecord, pod: RankPod, item: Json, quotas: Iterable[Json]) -> KilledRank:
        resources = main_container(item).get("resources") or {}
        limit = _memory(resources.get("limits"))
        main = RankMemory(request_bytes=_memory(resources.get("requests")) or limit, limit_bytes=limit)
        requests, limits = (pod_amounts(item, kind).get("memory", 0) for kind in ("requests", "limits"))
        node = pod.node or ""
        return KilledRank(
            rank=pod.rank,
            main=main,
            others=RankMemory(request_bytes=max(0, requests - main.request_bytes), limit_bytes=max(0, limits - limit)),
            most_bytes=job.terms.grow_memory_to_bytes,
            node=node,
            node_bytes=self._cluster.nodes.memory_bytes(node),
            quotas=tuple(_rooms(quotas, item, job.terms.replicas)),
        )

    async def _refusal(self, job: JobRecord, grown: RankMemory) -> str:
        """Return why the API server never takes a rank with so much; "" if it does, or a quota is in use now."""
        cores = int((job.request or {}).get("cpusPerReplica") or 1)
        probe = probe_pod(job.json, attempt=job.progress.attempt + 1, cores=cores, memory=grown)
        try:
            async with self._requests.reading():
                await self._client.create(job.pods_path, probe, {"dryRun": "All", "fieldValidation": "Strict"})
        except Rejected as refusal:
            if blame_for(refusal) is Blame.MOMENT:
                raise
            return "" if reason_to_wait(refusal) == QUOTA_EXCEEDED else str(refusal)[:200]
        return ""


def _memory(quantities: Json | None) -> int:
    return whole_from_quantity((quantities or {}).get("memory") or 0)


def _rooms(quotas: Iterable[Json], pod: Json, replicas: int) -> Iterable[QuotaRoom]:
    """Yield what each quota that counts the pod allows per rank, whoever uses it now."""
    for quota in quotas:
        spec = quota.get("spec") or {}
        if not counts_pod(spec, pod):
            continue
        hard = readable_quantities(spec.get("hard") or {})
        for key, is_of_limits in _KEYS.items():
            if key in hard:
                room = milli_from_quantity(hard[key]) // 1000 // replicas
                yield QuotaRoom(name=quota["metadata"]["name"], is_of_limits=is_of_limits, rank_bytes=room)
