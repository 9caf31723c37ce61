"""The chart on a real node: containerd runs operator, extender and the hooks of upgrade and uninstallation, from the
images of `make image`, as the kubelet finds them in what Helm made.

kube-scheduler's image comes from a registry, which there is none of: its pod waits, and the cluster's own scheduler
places the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from importlib import metadata

import pytest
import pytest_asyncio

from coda_kube.api.client import Client
from coda_kube.api.until import until
from coda_kube.objects.json_types import Json
from coda_kube.objects.names import FINALIZER
from coda_kube.objects.write import job_path
from coda_lab import install
from coda_lab.experiments.chaos.happenings import older
from coda_lab.host.paths import Settings, chart, crds
from coda_lab.images.image import PARTS, write_image
from coda_lab.local.cluster import LocalCluster
from coda_lab.realnode.configuration import NODE
from coda_lab.realnode.node import RealNode
from coda_lab.spec import ClusterSpec
from tests.deploy.charts import NAMESPACE, Helm
from tests.deploy.installed import COLLECTIONS, DEPLOYMENTS, take_away_what_the_chart_brings
from tests.e2e.jobs import submit, wait_for, wait_gone
from tests.realnode.ending import real_cluster
from tests.realnode.scene import PATIENCE_S, training_job

PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
SPEC = ClusterSpec(nodes="", coda=False, real_node_cores=4)
IMAGES = ("operator", "extender")
VALUES = (
    *(f"{part}.image.repository={PARTS[part].repository}" for part in IMAGES),
    *(f"{part}.image.pullPolicy=Never" for part in (*IMAGES, "scheduler")),
    *("history.database=none", "extender.replicas=1", "scheduler.replicas=1"),
)
WHOLE = {item["metadata"]["name"]: item for item in install.objects_in(crds())}
KEPT = {"coda-edit", "coda-view"}
OF_THE_LAB = "coda-local-"  # for the accounts of the cluster that the lab runs
JOBS = "trainingjobs.coda.scheduler"

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(7200),  # an emulated machine comes up in a minute, on a busy one in many
    pytest.mark.usefixtures("needs_vm"),
    pytest.mark.asyncio(loop_scope="module"),
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(needs_vm: None) -> AsyncIterator[LocalCluster]:
    """The control plane without Coda, and no node but the real one, which has the images."""
    async with real_cluster(SPEC) as running, running.client("admin") as admin:
        await take_away_what_the_chart_brings(admin)
        for part in IMAGES:
            archive = running.real_node.share / f"{part}.tar"
            version, settings = metadata.version("coda"), Settings.from_environ()
            await asyncio.to_thread(write_image, PARTS[part], archive, version, settings, print)
            await running.real_node.import_image(archive)
            archive.unlink()
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def admin(cluster: LocalCluster) -> AsyncIterator[Client]:
    async with cluster.client("admin") as client:
        yield client


@pytest.fixture(scope="module")
def helm(tmp_path_factory: pytest.TempPathFactory) -> Helm:
    return Helm.at(tmp_path_factory.mktemp("helm"))


async def run_helm(helm: Helm, cluster: LocalCluster, *words: str) -> None:
    where = ("--namespace", NAMESPACE, "--kubeconfig", str(cluster.kubeconfig("admin")), "--timeout", "20m")
    ended = await asyncio.to_thread(helm.run, *words, *where)
    assert ended.returncode == 0, ended.stderr


def sets(*values: str) -> tuple[str, ...]:
    return tuple(word for value in (*VALUES, *values) for word in ("--set", value))


async def hook_pod(admin: Client, component: str) -> Json:
    """The pod of a hook once it has succeeded: Helm deletes it at once."""
    seen: list[Json] = []

    def has_ended(by_key: Mapping[str, Json]) -> bool:
        seen[:] = [pod for pod in by_key.values() if pod.get("status", {}).get("phase") in ("Succeeded", "Failed")]
        return bool(seen)

    query = {"labelSelector": f"app.kubernetes.io/component={component}"}
    async with asyncio.timeout(PATIENCE_S):
        await until(admin, PODS, has_ended, query=query)
    return seen[0]


def ran_for_real(pod: Json) -> None:
    """By containerd, on the real node, from the operator's image, and with success."""
    (status,) = pod["status"]["containerStatuses"]
    assert pod["spec"]["nodeName"] == NODE
    assert status["image"] == f"{PARTS['operator'].repository}:{metadata.version('coda')}"
    assert status["containerID"].startswith("containerd://")
    assert (pod["status"]["phase"], status["state"]["terminated"]["exitCode"]) == ("Succeeded", 0)


async def said_by(node: RealNode, component: str) -> str:
    """What the containers of a part wrote, also those that are gone as long as their files are there."""
    where = f"/var/log/pods/{NAMESPACE}_coda-{component}-*/{component}/*.log"
    return (await node.run("/bin/sh", "-c", f"cat {where}")).check()


async def test_the_parts_become_ready_as_pods(cluster: LocalCluster, admin: Client, helm: Helm) -> None:
    await run_helm(helm, cluster, "install", "coda", str(chart()), *sets())
    for part in IMAGES:

        def is_ready(item: Json) -> bool:
            return bool((item.get("status") or {}).get("readyReplicas") == 1)

        await wait_for(admin, f"{DEPLOYMENTS}/coda-{part}", is_ready, within_s=PATIENCE_S)
        assert "is forbidden" not in await said_by(cluster.real_node, part)


async def test_an_upgrade_applies_the_definitions_by_a_pod(cluster: LocalCluster, admin: Client, helm: Helm) -> None:
    path = f"{COLLECTIONS['CustomResourceDefinition']}/{JOBS}"
    await install.apply_all(admin, [older(WHOLE[JOBS])])
    assert "stop" not in fields_of(await admin.get(path))
    watching = asyncio.create_task(hook_pod(admin, "definitions"))
    await run_helm(helm, cluster, "upgrade", "coda", str(chart()), "--reset-values", *sets())
    ran_for_real(await watching)
    assert "stop" in fields_of(await admin.get(path))
    await wait_gone(admin, f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs/coda-definitions")


def fields_of(definition: Json) -> set[str]:
    """Of a placement."""
    (version,) = definition["spec"]["versions"]
    status = version["schema"]["openAPIV3Schema"]["properties"]["status"]
    return set(status["properties"]["placement"]["properties"])


async def test_an_uninstallation_takes_coda_out_by_a_pod(cluster: LocalCluster, admin: Client, helm: Helm) -> None:
    """Its order needs a real kubelet: the parts must have ended before what they guard is let go."""
    async with cluster.client("user") as user:
        job = await submit(user, training_job("left", gpus=1))
    await wait_for(
        admin, job_path(job), lambda item: FINALIZER in item["metadata"].get("finalizers", ()), within_s=PATIENCE_S
    )
    watching = asyncio.create_task(hook_pod(admin, "uninstall"))
    await run_helm(helm, cluster, "uninstall", "coda", "--wait")
    ran_for_real(await watching)
    assert not (await admin.get(job_path(job)))["metadata"].get("finalizers")
    assert (await admin.list_pages(PODS))["items"] == []
    for path in (COLLECTIONS[kind] for kind in ("ClusterRole", "ValidatingAdmissionPolicy", "ServiceAccount")):
        names = {item["metadata"]["name"] for item in (await admin.list_pages(path))["items"]}
        assert {name for name in names if name.startswith("coda-") and not name.startswith(OF_THE_LAB)} <= KEPT, path
    await admin.delete(job_path(job))
    await wait_gone(admin, job_path(job))
