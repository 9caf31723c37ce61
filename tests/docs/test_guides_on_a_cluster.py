"""Every object, and every command of kubectl and helm, of the guides and runbooks, on a local control plane.

Commands that change something are dry runs on the server. Those that need a kubelet need not find what they name: what
is tested is that kubectl takes them."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import pytest
import yaml

from coda_kube.api.client import AlreadyExists, Client
from coda_kube.objects.names import API_VERSION
from coda_lab.host.paths import Settings
from coda_lab.local.cluster import LocalCluster
from coda_lab.programs import helm
from tests.docs.blocks import ROOT, Block, blocks, commands
from tests.e2e.conftest import admin, cluster

__all__ = ["admin", "cluster"]  # fixtures

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]
RUN_WHOLE = {"README.md", "docs/quickstart.md"}  # by test_quickstart
CHANGES = re.compile(r"\b(apply|create|label|annotate|taint|patch|delete)\b")
NEEDS_A_NODE = {"logs", "debug", "top", "rollout"}
WATCHES = {"-w", "--watch"}
OUT_OF_TIME = 124  # what `timeout` ends with
NOT_TAKEN = re.compile(
    r"unknown (?:flag|shorthand|command)|doesn't have a resource type|usage:|invalid|required|error parsing",
    re.IGNORECASE,
)
OBJECTS = """apiVersion: v1
kind: List
items:
- {apiVersion: v1, kind: Namespace, metadata: {name: coda-system}}
- {apiVersion: v1, kind: ConfigMap, metadata: {name: coda-run-times, namespace: coda-system}}
- {apiVersion: coda.scheduler/v1alpha1, kind: ArrayQuota, metadata: {name: a100}, spec: {nodeSelector: {a: b}}}
- {apiVersion: coda.scheduler/v1alpha1, kind: VirtualCluster, metadata: {name: vision}, spec: {namespaces: [vision]}}
- {apiVersion: coda.scheduler/v1alpha1, kind: NodeProfile, metadata: {name: NODE}}
- apiVersion: coda.scheduler/v1alpha1
  kind: TrainingJob
  metadata: {name: bert}
  spec:
    suspend: true
    gpusPerReplica: 1
    template: {spec: {containers: [{name: main, image: busybox}]}}
"""


def objects_in(block: Block) -> list[dict[str, object]]:
    """The objects of a YAML block; an indented block counts if it begins like one."""
    if block.language != "yaml" and not block.text.startswith(("apiVersion: ", "spec:\n")):
        return []
    try:
        found = [*yaml.safe_load_all(block.text)]
    except yaml.YAMLError:
        return []
    whole = [one for one in found if isinstance(one, dict) and {"apiVersion", "kind", "metadata"} <= one.keys()]
    return whole + [job_with(one["spec"]) for one in found if isinstance(one, dict) and one.keys() == {"spec"}]


def job_with(spec: dict[str, object]) -> dict[str, object]:
    """The job of which a page shows some fields."""
    template = {"spec": {"containers": [{"name": "main", "image": "busybox"}]}}
    whole: dict[str, object] = {"gpusPerReplica": 1, "template": template, **spec}
    return {"apiVersion": API_VERSION, "kind": "TrainingJob", "metadata": {"name": "shown"}, "spec": whole}


def as_known_here(one: dict[str, object]) -> dict[str, object] | None:
    """The object as this API server knows it: of KEDA's ScaledJob the Job, of Karpenter's NodePool nothing."""
    if one["kind"] == "ScaledJob":
        spec: dict[str, object] = one["spec"]  # type: ignore[assignment]
        return {"apiVersion": "batch/v1", "kind": "Job", "metadata": one["metadata"], "spec": spec["jobTargetRef"]}
    return None if one["kind"] == "NodePool" else one


def documented_objects() -> list[tuple[str, dict[str, object]]]:
    shown = [(block.page, as_known_here(found)) for block in blocks() for found in objects_in(block)]
    return [(page, found) for page, found in shown if found is not None]


async def test_every_object_of_the_documentation_is_taken_by_the_api_server(
    cluster: LocalCluster, admin: Client
) -> None:
    """Dry runs with strict fields: a misspelt field is refused, too."""
    shown = documented_objects()
    found = [(page, one) for page, one in shown if one["kind"] != "Namespace"]
    assert len(found) > 10
    bodies = {one["metadata"]["name"]: one for _, one in shown if one["kind"] == "Namespace"}  # type: ignore[index]
    for name in sorted({str(one["metadata"].get("namespace", "default")) for _, one in found}):  # type: ignore[attr-defined]
        body = bodies.get(name) or {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        with suppress(AlreadyExists):
            await admin.create("/api/v1/namespaces", body)
    done = await asyncio.create_subprocess_exec(
        *(*cluster.kubectl, f"--kubeconfig={cluster.kubeconfig('admin')}"),
        *("create", "--dry-run=server", "--validate=strict", "-f", "-"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    _, said = await done.communicate(yaml.safe_dump_all([one for _, one in found]).encode())
    assert done.returncode == 0, f"{said.decode()}\nof {sorted({page for page, _ in found})}"


def documented_commands() -> Iterator[str]:
    """Every command once; a loop is one."""
    loop = ""
    for page, line in commands():
        loop = f"{loop} {line}" if loop else line
        if loop.endswith("; do"):
            continue
        if re.match(r"(kubectl(?! coda)|helm) ", loop) and page not in RUN_WHOLE:
            yield loop
        loop = ""


def runnable(command: str, node: str) -> str:
    """The command with names of the cluster, harmless, without the pipe that shortens what it says."""
    command = command.split(" | ")[0].replace("=ca.crt", "=ca.crt=README.md").replace("-f VALUES", "")
    for written, name in {"gpu-07": node, "NODE": node, "NAMESPACE": "default", "NAME": "bert"}.items():
        command = command.replace(written, name)
    if command.startswith("helm"):
        command = re.sub(r"^helm (install|upgrade)", "helm template", command).replace("--reset-then-reuse-values", "")
        return f"{command} --ignore-not-found" if command.startswith("helm uninstall") else command
    if "; do " in command:
        return command.replace(" patch ", " patch --dry-run=server ")
    return f"{command} --dry-run=server" if CHANGES.search(command) else command


async def test_the_commands_of_the_documentation_work(cluster: LocalCluster, admin: Client) -> None:
    node = sorted(item["metadata"]["name"] for item in (await admin.list_pages("/api/v1/nodes"))["items"])[0]
    programs = (Path(sys.executable), Path(cluster.kubectl[0]), helm.ensure_shown(Settings.from_environ()))
    environ = {**os.environ, "PATH": os.pathsep.join([*(str(one.parent) for one in programs), os.environ["PATH"]])}
    environ["KUBECONFIG"] = str(cluster.kubeconfig("admin"))
    made = await said("kubectl apply -f - -f examples/agents/20-aggressor.yaml", environ, OBJECTS.replace("NODE", node))
    assert made[0] == 0, made[1]
    found = [*documented_commands()]
    assert len(found) > 60
    wrong = []
    for command in found:
        code, words = await said(runnable(command, node), environ)
        if not is_fine(command, code, words):
            wrong.append(f"{command}\n  {runnable(command, node)}\n  {code}: {words}")
    assert not wrong, "\n".join(wrong)
    code, words = await said("kubectl coda top --once", environ)
    assert code == 0, words  # kubectl finds `kubectl-coda` on the PATH


async def said(command: str, environ: Mapping[str, str], text: str = "") -> tuple[int, str]:
    """The code, and what came on the second output. A watch is ended after a moment."""
    limit = "timeout 2 " if WATCHES & {*command.split()} else ""
    done = await asyncio.create_subprocess_exec(
        *("bash", "-c", f"{limit}{command}"),
        cwd=ROOT,
        env=environ,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    _, words = await done.communicate(text.encode())
    return done.returncode or 0, words.decode()


def is_fine(command: str, code: int, words: str) -> bool:
    if WATCHES & {*command.split()}:
        return code == OUT_OF_TIME
    if "wait" in command.split():  # for what another command makes, which is not made here
        return code == 0 or "NotFound" in words
    return code == 0 or (bool(NEEDS_A_NODE & {*command.split()}) and not NOT_TAKEN.search(words))
