"""The agent's caches of its node's pods and of the jobs whose rank 0 is there, and its writes to the API server."""

from __future__ import annotations

import asyncio
import logging
import random
import time
import uuid
from contextlib import suppress
from itertools import count
from typing import Final

from coda.allocator import Tuning
from coda.errors import CodaError, Outage
from coda.progress import TrainingProgress
from coda_agent.cluster.claims import ClaimingPod, ClaimReader, Claims
from coda_agent.cluster.jobs import TunedJob
from coda_agent.cluster.pods import LocalPod, local_pod_from_json
from coda_kube.api.client import AlreadyExists, Client, NotFound
from coda_kube.api.retry_pauses import growing_s, write_pause_s
from coda_kube.api.watch_cache import WatchCache, version_of
from coda_kube.job_progress import progress_json
from coda_kube.objects.json_types import Json
from coda_kube.objects.names import AGENT, AGENT_PROGRESS, API_VERSION, GROUP, KIND, THROTTLING, VERSION
from coda_kube.objects.quantities import milli_from_quantity, time_from_seconds
from coda_kube.objects.tuning_status import tuning_json

log = logging.getLogger(__name__)

JOBS_PATH: Final = f"/apis/{API_VERSION}/trainingjobs"
RANK0_NODE: Final = "status.placement.rank0Node"
"""The field of a TrainingJob by which the API server selects those whose rank 0 is on a node."""

APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"
UNREAD: Final = frozenset(
    (
        *("args", "command", "env", "envFrom", "lifecycle", "livenessProbe", "readinessProbe", "securityContext"),
        *("startupProbe", "tolerations", "volumeDevices", "volumeMounts", "volumes"),
    )
)
"""Fields of a pod's spec and of its containers that the agent does not read, so that it keeps no secret either."""

NODE_AGAIN_S: Final = 3600.0
"""Seconds between two reads of this Node: what it can give to pods changes when its kubelet is configured again."""

EVENT_KEPT_S: Final = 600.0
"""An event that could not be posted for this long is lost. Our choice: longer than most outages."""
READ_ERRORS: Final = (CodaError, LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError)
"""What reading a broken object raises."""


class AgentCaches:
    """Caches of this node's pods, of namespaces that allow throttling, and of the jobs whose rank 0 is here.

    Each is one watch, however many pods and jobs there are: a cluster has thousands of agents."""

    def __init__(self, client: Client, node: str) -> None:
        self._client = client
        self._node = node
        here = {"fieldSelector": f"spec.nodeName={node}"}
        self._pods = WatchCache(client, "/api/v1/pods", query=here, held_part=read_part, is_calm=True)
        self._namespaces = WatchCache(
            client, "/api/v1/namespaces", query={"labelSelector": f"{THROTTLING}=true"}, is_calm=True
        )
        self._read: dict[str, tuple[int, frozenset[str], LocalPod | None]] = {}  # by key: version, namespaces, pod
        self._fresh_at_s = float("-inf")
        self._jobs = WatchCache(client, JOBS_PATH, query={"fieldSelector": f"{RANK0_NODE}={node}"}, is_calm=True)
        self._claim_reader = ClaimReader(client, node)
        self._has_profile = False
        self.allocatable_m: int | None = None  # millicores for all pods together, as the Node says; None: unknown

    async def run(self) -> None:
        """Keep the caches up to date until cancelled."""
        tasks = [asyncio.create_task(cache.run()) for cache in self.all()]
        tasks.append(asyncio.create_task(self._read_node_regularly()))
        tasks.append(asyncio.create_task(self._claim_reader.run(self._claiming_pods)))
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def all(self) -> tuple[WatchCache, ...]:
        """Return every cache."""
        return (self._pods, self._namespaces, self._jobs)

    def is_synced(self) -> bool:
        """True once the lists were read that throttling needs. Jobs may follow: they are only tuned later then."""
        return self._pods.synced.is_set() and self._namespaces.synced.is_set()

    async def synced(self) -> None:
        """Wait until `is_synced`."""
        await asyncio.gather(self._pods.synced.wait(), self._namespaces.synced.wait())

    def pods_age_s(self) -> float:
        """Return the seconds since the list of pods was surely right; infinite before the first list."""
        now_s = time.monotonic()
        if self.is_synced() and self._pods.in_touch.is_set():
            self._fresh_at_s = now_s
        return now_s - self._fresh_at_s

    def pods(self) -> tuple[LocalPod, ...]:
        """Return the pods of this node, by key. A pod that cannot be read is left out and logged."""
        namespaces = frozenset(self._namespaces.by_key)
        before = self._read
        self._read = {}
        for key, item in self._pods.by_key.items():
            known = before.get(key)
            version = version_of(item)
            if known is None or known[:2] != (version, namespaces):
                known = (version, namespaces, _read_pod(key, item, namespaces))
            self._read[key] = known
        return tuple(pod for _key, (_version, _names, pod) in sorted(self._read.items()) if pod is not None)

    def claims(self) -> Claims:
        """Return what is known of the claims of this node's pods."""
        return self._claim_reader.claims

    def job(self, job: str) -> Json | None:
        """Return a job whose rank 0 is here; None while it is not known."""
        return self._jobs.by_key.get(job)

    async def write_tuning(self, job: TunedJob, tuning: Tuning) -> None:
        """Apply `status.tuning`, only if the job is still the version that was read.

        On a node that was cut off, the attempt may be over and the next one may be tuned elsewhere. Raises Conflict if
        the job changed, and Outage."""
        metadata = {"name": job.name, "namespace": job.namespace, "uid": job.uid, "resourceVersion": job.version}
        body = {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata}
        body |= {"status": {"tuning": tuning_json(tuning)}}
        path = f"/apis/{API_VERSION}/namespaces/{job.namespace}/trainingjobs/{job.name}/status"
        with suppress(NotFound):  # deleted meanwhile
            self._jobs.put(await self._client.apply(path, body, manager=AGENT))

    async def write_progress(self, metadata: Json, progress: TrainingProgress) -> None:
        """Apply `status.progress` of the job with this metadata, as a manager of its own. Raises Outage.

        Whatever else changed meanwhile: it says its attempt. The API server refuses it if rank 0 is elsewhere now."""
        name, namespace = metadata["name"], metadata["namespace"]
        body: Json = {"apiVersion": API_VERSION, "kind": KIND}
        body |= {"metadata": {"name": name, "namespace": namespace, "uid": metadata["uid"]}}
        body |= {"status": {"progress": progress_json(progress)}}
        path = f"/apis/{API_VERSION}/namespaces/{namespace}/trainingjobs/{name}/status"
        with suppress(NotFound):  # deleted meanwhile
            self._jobs.put(await self._client.apply(path, body, manager=AGENT_PROGRESS))

    async def read_profile(self, node: str) -> Json | None:
        """Return the NodeProfile of a node; None if there is none. Raises Outage."""
        try:
            return await self._client.get(f"/apis/{GROUP}/{VERSION}/nodeprofiles/{node}")
        except NotFound:
            return None

    async def write_profile(self, profile: Json) -> None:
        """Apply the NodeProfile. If it is missing, create it with this Node as its owner, so that it is deleted with
        the Node."""
        path = f"/apis/{GROUP}/{VERSION}/nodeprofiles/{self._node}"
        if self._has_profile:
            with suppress(NotFound):  # deleted with an earlier Node of this name, or by somebody
                await self._client.apply(f"{path}/status", profile, manager=AGENT)
                return
        bare = {name: field for name, field in profile.items() if name != "status"}
        bare["metadata"] = {**profile["metadata"], "ownerReferences": await self._owners()}
        await self._client.apply(path, bare, manager=AGENT)
        await self._client.apply(f"{path}/status", profile, manager=AGENT)
        self._has_profile = True

    async def write_throttles(self, throttles: Json, now_s: float) -> None:
        """Write only which throttles are in force (fields of the NodeProfile's status) and when this was so.

        For a program that measured nothing: all else stays as the agent wrote it. No error if there is no profile."""
        status = {**throttles, "time": time_from_seconds(now_s)}
        with suppress(NotFound):
            await self._client.patch(f"/apis/{GROUP}/{VERSION}/nodeprofiles/{self._node}/status", {"status": status})

    async def post_event(self, event: Json) -> None:
        """Create the event; while the API server is away, again for up to `EVENT_KEPT_S`. Raises the last error.

        It gets its name here, so that a second post of the same event changes nothing."""
        metadata = event["metadata"]
        named = metadata | {"name": f"{metadata['generateName']}{uuid.uuid4().hex[:10]}"}
        until_s = asyncio.get_running_loop().time() + EVENT_KEPT_S
        for failures in count():
            try:
                with suppress(AlreadyExists):
                    await self._client.create(
                        f"/api/v1/namespaces/{metadata['namespace']}/events", event | {"metadata": named}
                    )
                return
            except Outage as outage:
                if asyncio.get_running_loop().time() >= until_s:
                    raise
                pause_s = write_pause_s(failures, outage.retry_after_s, first_s=1.0, longest_s=30.0)
            await asyncio.sleep(pause_s)

    def _claiming_pods(self) -> list[ClaimingPod]:
        pods = [pod for pod in self.pods() if pod.runs and pod.claim_uses]
        return [ClaimingPod(uid=pod.uid, namespace=pod.namespace, uses=pod.claim_uses) for pod in pods]

    async def _read_node_regularly(self) -> None:
        for failures in count():
            try:
                node = await self._client.get(f"/api/v1/nodes/{self._node}")
                self.allocatable_m = milli_from_quantity(node["status"]["allocatable"]["cpu"])
            except NotFound:
                pass
            except READ_ERRORS as error:
                if not failures:
                    log.warning("the cores of node %s are not known: %s: %s", self._node, type(error).__name__, error)
            known = self.allocatable_m is not None
            again_s = NODE_AGAIN_S if known else growing_s(failures, 5.0, NODE_AGAIN_S)
            await asyncio.sleep(again_s * random.uniform(0.5, 1.5))

    async def _owners(self) -> list[Json]:
        """This Node as an owner reference; nothing where the cluster has no such Node."""
        try:
            node = await self._client.get(f"/api/v1/nodes/{self._node}")
        except NotFound:
            return []
        return [{"apiVersion": "v1", "kind": "Node", "name": self._node, "uid": node["metadata"]["uid"]}]


def read_part(pod: Json) -> Json:
    """Return a pod without its longest parts, which the agent does not read: a node may have 250 of several KiB."""
    metadata, spec = dict(pod["metadata"]), dict(pod.get("spec") or {})
    if metadata.get("annotations"):
        metadata["annotations"] = {name: text for name, text in metadata["annotations"].items() if name != APPLIED}
    for kind in ("containers", "initContainers"):
        if spec.get(kind):
            spec[kind] = [{name: part for name, part in one.items() if name not in UNREAD} for one in spec[kind]]
    return {**pod, "metadata": metadata, "spec": {name: part for name, part in spec.items() if name not in UNREAD}}


def _read_pod(key: str, item: Json, namespaces: frozenset[str]) -> LocalPod | None:
    try:
        return local_pod_from_json(item, namespaces)
    except READ_ERRORS as error:
        log.warning("pod %s cannot be read and is left alone: %s: %s", key, type(error).__name__, error)
        return None
