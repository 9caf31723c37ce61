"""Asks the API server by a dry run what one rank of a job requests: its cores, and the nodes that its claims allow."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from coda.allocator import start_cores
from coda.allocator.start_point import in_multiples
from coda.errors import Outage
from coda.lifecycle import Progress
from coda.lifecycle.transitions import GangSize, is_refused_for_good
from coda.model import Phase
from coda.wording import listed
from coda_kube.api.client import Client, NotFound, Rejected
from coda_kube.objects.json_types import Json
from coda_kube.objects.names import GPU, SCHEDULER
from coda_kube.objects.pod_requests import pod_amounts, quantities_from_amounts, quota_use
from coda_kube.objects.pods.trial_spec import runs_trial
from coda_kube.objects.quantities import milli_from_quantity
from coda_kube.objects.quota_scopes import json_from_scopes, scopes_of_pod
from coda_kube.objects.read import AUTO
from coda_kube.objects.volumes import (
    brought_classes,
    claims_of,
    claims_with_terms,
    class_of,
    problem_of,
    refusal_of,
    terms_with_volumes,
)
from coda_operator.cores_limit import NO_LIMIT, CoresLimit, kept_cores
from coda_operator.reconcile.api_refusals import (
    Blame,
    blame_for,
    cores_allowed,
    is_about_cores,
    may_pass,
    reason_to_wait,
)
from coda_operator.reconcile.pod_spec import is_opportunistic, probe_pod
from coda_operator.reconcile.request_slots import RequestSlots
from coda_operator.trials import job_for
from coda_operator.view import ClusterView, JobRecord

CLASSES_PATH = "/apis/storage.k8s.io/v1/storageclasses"
_MOST_TRIES = 3  # with fewer cores: a LimitRange may bound a container, its pod, and there may be several
CLAIMS_REFUSED = (
    "devices of a claim count for no quota of GPUs and no plan: leave spec.template.spec.resourceClaims out, and ask "
    "for GPUs by spec.gpusPerReplica"
)
MOST_CORES = 1024  # the CRD's limit; used while no node is known


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateRefused:
    """Such a gang never runs; `message` says why, as the API server or a volume has it. `may_pass`: or a webhook
    denies it for a while."""

    message: str
    may_pass: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NotAdmitted:
    """The API server would accept such a pod, but not now: something in the namespace must change first."""

    reason: str
    message: str


class Acceptor:
    """Makes `status.request` from a job's template."""

    def __init__(
        self,
        client: Client,
        cluster: ClusterView,
        requests: RequestSlots,
        trial_nodes: Mapping[str, str],
        pool_taints: Sequence[str] = (),
        *,
        cores_limit: CoresLimit = NO_LIMIT,
    ) -> None:
        self._cores_limit = cores_limit
        self._trial_nodes = trial_nodes
        self._pool_taints = pool_taints
        self._client = client
        self._cluster = cluster
        self._requests = requests

    async def request_of(self, job: JobRecord, wanted: Progress) -> Json | TemplateRefused | NotAdmitted:
        """Return what one rank of this attempt requests once admitted. Raises Outage; Rejected if nothing was judged.

        A trial is accepted only if its gang would be: one rank with one GPU proves nothing about the gang's own shape.
        Between two attempts the gang was accepted before. Without an admitted pod there is no request: what the
        template says is not judged, capped or completed."""
        if job.json["spec"]["template"]["spec"].get("resourceClaims"):  # a webhook of the platform may add some
            return TemplateRefused(message=CLAIMS_REFUSED)
        if not wanted.is_tried:
            return await self._within_limit(job, wanted)
        if job.progress.phase is not Phase.RESTARTING:
            gang = await self._within_limit(job, replace(wanted, trial=None))
            if isinstance(gang, TemplateRefused):
                return gang
        return await self._admitted(job, wanted)

    async def _within_limit(self, job: JobRecord, wanted: Progress) -> Json | TemplateRefused | NotAdmitted:
        """As `_admitted`, with no more cores per GPU than the platform allows: where Coda finds them, with fewer.

        A job that was accepted before the limit keeps what it had."""
        answer = await self._admitted(job, wanted)
        if isinstance(answer, TemplateRefused | NotAdmitted) or not (excess := self._excess(job, answer)):
            return answer
        kept = self._kept_cores(job, answer)
        most_cores = answer["cpusPerReplica"] - excess  # its sidecars have the rest
        if most_cores <= 0:
            most_cores = kept
        if job.json["spec"]["cpusPerReplica"] == AUTO and most_cores > 0:
            answer = await self._admitted(job, wanted, most_cores=most_cores)
            if isinstance(answer, TemplateRefused | NotAdmitted) or not self._excess(job, answer):
                return answer  # else they must be a multiple of more than that
        if answer["cpusPerReplica"] <= kept:
            return answer
        return TemplateRefused(message=self._cores_limit.sentence(job.json, answer))

    def _excess(self, job: JobRecord, answer: Json) -> int:
        return self._cores_limit.excess(job.json, answer)

    def _kept_cores(self, job: JobRecord, answer: Json) -> int:
        """Return how many cores a rank has of right, whatever the limit; 0: none, as it was not accepted before."""
        if job.request is None or is_refused_for_good(job.progress, job.generation, was_accepted=True):
            return 0
        return kept_cores(job.request, answer)

    async def _admitted(
        self, job: JobRecord, wanted: Progress, *, most_cores: int = MOST_CORES
    ) -> Json | TemplateRefused | NotAdmitted:
        """Ask with the cores of this attempt; of cores that Coda chose, with as many as a LimitRange allows.

        More are not found either: it refuses such a resize."""
        asked = job_for(job.json, wanted, self._trial_nodes)
        multiple = wanted.cores_multiple if asked["spec"]["cpusPerReplica"] == AUTO else 1
        cores = min(self._cores(job, asked, multiple), max(1, most_cores // multiple) * multiple)
        admitted = await self._dry_run(job, wanted, asked, cores)
        for _ in range(_MOST_TRIES if asked["spec"]["cpusPerReplica"] == AUTO else 0):
            if not isinstance(admitted, TemplateRefused) or not is_about_cores(admitted.message):
                break
            fewer = cores_allowed(admitted.message, cores) // multiple * multiple
            if not 0 < fewer < cores:
                chose = f"Coda chose {cores} cores per rank: set spec.cpusPerReplica, or change the LimitRange"
                return replace(admitted, message=f"{chose}; {admitted.message}")
            cores = fewer
            admitted = await self._dry_run(job, wanted, asked, cores)
        if isinstance(admitted, TemplateRefused | NotAdmitted):
            return admitted
        return await self._request(job, asked, admitted, cores)

    async def _dry_run(
        self, job: JobRecord, wanted: Progress, asked: Json, cores: int
    ) -> Json | TemplateRefused | NotAdmitted:
        """Return the pod of a rank with so many cores, as the API server admits it."""
        probe = probe_pod(
            asked, attempt=wanted.attempt, cores=cores, memory=wanted.memory, pool_taints=self._pool_taints
        )
        try:
            async with self._requests.reading():
                return await self._client.create(job.pods_path, probe, {"dryRun": "All", "fieldValidation": "Strict"})
        except (Rejected, Outage) as refusal:
            blame = blame_for(refusal)
            if blame is Blame.MOMENT:
                raise
            if blame is Blame.TEMPLATE:
                return TemplateRefused(message=str(refusal), may_pass=may_pass(refusal))
            return NotAdmitted(reason=reason_to_wait(refusal), message=f"not accepted yet: {refusal}")

    async def _request(
        self, job: JobRecord, asked: Json, admitted: Json, cores: int
    ) -> Json | TemplateRefused | NotAdmitted:
        if (taken := _taken_over(admitted, job.json["metadata"]["namespace"])) is not None:
            return taken
        if (lacking := await self._missing_class(admitted["spec"])) is not None:
            return lacking
        claims = claims_of(admitted["spec"])
        volumes = await self._volumes(job, claims, asked["spec"]["replicas"]) if claims else {}
        if isinstance(volumes, TemplateRefused | NotAdmitted):
            return volumes
        request = request_from_pod(admitted, cores=cores)
        if is_opportunistic(asked):  # no quota counts the GPU of its seat, and each rank has one
            request["resources"][GPU] = str(asked["spec"]["gpusPerReplica"])
        terms = terms_with_volumes(request["nodeSelectorTerms"], [*volumes.values()])
        named = claims_with_terms(volumes)
        return request | {"nodeSelectorTerms": terms} | ({"volumeClaims": named} if named else {})

    async def _volumes(
        self, job: JobRecord, claims: Iterable[str], replicas: int
    ) -> dict[str, Json] | TemplateRefused | NotAdmitted:
        """Return by claim its volume, or its class if it has none yet; or what keeps all such pods from starting.

        Of a claim that may not be read, with its volume or its class, nothing is known: kube-scheduler's refusal is
        learned from then."""
        volumes: dict[str, Json] = {}
        for name in claims:
            try:
                found = await self._volume_of(job, name, replicas)
            except Rejected as refusal:
                if refusal.status != 403:
                    raise
                continue
            if isinstance(found, TemplateRefused | NotAdmitted):
                return found
            if found is not None:
                volumes[name] = found
        return volumes

    async def _volume_of(self, job: JobRecord, name: str, replicas: int) -> Json | TemplateRefused | NotAdmitted | None:
        claim = await self._found(f"{job.pods_path.rpartition('/')[0]}/persistentvolumeclaims/{name}")
        if (refusal := refusal_of(name, claim, replicas)) is not None:
            return TemplateRefused(message=refusal)
        volume, kind = ((claim or {}).get("spec") or {}).get("volumeName"), class_of(claim)
        storage_class = await self._found(f"{CLASSES_PATH}/{kind}") if kind and not volume else None
        if (problem := problem_of(name, claim, storage_class)) is not None:
            reason, sentence = problem
            return NotAdmitted(reason=reason, message=f"not accepted yet: {sentence}")
        return await self._found(f"/api/v1/persistentvolumes/{volume}") if volume else storage_class

    async def _missing_class(self, spec: Json) -> NotAdmitted | None:
        """Return that a class of an ephemeral volume is missing: its gang would hold GPUs while no volume is made."""
        for name, kind in brought_classes(spec).items():
            try:
                found = await self._found(f"{CLASSES_PATH}/{kind}")
            except Rejected as refusal:
                if refusal.status != 403:
                    raise
                return None
            if found is None:
                sentence = f"StorageClass {kind} of its ephemeral volume {name} does not exist"
                return NotAdmitted(reason="StorageClassMissing", message=f"not accepted yet: {sentence}")
        return None

    async def _found(self, path: str) -> Json | None:
        try:
            async with self._requests.reading():
                return await self._client.get(path)
        except NotFound:
            return None

    def _cores(self, job: JobRecord, asked: Json, multiple: int) -> int:
        """Return the cores of the spec; else as tuned by the job or its owner's jobs; else by category and hints.

        Cores that are not of the spec are a multiple of `multiple`."""
        spec = asked["spec"]
        wanted = spec["cpusPerReplica"]
        if isinstance(wanted, int):
            return wanted
        gpus = spec["gpusPerReplica"]
        ceiling_cores = self._cores_limit.ceiling(gpus, self._cluster.nodes.most_cores(gpus) or MOST_CORES)
        nodes, template = self._cluster.nodes, spec["template"]["spec"]
        part_cores = (nodes.part_of_cores(gpus, template) if gpus else 0) or ceiling_cores
        learned = self._cluster.learned_cores.cores_for(asked, ceiling_cores, part_cores)
        found = start_cores(job.category, job.hints, gpus, part_cores) if learned is None else learned
        return in_multiples(min(found, ceiling_cores), multiple, ceiling_cores)


def _taken_over(pod: Json, namespace: str) -> NotAdmitted | None:
    """Return which change by a webhook keeps the pod from the place that Coda gives it; None: there is none.

    Its ranks would hold their places until the deadline of each attempt, and wait for somebody who knows no gang."""
    spec = pod["spec"]
    gates, scheduler = [gate["name"] for gate in spec.get("schedulingGates") or ()], spec.get("schedulerName")
    if gates:
        reason, given = "SchedulingGated", f"the scheduling {'gate' if len(gates) == 1 else 'gates'} {listed(gates)}"
    elif scheduler != SCHEDULER:
        reason, given = "OtherScheduler", f"to the scheduler {scheduler}"
    else:
        return None
    advice = f"leave namespace {namespace} out of what it does (of Kueue's pod integration, for example)"
    return NotAdmitted(reason=reason, message=f"not accepted yet: a webhook gives its pods {given}: {advice}")


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
        "scopes": json_from_scopes(scopes_of_pod(pod)),
        "nodeSelector": spec.get("nodeSelector") or {},
        "nodeSelectorTerms": affinity.get("nodeSelectorTerms") or [],
        "tolerations": spec.get("tolerations") or [],
    }


def sizes(job: Json, wanted: Progress, request: Json) -> tuple[GangSize | None, GangSize]:
    """Return the size at which a job was accepted last, None if it never was, and its size with this request.

    If one of the two attempts is a trial, both are counted by GPU: the place in the queue is the gang's."""
    spec, status = job["spec"], job.get("status") or {}
    by_gpu = wanted.is_tried or runs_trial(status)
    ranks = spec["replicas"] * (max(1, spec["gpusPerReplica"]) if by_gpu else 1)
    after = _size(spec, ranks, request, by_gpu=by_gpu)
    known, cores = status.get("request"), status.get("cores")
    if not known or not cores or not known.get("cpusPerReplica"):
        return None, after
    ranks = (status.get("gpus") or 0) if by_gpu else cores // known["cpusPerReplica"]
    return _size(spec, ranks, known, by_gpu=by_gpu), after


def _size(spec: Json, ranks: int, request: Json, *, by_gpu: bool) -> GangSize:
    """Return the size of a gang with this request per rank. Cores that Coda finds are not of the user's making.

    By GPU: `ranks` have one GPU each, and their part of the cores, rounded up, as `tried_spec` has it."""
    amounts = {name: milli_from_quantity(quantity) for name, quantity in request["resources"].items()}
    if by_gpu:
        gpus = max(1, amounts.pop(GPU, 0) // 1000)
        amounts["cpu"] = -(-request["cpusPerReplica"] // gpus) * 1000
    if spec.get("cpusPerReplica") == AUTO:
        amounts.pop("cpu", None)
    return GangSize(ranks, amounts)
