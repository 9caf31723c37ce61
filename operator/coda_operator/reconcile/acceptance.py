"""Asks the API server by a dry run what one rank of a job requests."""

from __future__ import annotations

from dataclasses import dataclass

from coda.allocator import start_cores
from coda_kube.api.client import Client, Rejected
from coda_kube.objects.json_types import Json
from coda_kube.objects.pod_requests import pod_amounts, quantities_from_amounts, quota_use
from coda_operator.reconcile.api_refusals import Blame, blame_for
from coda_operator.reconcile.pod_spec import probe_pod
from coda_operator.reconcile.request_slots import RequestSlots
from coda_operator.view import ClusterView, JobRecord

MOST_CORES = 1024  # the CRD's limit; used while no node is known


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateRefused:
    """The API server never accepts such a pod; `message` says why."""

    message: str


class Acceptor:
    """Makes `status.request` from a job's template."""

    def __init__(self, client: Client, cluster: ClusterView, requests: RequestSlots) -> None:
        self._client = client
        self._cluster = cluster
        self._requests = requests

    async def request_of(self, job: JobRecord, attempt: int) -> Json | TemplateRefused:
        """Return what one rank requests once admitted. Raises Outage, or Rejected if nothing was judged.

        A refusal by the surroundings (a quota, say) is ignored here: the planner knows quotas, and the create shows the
        rest."""
        cores = self._cores(job)
        probe = probe_pod(job.json, attempt=attempt, cores=cores)
        try:
            async with self._requests.reading():
                admitted = await self._client.create(
                    job.pods_path, probe, {"dryRun": "All", "fieldValidation": "Strict"}
                )
        except Rejected as refusal:
            blame = blame_for(refusal)
            if blame is Blame.MOMENT:
                raise
            if blame is Blame.TEMPLATE:
                return TemplateRefused(message=str(refusal))
            admitted = probe
        return request_from_pod(admitted, cores=cores)

    def _cores(self, job: JobRecord) -> int:
        """Return the cores of the spec; else as tuned by the job or its owner's jobs; else by category and hints."""
        spec = job.json["spec"]
        wanted = spec["cpusPerReplica"]
        if isinstance(wanted, int):
            return wanted
        gpus = spec["gpusPerReplica"]
        ceiling_cores = self._cluster.nodes.most_cores(gpus) or MOST_CORES
        learned = self._cluster.learned_cores.cores_for(job.json, ceiling_cores)
        return start_cores(job.category, job.hints, gpus, ceiling_cores) if learned is None else learned


def request_from_pod(pod: Json, *, cores: int) -> Json:
    """Return `status.request` of a pod as the API server admitted it."""
    spec = pod["spec"]
    affinity = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    ) or {}
    return {
        "resources": quantities_from_amounts(pod_amounts(pod)),
        "quota": quota_use(pod),
        "cpusPerReplica": cores,
        "priority": spec.get("priority") or 0,
        "nodeSelector": spec.get("nodeSelector") or {},
        "nodeSelectorTerms": affinity.get("nodeSelectorTerms") or [],
        "tolerations": spec.get("tolerations") or [],
    }
