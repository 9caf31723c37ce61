"""Runs the pods of an installed chart as processes: what a kubelet and a container engine would do, without either.

A pod's command and environment are taken as the API server has them, and its identity is a token of its service
account. What a process outside a cluster needs is changed and nothing else: loopback and free ports, a kubeconfig in
the place of the mounted token, the forwarder in the place of the Service.
"""

from __future__ import annotations

import asyncio
import base64
import random
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from coda_kube.api.client import Client
from coda_kube.api.until import until
from coda_lab.host import processes
from coda_lab.host.ports import LOOPBACK, free_ports
from coda_lab.host.processes import Process
from coda_lab.local.cluster import LocalCluster, answers_ok
from coda_lab.local.forwarder import PORT_ANNOTATION
from tests.deploy.charts import NAMESPACE, Json
from tests.deploy.images import module_of
from tests.e2e.jobs import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningPod:
    """A pod's process: where its port of probes and metrics is on this machine, and what it says."""

    name: str
    part: str
    port: int
    process: Process
    log: Path
    container: Json

    async def becomes_ready(self, *, within_s: float = 60.0) -> None:
        """Wait until its readiness probe, as the chart wrote it, is answered; its liveness probe is answered too."""
        async with asyncio.timeout(within_s):
            while not await answers_ok(self._probe("readinessProbe")):
                assert self.process.exit_code is None, self.log.read_text()
                await asyncio.sleep(0.1)
        assert await answers_ok(self._probe("livenessProbe"))

    def _probe(self, kind: str) -> str:
        probe = self.container[kind]["httpGet"]
        assert probe["port"] in {port["name"] for port in self.container["ports"]}
        return f"{probe.get('scheme', 'HTTP').lower()}://{LOOPBACK}:{self.port}{probe['path']}"


def complaints_of(pods: Iterable[RunningPod]) -> list[str]:
    """What they said of things they were not allowed to do."""
    lines = (line for pod in pods for line in pod.log.read_text().splitlines())
    return [line for line in lines if "is forbidden" in line or "Unauthorized" in line]


async def run_pods(
    cluster: LocalCluster, admin: Client, part: str, *, but: Collection[str] = (), path: str | None = None
) -> list[RunningPod]:
    """A process for each pod of that part that does not end, `but` those of these names.

    `path`: where Python finds the programs; None: those of this checkout."""
    selector = {"labelSelector": f"app.kubernetes.io/component={part}"}
    items = (await admin.list_pages(PODS, selector))["items"]
    living = [pod for pod in items if "deletionTimestamp" not in pod["metadata"] and pod["metadata"]["name"] not in but]
    pods = sorted(living, key=lambda pod: str(pod["metadata"]["name"]))
    ports = free_ports(2 * len(pods), random.Random())
    pairs = list(zip(ports[::2], ports[1::2], strict=True))
    return [await _run(cluster, admin, part, pod, pair, path) for pod, pair in zip(pods, pairs, strict=True)]


async def run_hook(cluster: LocalCluster, admin: Client, part: str) -> str:
    """Run the pod of a hook's Job once it is there, tell the API server how it ended, and return what it said.

    Meanwhile the processes of pods that are deleted are the caller's to end."""
    selector = {"labelSelector": f"app.kubernetes.io/component={part}"}
    found: list[Json] = []

    def is_bound(by_key: Mapping[str, Json]) -> bool:
        living = [pod for pod in by_key.values() if "deletionTimestamp" not in pod["metadata"]]
        found[:] = [pod for pod in living if pod["spec"].get("nodeName")]
        return bool(found)

    async with asyncio.timeout(60):
        await until(admin, PODS, is_bound, query=selector)
    (pod,) = found
    running = await _run(cluster, admin, part, pod, (0, 0))
    code = await running.process.ended()
    phase = "Failed" if code else "Succeeded"
    await admin.patch(f"{PODS}/{running.name}/status", {"status": {"phase": phase}})
    return running.log.read_text()


async def _run(
    cluster: LocalCluster, admin: Client, part: str, pod: Json, ports: tuple[int, int], path: str | None = None
) -> RunningPod:
    port, verbs = ports
    name = pod["metadata"]["name"]
    (container,) = pod["spec"]["containers"]
    if part == "extender" and "verbs" not in {each["name"] for each in container["ports"]}:
        port = verbs  # an earlier version has one port for both
    folder = cluster.layout.folder / "pods" / name
    folder.mkdir(parents=True)
    kubeconfig = await _kubeconfig(cluster, admin, pod["spec"]["serviceAccountName"], folder)
    folder_by_mount = await _mount(admin, pod["spec"], container, folder)
    environ = {name: _here(value, folder_by_mount) for name, value in _environ(pod, container).items()}
    environ |= {processes.MARK: str(cluster.layout.folder), "NO_PROXY": LOOPBACK}
    if part == "scheduler":
        argv = _scheduler_command(cluster, container, kubeconfig, port, folder_by_mount)
    else:
        argv = _entry_point(part, container)
        environ |= {
            "PYTHONPATH": path or processes.python_path(),
            "CODA_KUBECONFIG": str(kubeconfig),
            "CODA_HOST": LOOPBACK,
            "CODA_METRICS_PORT": str(port),
        } | ({"CODA_PORT": str(verbs)} if part == "extender" else {})
        await admin.patch(f"{PODS}/{name}", {"metadata": {"annotations": {PORT_ANNOTATION: str(verbs)}}})
    log = folder / "log"
    process = processes.start(argv, environ=environ, log=log, folder=folder)
    return RunningPod(name=name, part=part, port=port, process=process, log=log, container=container)


def _here(value: str, folder_by_mount: Mapping[str, str]) -> str:
    """A path of the container is one of this machine."""
    for mount, folder in folder_by_mount.items():
        if value == mount or value.startswith(f"{mount}/"):
            return folder + value.removeprefix(mount)
    return value


def _environ(pod: Json, container: Json) -> dict[str, str]:
    """As a kubelet makes it."""
    environ = {}
    for entry in container.get("env", ()):
        if "value" in entry:
            environ[entry["name"]] = entry["value"]
        else:
            value: Any = pod
            for step in entry["valueFrom"]["fieldRef"]["fieldPath"].split("."):
                value = value[step]
            environ[entry["name"]] = str(value)
    return environ


def _entry_point(part: str, container: Json) -> tuple[str, ...]:
    """As the image has it, or the pod says."""
    if "command" not in container:
        return processes.python_command(module_of(part))
    python, flag, module = container["command"]
    assert (python, flag) == ("python", "-m")
    return processes.python_command(module)


async def _mount(admin: Client, spec: Json, container: Json, folder: Path) -> dict[str, str]:
    """The folder here for each path of a Secret or ConfigMap in the container, once the object is there."""
    volume_by_name = {volume["name"]: volume for volume in spec.get("volumes", ())}
    found = {}
    for mount in container.get("volumeMounts", ()):
        volume = volume_by_name[mount["name"]]
        here = folder / mount["name"]
        if "secret" in volume:
            files = await _data(admin, "secrets", volume["secret"]["secretName"])
            contents = {name: base64.b64decode(text) for name, text in files.items()}
        elif sources := [each["secret"] for each in volume.get("projected", {}).get("sources", ()) if "secret" in each]:
            contents = await _projected(admin, sources)
        elif "configMap" in volume:
            files = await _data(admin, "configmaps", volume["configMap"]["name"])
            contents = {name: text.encode() for name, text in files.items()}
        elif "persistentVolumeClaim" in volume:
            claimed = volume_folder(folder.parent, volume["persistentVolumeClaim"]["claimName"])
            claimed.mkdir(exist_ok=True)
            found[mount["mountPath"]] = str(claimed)
            continue
        else:
            continue  # the mounted token: `_kubeconfig`
        here.mkdir(mode=0o700)
        for name, content in contents.items():
            (here / name).write_bytes(content)
        found[mount["mountPath"]] = str(here)
    return found


async def _projected(admin: Client, secrets: list[Json]) -> dict[str, bytes]:
    """The named keys of Secrets, as files of one folder."""
    contents: dict[str, bytes] = {}
    for secret in secrets:
        files = await _data(admin, "secrets", secret["name"])
        contents |= {item["path"]: base64.b64decode(files[item["key"]]) for item in secret["items"]}
    return contents


def volume_folder(pods: Path, claim: str) -> Path:
    """What all pods that mount this claim have. `pods`: where the folders of pods are."""
    return pods / f"volume-{claim}"


async def _data(admin: Client, plural: str, name: str) -> dict[str, str]:
    """As a kubelet, which starts no container before its volumes are there."""
    async with asyncio.timeout(PATIENCE_S):
        await until(admin, f"/api/v1/namespaces/{NAMESPACE}/{plural}", lambda by_name: f"{NAMESPACE}/{name}" in by_name)
    data: dict[str, str] = (await admin.get(f"/api/v1/namespaces/{NAMESPACE}/{plural}/{name}"))["data"]
    return data


def _scheduler_command(
    cluster: LocalCluster, container: Json, kubeconfig: Path, port: int, folder_by_mount: dict[str, str]
) -> tuple[str, ...]:
    program, option, *more = container["command"]
    mounted, _, name = option.removeprefix("--config=").rpartition("/")
    configuration = yaml.safe_load((Path(folder_by_mount[mounted]) / name).read_text())
    configuration["clientConnection"]["kubeconfig"] = str(kubeconfig)
    (extender,) = configuration["extenders"]
    scheme = extender["urlPrefix"].partition(":")[0]
    extender["urlPrefix"] = f"{scheme}://{LOOPBACK}:{cluster.ports['forwarder']}"
    for file in ("certFile", "keyFile", "caFile") if scheme == "https" else ():
        mounted, _, name = extender["tlsConfig"][file].rpartition("/")
        extender["tlsConfig"][file] = f"{folder_by_mount[mounted]}/{name}"
    changed = kubeconfig.with_name("scheduler.yaml")
    changed.write_text(yaml.safe_dump(configuration))
    return (
        *cluster.binaries.argv_by_part[program],
        f"--config={changed}",
        *more,
        f"--bind-address={LOOPBACK}",
        f"--secure-port={port}",
        f"--authentication-kubeconfig={kubeconfig}",
        f"--authorization-kubeconfig={kubeconfig}",
        "--authentication-tolerate-lookup-failure=false",  # so that a missing role does not go unnoticed
        "--v=2",
    )


async def _kubeconfig(cluster: LocalCluster, admin: Client, account: str, folder: Path) -> Path:
    """A token of the service account, as the kubelet would mount it."""
    path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{account}/token"
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}}
    token = (await admin.create(path, request))["status"]["token"]
    authority = str(cluster.layout.certificate)
    file = folder / "kubeconfig.yaml"
    file.touch(mode=0o600)
    file.write_text(
        yaml.safe_dump(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "pod",
                "clusters": [
                    {"name": "local", "cluster": {"server": cluster.server, "certificate-authority": authority}}
                ],
                "users": [{"name": account, "user": {"token": token}}],
                "contexts": [{"name": "pod", "context": {"cluster": "local", "user": account}}],
            }
        )
    )
    return file
