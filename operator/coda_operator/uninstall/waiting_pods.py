"""Lets pods go that wait for Coda: CPU jobs with its gate, and those that are released and not bound yet.

Such a pod names Coda's scheduler, which nobody can change, so without its gate alone it would wait for ever. None of
them has run yet. So its owner makes it anew, as an ordinary pod; one without an owner is made anew here.
"""

from __future__ import annotations

import asyncio
import copy
import logging
from collections import Counter
from collections.abc import Mapping
from enum import Enum
from typing import Any, Final

from coda.errors import CodaError, Conflict
from coda_kube.api.client import AlreadyExists, Client, Expired, NotFound, Rejected
from coda_kube.objects.json_types import Json
from coda_kube.objects.names import (
    ANNOTATION_BORROWS,
    ANNOTATION_PLAN,
    ANNOTATION_PLANNED,
    ANNOTATION_QUEUED,
    ANNOTATION_USER,
    GATE,
    POOL_TAINT,
    SCHEDULER,
)
from coda_kube.objects.pods.cpu_job import cpu_job_from_json, ignores_disruptions, is_recreated
from coda_kube.objects.pods.node_terms import pin_of
from coda_operator.uninstall.parallel import in_parallel

log = logging.getLogger(__name__)

PODS: Final = "/api/v1/pods"
WAITING: Final = {"fieldSelector": f"spec.schedulerName={SCHEDULER},status.phase=Pending"}
QUIET_S: Final = 3.0
"""Our choice: API servers read admission policies once a second, each for itself, and none tells when. After this time
without a new pod that waits, none comes any more."""
LOOK_S: Final = 0.5
MOST_TRIES: Final = 60
"""Our choice: half a minute. A pod that was never bound goes at once."""

_COUNTING: Final = "batch/Job"
_OURS: Final = (ANNOTATION_PLAN, ANNOTATION_PLANNED, ANNOTATION_QUEUED, ANNOTATION_BORROWS, ANNOTATION_USER)


class Fate(Enum):
    """What becomes of a pod that waits."""

    EVICT = "its owner makes another one and counts nothing"
    COUNT = "its Job makes another one and counts a failure, so its limit is raised first"
    REMAKE = "nobody owns it: it is made anew for the cluster's own scheduler"
    LET_GO = "only its owner knows what its end would mean: the gate goes, and the pod stays"


def fate_of(pod: Json, job: Json | None) -> Fate | None:
    """Return what becomes of it; None if it does not wait for Coda, or can only be left as it is.

    `job`: the Job that owns it, if one does and still exists."""
    metadata, spec = pod["metadata"], pod["spec"]
    let_go = Fate.LET_GO if _has_gate(spec) else None
    if spec.get("nodeName") or metadata.get("deletionTimestamp"):
        return None
    try:
        cpu_job = cpu_job_from_json(metadata, spec)
    except CodaError:  # it was here before Coda kept its keys
        return let_go
    if cpu_job is None:
        return None
    kind, uid = cpu_job.controller
    ignoring = frozenset({uid}) if job is not None and ignores_disruptions(job) else frozenset[str]()
    if is_recreated(cpu_job, ignored_disruptions=ignoring):
        return Fate.EVICT
    if not kind and not metadata.get("finalizers"):  # they would keep its name
        return Fate.REMAKE
    if kind == _COUNTING and job is not None and _only_counts(job):
        return Fate.COUNT
    return let_go


def _only_counts(job: Json) -> bool:
    """True if a pod that is evicted before it ran costs the Job one failure at most, of all that it may have."""
    spec = job["spec"]
    rules = (spec.get("podFailurePolicy") or {}).get("rules") or ()
    ends_it = any(rule.get("onPodConditions") and rule.get("action") in ("FailJob", "FailIndex") for rule in rules)
    return spec.get("backoffLimitPerIndex") is None and not ends_it


def remade(pod: Json) -> Json:
    """Return the pod as its maker asked for it: without what Coda or the API server has added."""
    metadata, spec = pod["metadata"], copy.deepcopy(pod["spec"])
    notes = {key: value for key, value in (metadata.get("annotations") or {}).items() if key not in _OURS}
    kept = ("name", "namespace", "labels", "ownerReferences")
    spec["schedulerName"] = "default-scheduler"
    spec["schedulingGates"] = [gate for gate in spec.get("schedulingGates") or () if gate["name"] != GATE]
    spec["tolerations"] = _own_tolerations(spec)
    if ANNOTATION_PLANNED in (metadata.get("annotations") or {}):
        spec["affinity"] = _unpinned(spec)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {name: metadata[name] for name in kept if name in metadata} | {"annotations": notes},
        "spec": spec,
    }


def _own_tolerations(spec: Json) -> list[Json]:
    """Those that Coda's policy did not append: it gives the pool's, then those of the chart's `pool.taints`."""
    own: list[Json] = []
    is_codas = False
    for one in spec.get("tolerations") or ():
        is_codas = one.get("key") == POOL_TAINT or (is_codas and one == {"key": one.get("key"), "operator": "Exists"})
        own += [] if is_codas else [one]
    return own


def _unpinned(spec: Json) -> Json:
    """The affinity without the pin that the planner gave when it released the pod."""
    affinity = copy.deepcopy(spec.get("affinity") or {})
    node = pin_of(spec)
    pin = {"key": "metadata.name", "operator": "In", "values": [node]}
    of_nodes = affinity.get("nodeAffinity") or {}
    name = "requiredDuringSchedulingIgnoredDuringExecution"
    terms = (of_nodes.get(name) or {}).get("nodeSelectorTerms") or []
    for term in terms:
        term["matchFields"] = [field for field in term.get("matchFields") or () if field != pin]
    left = [term for term in terms if term["matchFields"] or term.get("matchExpressions")]
    if left:
        of_nodes[name]["nodeSelectorTerms"] = left
    else:
        of_nodes.pop(name, None)
    return affinity


def _has_gate(spec: Mapping[str, Any]) -> bool:
    return any(gate.get("name") == GATE for gate in spec.get("schedulingGates") or ())


async def free_waiting_pods(client: Client, *, within_s: float) -> None:
    """Let every pod go that waits for Coda, until no new one has come for a while. Raises an Outage.

    Whoever makes pods with the gate by himself, again and again, holds it up for `within_s` and no longer."""
    loop, done = asyncio.get_running_loop(), Counter[Fate]()
    began_s = last_s = loop.time()
    while loop.time() - last_s < QUIET_S and loop.time() - began_s < within_s:
        freed, is_clean = await _sweep(client)
        done += freed
        if not is_clean:
            last_s = loop.time()
        await asyncio.sleep(LOOK_S)
    for fate, count in sorted(done.items(), key=lambda item: item[0].name):
        log.info("%d waiting pods: %s", count, fate.value)


async def _sweep(client: Client) -> tuple[Counter[Fate], bool]:
    """Go once over all pods that wait; a pod that changes meanwhile is left for the next time.

    Returns how many were let go, and whether none waited."""
    jobs: dict[str, Json | None] = {}
    waiting: dict[Fate, list[Json]] = {}
    try:
        async for page in client.pages(PODS, WAITING):
            for pod in page["items"]:
                if (fate := fate_of(pod, await _job_of(client, pod, jobs))) is not None:
                    waiting.setdefault(fate, []).append(pod)
    except Expired:
        return Counter(), False
    is_clean = not waiting
    try:
        await _raise_limits(client, waiting.get(Fate.COUNT, []), jobs)
    except (Conflict, NotFound):  # a Job has just gone
        waiting.pop(Fate.COUNT)
    freed = Counter[Fate]()
    for fate, pods in waiting.items():
        freed[fate] = sum(await in_parallel(_free(client, pod, fate) for pod in pods))
    return +freed, is_clean


async def _job_of(client: Client, pod: Json, known: dict[str, Json | None]) -> Json | None:
    """The Job that owns the pod; each is read once."""
    for owner in pod["metadata"].get("ownerReferences") or ():
        if owner.get("controller") and owner["apiVersion"].startswith("batch/") and owner["kind"] == "Job":
            if owner["uid"] not in known:
                path = f"/apis/batch/v1/namespaces/{pod['metadata']['namespace']}/jobs/{owner['name']}"
                try:
                    job = await client.get(path)
                    known[owner["uid"]] = job if job["metadata"]["uid"] == owner["uid"] else None
                except NotFound:
                    known[owner["uid"]] = None
            return known[owner["uid"]]
    return None


async def _raise_limits(client: Client, pods: list[Json], jobs: Mapping[str, Json | None]) -> None:
    """Let each Job fail as often more as it loses pods here. Raises a Conflict if a Job has just changed."""
    lost = Counter(owner["uid"] for pod in pods for owner in pod["metadata"]["ownerReferences"] if owner["controller"])
    for uid, count in lost.items():
        job = jobs[uid]
        assert job is not None  # only pods of a known Job have that fate
        metadata = job["metadata"]
        path = f"/apis/batch/v1/namespaces/{metadata['namespace']}/jobs/{metadata['name']}"
        await client.patch(path, {"metadata": {"uid": uid}, "spec": {"backoffLimit": _limit(job) + count}})


def _limit(job: Json) -> int:
    limit = job["spec"].get("backoffLimit")
    return 6 if limit is None else int(limit)


async def _free(client: Client, pod: Json, fate: Fate) -> bool:
    """False if it changed meanwhile. What a webhook of somebody's refuses is only let go."""
    metadata = pod["metadata"]
    collection = f"/api/v1/namespaces/{metadata['namespace']}/pods"
    try:
        if fate is Fate.REMAKE:
            await _remake(client, pod, collection)
        elif fate is not Fate.LET_GO:
            await _evict(client, pod, collection)
        else:
            await _let_go(client, pod, collection)
    except (Conflict, NotFound):
        return False
    except Rejected as error:
        if fate is Fate.LET_GO:
            raise
        log.warning("pod %s/%s: %s", metadata["namespace"], metadata["name"], error)
        return await _free(client, pod, Fate.LET_GO)
    return True


async def _let_go(client: Client, pod: Json, collection: str) -> None:
    metadata = pod["metadata"]
    gates = [gate for gate in pod["spec"].get("schedulingGates") or () if gate["name"] != GATE]
    version = {"resourceVersion": metadata["resourceVersion"], "uid": metadata["uid"]}
    await client.patch(f"{collection}/{metadata['name']}", {"metadata": version, "spec": {"schedulingGates": gates}})
    where = f"{metadata['namespace']}/{metadata['name']}"
    log.warning("pod %s has no gate now and names the scheduler %s: delete it if it stays Pending", where, SCHEDULER)


async def _evict(client: Client, pod: Json, collection: str) -> None:
    """At this version of the pod only: it has not been bound since. Budgets do not count pods that have never run."""
    metadata = pod["metadata"]
    preconditions = {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]}
    body = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"namespace": metadata["namespace"], "name": metadata["name"]},
        "deleteOptions": {"preconditions": preconditions, "gracePeriodSeconds": 0},
    }
    await client.create(f"{collection}/{metadata['name']}/eviction", body)


async def _remake(client: Client, pod: Json, collection: str) -> None:
    """Ask first whether the new pod is taken: else the old one would be gone for good."""
    fresh = remade(pod)
    name = fresh["metadata"]["name"]
    trial = {**fresh, "metadata": {**fresh["metadata"], "name": f"{name[:240]}-again"}}
    await client.create(collection, trial, {"dryRun": "All"})
    await _evict(client, pod, collection)
    await _create(client, collection, fresh)


async def _create(client: Client, pods: str, pod: Json) -> None:
    """Create the pod once the name of the one before it is free. Raises an Outage."""
    for _ in range(MOST_TRIES):
        try:
            await client.create(pods, pod)
        except AlreadyExists:
            await asyncio.sleep(LOOK_S)
        else:
            return
    where = f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
    log.error("pod %s was not made anew: something holds the one before it", where)
