"""The agents' DaemonSet on the real node, as the chart renders it: the kubelet and containerd run it.

Only what a cluster has besides Coda is made here: the RuntimeClass `nvidia`, which a GPU operator makes, and the image
on the node, which a registry would give.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from importlib import metadata

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from coda_kube.api.client import Client
from coda_kube.objects.json_types import Json
from coda_lab.host.paths import Settings
from coda_lab.images.image import AGENT, write_image
from coda_lab.realnode.configuration import NVIDIA
from coda_lab.realnode.node import RealNode
from tests.deploy.charts import NAMESPACE, Helm, find
from tests.e2e.jobs import wait_for
from tests.realnode.scene import PATIENCE_S

DAEMON_SET = f"/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets/coda-agent"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
RUNTIME = {
    "apiVersion": "node.k8s.io/v1",
    "kind": "RuntimeClass",
    "metadata": {"name": NVIDIA},
    "handler": NVIDIA,
}
MANAGER = "test"
_AGENTS = {"labelSelector": "app.kubernetes.io/component=agent"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Agents:
    """The agent of the node, seen from outside."""

    node: RealNode
    admin: Client
    helm: Helm

    @classmethod
    async def prepared(cls, node: RealNode, admin: Client, helm: Helm) -> Agents:
        """With the image on the node and nothing installed yet."""
        archive = node.share / "agent.tar"
        settings = Settings.from_environ()
        await asyncio.to_thread(write_image, AGENT, archive, metadata.version("coda"), settings, print)
        await node.import_image(archive)
        archive.unlink()
        await admin.apply(f"/apis/node.k8s.io/v1/runtimeclasses/{NVIDIA}", RUNTIME, manager=MANAGER)
        return cls(node=node, admin=admin, helm=helm)

    async def install(self, *values: str, more: tuple[str, ...] = ()) -> Json:
        """Apply the chart's DaemonSet with these values (`more`: words for Helm); its pod, once it is ready."""
        given = (
            *("agent.enabled=true", f"agent.image.repository={AGENT.repository}", "agent.image.pullPolicy=Never"),
            "metrics.protected=false",  # they are read from the pod's address, without an account
        )
        rendered = self.helm.render(*given, f"agent.runtimeClassName={NVIDIA}", *values, more=more)
        await self.admin.apply(DAEMON_SET, find(rendered, "DaemonSet", "coda-agent"), manager=MANAGER)
        return await self.ready()

    async def ready(self, *, restarts: int = 0) -> Json:
        """Its pod once it is ready, after so many restarts."""

        def is_ready(daemon_set: Json) -> bool:
            status = daemon_set.get("status", {})
            is_seen = status.get("observedGeneration") == daemon_set["metadata"]["generation"]
            return bool(is_seen and status.get("numberReady") == status.get("updatedNumberScheduled") == 1)

        await wait_for(self.admin, DAEMON_SET, is_ready, within_s=PATIENCE_S)
        path = f"{PODS}/{(await self.pods())[0]['metadata']['name']}"
        return await wait_for(self.admin, path, lambda pod: has_begun(pod, restarts), within_s=PATIENCE_S)

    async def pods(self) -> list[Json]:
        """Its pods that are there."""
        return list((await self.admin.get(PODS, _AGENTS))["items"])

    async def process(self, pod: Json) -> int:
        """The pid of the agent there."""
        status = pod["status"]["containerStatuses"][0]
        folder = await self.node.container_cgroup(pod["metadata"]["uid"], status["containerID"])
        return min(int(pid) for pid in (await self.node.read(f"{folder}/cgroup.procs")).split())

    async def said(self) -> str:
        """All that the agents said, also those that ended."""
        where = f"/var/log/pods/{NAMESPACE}_coda-agent-*/agent/*.log"
        return (await self.node.run("/bin/sh", "-c", f"cat {where}")).check()

    async def samples(self, pod: Json, name: str) -> list[Sample]:
        """The samples of that name among its metrics."""
        address = f"http://{pod['status']['podIP']}:9092/metrics"
        text = (await self.node.run("/bin/busybox", "wget", "-q", "-O", "-", address)).check()
        families = text_string_to_metric_families(text)
        return [sample for family in families for sample in family.samples if sample.name == name]

    async def gpus(self, pod: Json) -> dict[str, str]:
        """The pod that its metrics name for each GPU that has one."""
        samples = await self.samples(pod, "coda_gpu_utilization_ratio")
        return {sample.labels["UUID"]: sample.labels["pod"] for sample in samples if sample.labels["pod"]}


def has_begun(pod: Json, restarts: int) -> bool:
    """True if its container is ready after at least that many restarts."""
    statuses = pod.get("status", {}).get("containerStatuses", ())
    return any(status["ready"] and status["restartCount"] >= restarts for status in statuses)
