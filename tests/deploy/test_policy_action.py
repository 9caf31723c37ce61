"""Whether the policies of an installation refuse or only warn, and what Helm asks the cluster for that.

Helm is real; the API server only answers lists, and counts them.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml
from aiohttp import web
from aiohttp.test_utils import TestServer

from coda_lab.host.paths import chart
from tests.deploy.charts import NAMESPACE, Helm, Json
from tests.e2e.policy_cases import EVERYBODY, job_key
from tests.e2e.policy_cases import repelling as anti_affinity

pytestmark = pytest.mark.e2e

ADMISSION = "admissionregistration.k8s.io"
BINDINGS = "validatingadmissionpolicybindings"
KINDS = {
    "v1": [("pods", "Pod", True), ("namespaces", "Namespace", False), ("nodes", "Node", False)],
    "apps/v1": [("daemonsets", "DaemonSet", True)],
    f"{ADMISSION}/v1": [(BINDINGS, "ValidatingAdmissionPolicyBinding", False)],
}
SHOWN = """
apiVersion: v1
kind: ConfigMap
metadata: {name: shown}
data: {refused: {{ include "coda.refusedPods" . | quote }}}
"""
CONTROL_PLANE: Json = {"metadata": {"name": "kube-system"}}
PLATFORM: Json = {"metadata": {"name": "gpu-operator", "labels": {"coda.scheduler/pool": "true"}}}
ALL = {"operator": "Exists"}


@dataclass(slots=True)
class Cluster:
    """What the API server has, and how often each list was asked for."""

    objects: dict[str, list[Json]] = field(default_factory=dict)
    asked: Counter[str] = field(default_factory=Counter)
    url: str = ""

    async def answer(self, request: web.Request) -> web.Response:
        path = request.path.strip("/")
        if path == "version":
            return web.json_response({"major": "1", "minor": "36", "gitVersion": "v1.36.3"})
        if path == "api":
            return web.json_response({"kind": "APIVersions", "versions": ["v1"]})
        if path == "apis":
            groups = [group_of(version) for version in KINDS if "/" in version]
            return web.json_response({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
        where, _, last = path.partition("/")[2].rpartition("/")
        if f"{where}/{last}".strip("/") in KINDS:
            return web.json_response(resources(f"{where}/{last}".strip("/")))
        if one := self.objects.get("/".join(path.split("/")[-2:])):
            return web.json_response(one[0] | {"kind": "Any", "apiVersion": "v1"})
        if last in self.objects:
            self.asked[last] += 1
            return web.json_response({"kind": "List", "apiVersion": "v1", "metadata": {}, "items": self.objects[last]})
        missing = {"kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404}
        return web.json_response(missing, status=404)


def group_of(version: str) -> Json:
    found = {"groupVersion": version, "version": version.partition("/")[2]}
    return {"name": version.partition("/")[0], "versions": [found], "preferredVersion": found}


def resources(version: str) -> Json:
    found = [
        {"name": plural, "singularName": "", "kind": kind, "namespaced": namespaced, "verbs": ["get", "list"]}
        for plural, kind, namespaced in KINDS[version]
    ]
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": found}


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    """It runs nothing yet."""
    found = Cluster(
        objects={
            "pods": [],
            "daemonsets": [],
            "namespaces": [CONTROL_PLANE, PLATFORM],
            "nodes": [node("gpu-1", TAINT)],
        }
    )
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", found.answer)
    async with TestServer(application, host="127.0.0.1") as server:
        found.url = f"http://127.0.0.1:{server.port}"
        yield found


TAINT: Json = {"key": "coda.scheduler/pool", "effect": "NoSchedule"}


def node(name: str, *taints: Json, gpus: int = 8) -> Json:
    allocatable = {"nvidia.com/gpu": str(gpus)} if gpus else {}
    return {"metadata": {"name": name}, "spec": {"taints": list(taints)}, "status": {"allocatable": allocatable}}


def pod(
    *tolerations: Json, namespace: str = "team", on: str = "gpu-1", named_it: bool = False, phase: str = "Running"
) -> Json:
    """A pod as the API server has it. `named_it`: it was created with `spec.nodeName`; else a scheduler bound it."""
    fields: Json = {"f:containers": {}} | ({"f:nodeName": {}} if named_it else {})
    managers = [
        {"manager": "maker", "operation": "Update", "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": fields}},
        {"manager": "kubelet", "subresource": "status", "fieldsType": "FieldsV1", "fieldsV1": {"f:status": {}}},
    ]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "namespace": namespace, "managedFields": managers},
        "spec": {"nodeName": on, "tolerations": list(tolerations), "schedulerName": "default-scheduler"},
        "status": {"phase": phase},
    }


def repelling(term: Json, *, by: str = "zone", namespace: str = "team") -> Json:
    found = pod(namespace=namespace)
    found["spec"]["affinity"] = anti_affinity(term, by=by)
    return found


async def rendered(helm: Helm, source: Path, words: Iterable[str], sets: tuple[str, ...] = ()) -> list[Json]:
    given = [word for value in sets for word in ("--set", value)]
    where = ("--namespace", NAMESPACE, *words, *given)
    ended = await asyncio.to_thread(helm.run, "template", "coda", str(source), *where)
    assert ended.returncode == 0, ended.stderr
    return [item for item in yaml.load_all(ended.stdout, yaml.CSafeLoader) if item]


def in_sight_of(cluster: Cluster) -> tuple[str, ...]:
    return ("--dry-run=server", "--kube-apiserver", cluster.url)


async def action(helm: Helm, cluster: Cluster | None, *sets: str) -> list[str]:
    """What all bindings do. None: as `helm template` renders them."""
    items = await rendered(helm, chart(), () if cluster is None else in_sight_of(cluster), sets)
    found = {tuple(item["spec"]["validationActions"]) for item in items if item["kind"].endswith("PolicyBinding")}
    (only,) = found
    return list(only)


async def refused(helm: Helm, cluster: Cluster, folder: Path, *sets: str) -> list[str]:
    """The pods that the notes of the installation would list."""
    copied = folder / "chart"
    shutil.copytree(chart(), copied)
    (copied / "templates" / "shown.yaml").write_text(SHOWN)
    words = (*in_sight_of(cluster), "--show-only", "templates/shown.yaml")
    (shown,) = await rendered(helm, copied, words, sets)
    found: list[str] = json.loads(shown["data"]["refused"])
    return found


NAMED = "team/p: named the node gpu-1 of the pool itself"
REPELS = "team/p: repels pods of other namespaces by zone"
TOLERATES = "team/p: tolerates the taint coda.scheduler/pool"


@pytest.mark.parametrize(
    ("found", "sets", "expected"),
    [
        pytest.param(pod(), (), [], id="bound by a scheduler"),
        pytest.param(pod(named_it=True), (), [NAMED], id="by its own name for a node"),
        pytest.param(pod(named_it=True, phase="Succeeded"), (), [NAMED], id="has ended, and its maker makes more"),
        pytest.param(pod(ALL, named_it=True), (), [TOLERATES, NAMED], id="both"),
        pytest.param(pod(ALL, named_it=True, phase="Succeeded"), (), [NAMED], id="of what has ended, the node counts"),
        pytest.param(pod(ALL, phase="Succeeded"), (), [], id="has ended"),
        pytest.param(pod(ALL), (), [TOLERATES], id="tolerates every taint"),
        pytest.param(pod(named_it=True, on="cpu-1"), (), [], id="a node outside the pool"),
        pytest.param(pod(named_it=True, on="gpu-2"), (), [], id="a node with GPUs and without the taint"),
        pytest.param(
            pod(named_it=True, on="gpu-2"),
            ("pool.mode=shared",),
            ["team/p: named the node gpu-2 of the pool itself"],
            id="a node with GPUs in a shared pool",
        ),
        pytest.param(pod(ALL, named_it=True, namespace="gpu-operator"), (), [], id="a namespace of the platform"),
        pytest.param(pod(ALL, named_it=True, namespace="kube-system"), (), [], id="the cluster's own namespace"),
        pytest.param(repelling(EVERYBODY), (), [REPELS], id="repels everybody's pods in its zone"),
        pytest.param(repelling(EVERYBODY | {"labelSelector": job_key("Exists")}), (), [], id="as JobSet has it"),
        pytest.param(repelling(EVERYBODY, by="kubernetes.io/hostname"), (), [], id="repels them on its own node"),
        pytest.param(repelling({"labelSelector": {}, "namespaces": ["team"]}), (), [], id="repels its namespace's"),
        pytest.param(repelling(EVERYBODY, namespace="gpu-operator"), (), [], id="the platform repels"),
    ],
)
async def test_the_notes_list_what_the_policies_would_refuse(
    helm: Helm, cluster: Cluster, tmp_path: Path, found: Json, sets: tuple[str, ...], expected: list[str]
) -> None:
    cluster.objects |= {"pods": [found], "nodes": [node("gpu-1", TAINT), node("gpu-2"), node("cpu-1", gpus=0)]}
    assert await refused(helm, cluster, tmp_path, *sets) == expected


async def test_before_any_node_is_tainted_every_node_with_gpus_may_join_the_pool(
    helm: Helm, cluster: Cluster, tmp_path: Path
) -> None:
    cluster.objects |= {"pods": [pod(named_it=True)], "nodes": [node("gpu-1")]}
    assert await refused(helm, cluster, tmp_path) == [NAMED]


async def test_the_policies_refuse_from_the_start_where_nothing_runs_that_they_would_refuse(
    helm: Helm, cluster: Cluster
) -> None:
    assert await action(helm, cluster) == ["Deny"]
    cluster.objects["pods"] = [pod(ALL)]
    assert await action(helm, cluster) == ["Warn", "Audit"]
    in_force: Json = {"metadata": {"name": "coda-reserved-keys"}, "spec": {"validationActions": ["Deny"]}}
    cluster.objects[f"{BINDINGS}/coda-reserved-keys"] = [in_force]
    assert await action(helm, cluster) == ["Deny"]


async def test_without_a_cluster_to_look_at_the_policies_warn_unless_a_value_says_otherwise(helm: Helm) -> None:
    """As Argo CD renders a chart: what runs in the cluster is not seen, and Deny might stop its storage or drivers."""
    assert await action(helm, None) == ["Warn", "Audit"]
    assert await action(helm, None, "policies.action=Deny") == ["Deny"]


@pytest.mark.parametrize(
    ("value", "running", "reads"),
    [
        pytest.param("Deny", pod(ALL), 0, id="Deny"),
        pytest.param("Warn", pod(ALL), 1, id="Warn, for the notes"),
        pytest.param("auto", pod(ALL), 2, id="auto becomes Warn"),
        pytest.param("auto", pod(), 2, id="auto becomes Deny"),
    ],
)
async def test_pods_are_listed_only_for_what_they_decide(
    helm: Helm, cluster: Cluster, value: str, running: Json, reads: int
) -> None:
    """Helm renders each file by itself: what the policies' file has read, the notes read again."""
    cluster.objects["pods"] = [running]
    await action(helm, cluster, f"policies.action={value}")
    assert cluster.asked["pods"] == reads


@pytest.mark.parametrize(
    ("value", "actions"), [("Deny", ["Deny"]), ("Warn", ["Warn", "Audit"])], ids=["refuse", "warn"]
)
def test_a_value_says_whether_the_policies_refuse(helm: Helm, value: str, actions: list[str]) -> None:
    items = helm.render(f"policies.action={value}")
    bindings = [item for item in items if item["kind"] == "ValidatingAdmissionPolicyBinding"]
    assert len(bindings) == 11
    assert all(item["spec"]["validationActions"] == actions for item in bindings)
