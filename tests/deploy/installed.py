"""An installation of the chart on a cluster: Helm's releases, and the processes that stand for its pods."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from coda.errors import Conflict
from coda_kube.api.client import Client, NotFound
from coda_kube.api.until import until
from coda_lab.host import processes
from coda_lab.host.paths import chart, crds, manifests
from coda_lab.host.ports import LOOPBACK
from coda_lab.host.processes import Process
from coda_lab.install import objects_in
from coda_lab.local.cluster import LocalCluster
from coda_lab.local.startup import running_cluster
from coda_lab.spec import ClusterSpec
from tests.deploy.charts import NAMESPACE, PARTS, Helm, Json
from tests.deploy.pods_as_processes import PODS, RunningPod, complaints_of, run_hook, run_pods
from tests.e2e.jobs import PATIENCE_S, wait_gone

RBAC = "/apis/rbac.authorization.k8s.io/v1"
COLLECTIONS = {
    "ServiceAccount": f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts",
    "ClusterRole": f"{RBAC}/clusterroles",
    "ClusterRoleBinding": f"{RBAC}/clusterrolebindings",
    "Role": f"{RBAC}/namespaces/{NAMESPACE}/roles",
    "RoleBinding": f"{RBAC}/namespaces/{NAMESPACE}/rolebindings",
    "FlowSchema": "/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas",
    "ValidatingAdmissionPolicy": "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings",
    "MutatingAdmissionPolicy": "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicies",
    "MutatingAdmissionPolicyBinding": "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicybindings",
    "CustomResourceDefinition": "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
}
HELD = "test.example.com/process"
"""On a pod of Coda's: it is not gone before its process is."""
DEPLOYMENTS = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments"
LEADER = {"labelSelector": "coda.scheduler/leader=true"}
TWO_OPERATORS = ("history.database=none", "operator.replicas=2")  # no volume is provided here


@dataclass(slots=True, kw_only=True)
class Installed:
    """Helm on a cluster, and the processes of the pods that it made."""

    cluster: LocalCluster
    admin: Client
    helm: Helm
    running: list[RunningPod] = field(default_factory=list)

    async def run_helm(self, *words: str) -> str:
        """Run it; fails with what it said."""
        where = ("--namespace", NAMESPACE, "--kubeconfig", str(self.cluster.kubeconfig("admin")))
        ended = await asyncio.to_thread(self.helm.run, *words, *where)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    async def install(self, *values: str, source: Path | None = None, path: str | None = None) -> None:
        """Install it, and run its pods until they are ready and one leads.

        `source`: another chart; `path`: where Python finds its programs."""
        sets = [word for value in values for word in ("--set", value)]
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.run_helm("install", "coda", str(source or chart()), *sets))
            if source is None or has_hook(source):
                tasks.create_task(run_hook(self.cluster, self.admin, "definitions"))
        await self._run_new_pods(path)

    async def upgrade(self, *values: str) -> str:
        """Upgrade it to this checkout's. Returns what the hook said."""
        sets = [word for value in values for word in ("--set", value)]
        async with self.ending_with_their_pods():
            said, _ = await asyncio.gather(
                run_hook(self.cluster, self.admin, "definitions"),
                self.run_helm("upgrade", "coda", str(chart()), "--reset-values", *sets),
            )
            await self._run_new_pods(None)
        return said

    async def roll_back(self, revision: int, *, path: str) -> None:
        """Back to an earlier revision, whose programs Python finds in `path`."""
        async with self.ending_with_their_pods():
            await self.run_helm("rollback", "coda", str(revision))
            await self._run_new_pods(path)

    async def _run_new_pods(self, path: str | None) -> None:
        before = list(self.running)
        for part in PARTS:  # the operator makes the others' certificates
            await self._rolled_out(f"coda-{part}")
            known = {pod.name for pod in before}
            new = await run_pods(self.cluster, self.admin, part, but=known, path=path)
            for pod in new:
                await self.admin.patch(f"{PODS}/{pod.name}", {"metadata": {"finalizers": [HELD]}})
            self.running += new
        for pod in before:
            self.running.remove(pod)
        await asyncio.gather(*(pod.becomes_ready() for pod in self.running))
        leaders = {f"{NAMESPACE}/{pod.name}" for pod in self.running if pod.part == "extender"}
        async with asyncio.timeout(60):
            await until(self.admin, PODS, lambda by_key: bool(leaders & by_key.keys()), query=LEADER)

    async def _rolled_out(self, name: str) -> None:
        def is_new(by_key: Mapping[str, Json]) -> bool:
            deployment = by_key[f"{NAMESPACE}/{name}"]
            status, wanted = deployment.get("status") or {}, deployment["spec"]["replicas"]
            seen = status.get("observedGeneration") == deployment["metadata"]["generation"]
            return bool(seen and status.get("updatedReplicas") == wanted == status.get("replicas"))

        async with asyncio.timeout(60):
            await until(self.admin, DEPLOYMENTS, is_new, query={"fieldSelector": f"metadata.name={name}"})

    async def uninstall(self) -> str:
        """`helm uninstall`, with the hook's pod as a process too. Returns what the hook said."""
        async with self.ending_with_their_pods():
            said, _ = await asyncio.gather(
                run_hook(self.cluster, self.admin, "uninstall"), self.run_helm("uninstall", "coda", "--wait")
            )
        self.running.clear()
        return said

    @asynccontextmanager
    async def ending_with_their_pods(self) -> AsyncIterator[None]:
        """Each process ends when its pod is deleted, as a kubelet does it."""
        ending = [asyncio.create_task(self._end_with_its_pod(pod)) for pod in self.running]
        try:
            yield
            async with asyncio.timeout(PATIENCE_S):
                await asyncio.gather(*ending)
        finally:
            for task in ending:
                task.cancel()
            await asyncio.gather(*ending, return_exceptions=True)

    async def _end_with_its_pod(self, pod: RunningPod) -> None:
        def is_ending(by_key: Mapping[str, Json]) -> bool:
            found = by_key.get(f"{NAMESPACE}/{pod.name}")
            return found is None or "deletionTimestamp" in found["metadata"]

        await until(self.admin, PODS, is_ending, query={"fieldSelector": f"metadata.name={pod.name}"})
        pod.process.signal(signal.SIGTERM)
        await pod.process.ended()
        while True:
            try:
                await self.admin.patch(f"{PODS}/{pod.name}", {"metadata": {"finalizers": None}})
            except Conflict:
                continue
            except NotFound:
                pass
            return

    def complaints(self) -> list[str]:
        """What the parts said of things they were not allowed to do."""
        return complaints_of(self.running)

    def end_at_once(self) -> None:
        """Kill every process."""
        for pod in self.running:
            pod.process.end_at_once()


def has_hook(source: Path) -> bool:
    """Whether this chart brings definitions up to date before an installation, too."""
    file = source / "templates" / "definitions.yaml"
    return file.exists() and "pre-install" in file.read_text()


async def take_away_what_the_chart_brings(admin: Client) -> None:
    for item in (*objects_in(manifests()), *objects_in(crds())):
        if item["kind"] != "Namespace":
            path = f"{COLLECTIONS[item['kind']]}/{item['metadata']['name']}"
            await admin.delete(path)
            await wait_gone(admin, path)


def forward(cluster: LocalCluster) -> Process:
    """The Service's stand-in."""
    arguments = ("--kubeconfig", str(cluster.kubeconfig("forwarder")), "--port", str(cluster.ports["forwarder"]))
    return processes.start(
        processes.python_command("coda_lab.local.forwarder", *arguments),
        environ={
            processes.MARK: str(cluster.layout.folder),
            "NO_PROXY": LOOPBACK,
            "PYTHONPATH": processes.python_path(),
        },
        log=cluster.log_path("forwarder"),
        folder=cluster.layout.folder,
    )


@asynccontextmanager
async def ready_for_the_chart(spec: ClusterSpec, helm: Helm) -> AsyncIterator[Installed]:
    """A cluster without Coda; what is installed in the block ends with it."""
    async with running_cluster(spec, tell=print) as cluster, cluster.client("admin") as admin:
        await take_away_what_the_chart_brings(admin)
        forwarder = forward(cluster)
        made = Installed(cluster=cluster, admin=admin, helm=helm)
        try:
            yield made
        finally:
            made.end_at_once()
            forwarder.end_at_once()
