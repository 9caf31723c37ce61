"""What the operator knows of the cluster: jobs from kopf, gang pods and nodes from watches. Keeps, never decides.

Everything the operator writes itself is put here at once, so no decision is made on a state older than its own write.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping

from coda_kube.client import Client, Json, NotFound
from coda_kube.naming import GPU, LABEL_JOB, LABEL_JOB_UID, PLANNER_LEASE, SYSTEM_NAMESPACE
from coda_kube.quantities import milli_from_quantity, seconds_from_time, whole_from_quantity
from coda_kube.watching import Cache, key_of
from coda_kube.writing import job_path

PLANNER_LEASE_PATH = f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM_NAMESPACE}/leases/{PLANNER_LEASE}"


class Cluster:
    """Caches of jobs, gang pods and nodes; `wake` is called with the key of each job that a change concerns."""

    def __init__(self, client: Client, wake: Callable[[str], None]) -> None:
        self._client = client
        self._wake = wake
        self._pods_by_job_uid: dict[str, dict[str, Json]] = {}
        self.unready_since_s: dict[str, float] = {}
        self.jobs = Cache(client, "/apis/coda.scheduler/v1alpha1/trainingjobs", listener=self._on_job)
        self.pods = Cache(client, "/api/v1/pods", listener=self._on_pod, query={"labelSelector": LABEL_JOB_UID})
        self.nodes = Cache(client, "/api/v1/nodes", listener=self._on_node)

    async def run(self) -> None:
        """Keep the watches until cancelled. Jobs are not watched here: kopf feeds them."""
        await asyncio.gather(self.pods.run(), self.nodes.run())

    async def synced(self) -> None:
        """Wait until pods and nodes are known."""
        await asyncio.gather(self.pods.synced.wait(), self.nodes.synced.wait())

    def is_synced(self) -> bool:
        """True once pods and nodes are known."""
        return self.pods.synced.is_set() and self.nodes.synced.is_set()

    def pods_of(self, job: Json) -> Iterable[Json]:
        """The gang pods of a job, any attempt."""
        return tuple(self._pods_by_job_uid.get(job["metadata"]["uid"], {}).values())

    def unready_nodes(self, pods: Iterable[Json]) -> Mapping[str, float]:
        """Of the nodes these pods are on, those not Ready or gone: since when."""
        names = {node for pod in pods if (node := pod["spec"].get("nodeName"))}
        for name in names - self.nodes.by_key.keys():
            self.unready_since_s.setdefault(name, time.time())
        return {name: self.unready_since_s[name] for name in names & self.unready_since_s.keys()}

    def most_cores(self, gpus: int) -> int:
        """Cores of the largest node that has `gpus` GPUs; 0 when there is none."""
        return max(
            (
                milli_from_quantity(allocatable.get("cpu", "0")) // 1000
                for node in self.nodes.by_key.values()
                if whole_from_quantity((allocatable := node["status"].get("allocatable") or {}).get(GPU, "0")) >= gpus
            ),
            default=0,
        )

    async def read_pods_again(self, job: Json) -> None:
        """A consistent list of the job's pods: what the watch has not told yet is taken over, also what is gone."""
        metadata = job["metadata"]
        path = f"/api/v1/namespaces/{metadata['namespace']}/pods"
        listing = await self._client.list_pages(path, {"labelSelector": f"{LABEL_JOB_UID}={metadata['uid']}"})
        present = {key_of(pod) for pod in listing["items"]}
        for pod in listing["items"]:
            self.pods.put(pod)
        for pod in self.pods_of(job):
            if key_of(pod) not in present:
                self.pods.drop(pod)

    async def read_job_again(self, key: str) -> None:
        """The job as it is now; dropped when it is gone."""
        try:
            self.jobs.put(await self._client.get(job_path(key)))
        except NotFound:
            if key in self.jobs.by_key:
                self.jobs.drop(self.jobs.by_key[key])

    async def planner_epoch(self) -> int:
        """The transitions of the planner's Lease now; -1 when there has never been a planner."""
        try:
            lease = await self._client.get(PLANNER_LEASE_PATH)
        except NotFound:
            return -1
        return int(lease["spec"].get("leaseTransitions") or 0)

    def _on_job(self, old: Json | None, new: Json | None) -> None:
        self._wake(key_of(new or old or {}))

    def _on_pod(self, old: Json | None, new: Json | None) -> None:
        pod = new or old or {}
        labels = pod["metadata"]["labels"]
        pods = self._pods_by_job_uid.setdefault(labels[LABEL_JOB_UID], {})
        if new is not None:
            pods[key_of(pod)] = new
        else:
            pods.pop(key_of(pod), None)
        if not pods:
            del self._pods_by_job_uid[labels[LABEL_JOB_UID]]
        self._wake(f"{pod['metadata']['namespace']}/{labels.get(LABEL_JOB, '')}")

    def _on_node(self, old: Json | None, new: Json | None) -> None:
        name = key_of(new or old or {})
        was_unready = name in self.unready_since_s
        ready = _ready_condition(new) if new is not None else {"status": "Unknown"}
        if ready.get("status") == "True":
            self.unready_since_s.pop(name, None)
        else:
            since_s = seconds_from_time(ready.get("lastTransitionTime")) or time.time()
            self.unready_since_s.setdefault(name, since_s)
        if was_unready != (name in self.unready_since_s):
            for pod in self.pods.by_key.values():
                if pod["spec"].get("nodeName") == name:
                    self._wake(f"{pod['metadata']['namespace']}/{pod['metadata']['labels'].get(LABEL_JOB, '')}")


def _ready_condition(node: Json) -> Json:
    conditions = (node.get("status") or {}).get("conditions") or ()
    return next((condition for condition in conditions if condition["type"] == "Ready"), {})
