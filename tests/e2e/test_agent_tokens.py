"""What an agent's token can do: one bound to its pod, as a kubelet mounts it, which names the node. Asked of a real API
server with all of Coda's roles and policies; every request is sent, none is a dry run."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from coda_kube.api.client import JSON_PATCH, MERGE, Client, Rejected, connect
from coda_kube.objects.json_types import Json
from coda_kube.objects.names import AGENT, SYSTEM_NAMESPACE
from coda_kube.objects.write import job_path, status_patch
from coda_lab.kubeconfigs import kubeconfig_text, write_private
from coda_lab.local.cluster import LocalCluster
from coda_lab.spec import ClusterSpec
from tests.e2e.jobs import job_json, pods_of, submit, wait_for_phase, wait_gone

pytestmark = pytest.mark.e2e

SPEC = ClusterSpec(nodes="4x8x48", racks=2, extenders=1)
JOB = "elsewhere/victim"
SYSTEM_PODS = f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/pods"
PROFILES = "/apis/coda.scheduler/v1alpha1/nodeprofiles"
TUNING = {"attempt": 1, "phase": "Measuring"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """A running job of two ranks on two nodes. `here`: the node of its rank 0; `there`: of its rank 1."""

    uid: str
    placement: Json
    rank0: Json

    @property
    def here(self) -> str:
        return str(self.placement["nodes"][0])

    @property
    def there(self) -> str:
        return str(self.placement["nodes"][1])


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scene(cluster: LocalCluster) -> Scene:
    async with cluster.client("admin") as admin, cluster.client("user") as user:
        await admin.create("/api/v1/namespaces", {"metadata": {"name": "elsewhere"}})
        await submit(user, job_json("victim", replicas=2, gpus=8, run_s=None, namespace="elsewhere"))
        job = await wait_for_phase(user, JOB, "Running")
        rank0 = (await pods_of(user, JOB))[0]
        return Scene(uid=job["metadata"]["uid"], placement=job["status"]["placement"], rank0=rank0)


@asynccontextmanager
async def agent_on(cluster: LocalCluster, node: str, folder: Path) -> AsyncIterator[Client]:
    """A client with the token of an agent's pod on that node; afterwards its pod is gone."""
    name = f"coda-agent-{node}"
    container = {"name": "agent", "image": "coda-agent"}
    spec = {"nodeName": node, "serviceAccountName": AGENT, "containers": [container]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
    async with cluster.client("admin") as admin:
        uid = (await admin.create(SYSTEM_PODS, pod))["metadata"]["uid"]
        bound = {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid}
        request = {"spec": {"boundObjectRef": bound, "audiences": ["https://kubernetes.default.svc"]}}
        account = f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/serviceaccounts/{AGENT}/token"
        token = (await admin.create(account, request))["status"]["token"]
        config = folder / "kubeconfig.yaml"
        write_private(config, kubeconfig_text("agent", token, cluster.server, cluster.layout.certificate))
        client = await connect(str(config), timeout_s=30.0)
        try:
            yield client
        finally:
            await client.close()
            await admin.delete(f"{SYSTEM_PODS}/{name}", grace_s=0)
            await wait_gone(admin, f"{SYSTEM_PODS}/{name}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One request. `why`: a word of the refusal; RBAC's says `cannot`."""

    verb: str
    path: str
    body: Any = field(default_factory=dict)
    why: str = "cannot"

    async def send(self, client: Client) -> None:
        match self.verb:
            case "get":
                await client.get(self.path)
            case "create":
                await client.create(self.path, self.body)
            case "apply":
                await client.apply(self.path, self.body, manager=AGENT)
            case "delete":
                await client.delete(self.path)
            case "patch":
                await client.patch(self.path, self.body, JSON_PATCH if isinstance(self.body, list) else MERGE)


def profile(node: str, **status: Any) -> Json:
    item: Json = {"apiVersion": "coda.scheduler/v1alpha1", "kind": "NodeProfile", "metadata": {"name": node}}
    return item | ({"status": status} if status else {})


def event(scene: Scene, node: str, **changes: Any) -> Json:
    """As the agent on `node` makes it, about rank 0."""
    metadata = scene.rank0["metadata"]
    about = {"apiVersion": "v1", "kind": "Pod", "name": metadata["name"], "uid": metadata["uid"]}
    plain = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"generateName": "throttle.", "namespace": "elsewhere"},
        "involvedObject": about | {"namespace": "elsewhere"},
        "reason": "Throttled",
        "message": "memory bandwidth on socket 0 limited to 50 %",
        "type": "Normal",
        "eventTime": "2026-01-01T00:00:00.000000Z",
        "action": "Throttling",
        "reportingComponent": AGENT,
        "reportingInstance": node,
    }
    return plain | changes


EVENTS = "/api/v1/namespaces/elsewhere/events"
STATUS = job_path(JOB, status=True)


async def test_an_agent_reads_and_writes_what_it_needs(cluster: LocalCluster, scene: Scene, tmp_path: Path) -> None:
    path = f"{PROFILES}/{scene.here}"
    needed = (
        Ask(verb="apply", path=path, body=profile(scene.here)),
        Ask(verb="apply", path=f"{path}/status", body=profile(scene.here, cores=48)),
        Ask(verb="patch", path=f"{path}/status", body={"status": {"throttleCount": 0}}),
        Ask(verb="apply", path=STATUS, body=status_patch(JOB, {"tuning": TUNING}, uid=scene.uid)),
        Ask(verb="create", path=EVENTS, body=event(scene, scene.here)),
        Ask(verb="create", path=EVENTS, body=event(scene, scene.here, reason="ThrottleReleased")),
        Ask(verb="get", path="/api/v1/pods?limit=1"),
        Ask(verb="get", path="/api/v1/namespaces"),
        Ask(verb="get", path=f"/api/v1/nodes/{scene.here}"),
        Ask(verb="get", path=path),  # as rank 0's agent reads what the agents of other ranks report
        Ask(verb="get", path="/apis/coda.scheduler/v1alpha1/trainingjobs"),
    )
    async with agent_on(cluster, scene.here, tmp_path) as agent:
        for ask in needed:
            await ask.send(agent)


def refused_asks(scene: Scene) -> tuple[Ask, ...]:
    """Requests of the agent on the node of rank 0 that nobody but others may send."""
    pod = f"/api/v1/namespaces/elsewhere/pods/{scene.rank0['metadata']['name']}"
    container = scene.rank0["spec"]["containers"][0]
    fields: dict[str, Any] = {
        "phase": "Failed",
        "message": "forged",
        "placement": scene.placement | {"nodes": [scene.there, scene.here]},
        "pending": {"code": "X", "message": "x", "since": "2026-01-01T00:00:00Z"},
    }
    other = f"{PROFILES}/{scene.there}"
    no_writer = "only the agent of a node writes its NodeProfile"
    no_event = "an agent reports throttles of pods"
    return (
        Ask(verb="apply", path=other, body=profile(scene.there), why=no_writer),
        Ask(verb="create", path=PROFILES, body=profile("node-9999"), why=no_writer),
        Ask(verb="delete", path=f"{PROFILES}/{scene.here}"),
        Ask(verb="get", path=PROFILES),
        *(
            Ask(verb="patch", path=STATUS, body={"status": {name: value}}, why=f"does not write status.{name}")
            for name, value in fields.items()
        ),
        Ask(verb="patch", path=STATUS, body={"status": {"tuning": TUNING} | fields}, why="does not write status."),
        Ask(verb="patch", path=job_path(JOB), body={"spec": {"cpusPerReplica": 8}}),
        Ask(verb="delete", path=job_path(JOB)),
        Ask(verb="patch", path=pod, body={"metadata": {"labels": {"x": "y"}}}),
        Ask(verb="patch", path=f"{pod}/status", body={"status": {"phase": "Failed"}}),
        Ask(verb="patch", path=f"{pod}/resize", body={"spec": {"containers": [container]}}),
        Ask(verb="create", path=f"{pod}/eviction", body={"metadata": {"name": scene.rank0["metadata"]["name"]}}),
        Ask(verb="get", path=f"{pod}/log"),
        Ask(verb="delete", path=pod),
        Ask(verb="create", path=SYSTEM_PODS, body={"metadata": {"name": "x"}}),
        Ask(verb="get", path="/api/v1/secrets"),
        Ask(verb="get", path=f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/secrets"),
        Ask(verb="get", path="/api/v1/configmaps"),
        Ask(verb="create", path=f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/serviceaccounts/coda-operator/token"),
        Ask(verb="get", path="/api/v1/nodes"),
        Ask(verb="patch", path=f"/api/v1/nodes/{scene.here}", body={"metadata": {"labels": {"x": "y"}}}),
        Ask(verb="patch", path="/api/v1/namespaces/elsewhere", body={"metadata": {"labels": {"x": "y"}}}),
        Ask(verb="create", path=EVENTS, body=event(scene, scene.there), why=no_event),
        Ask(verb="create", path=EVENTS, body=event(scene, scene.here, reportingComponent="kubelet"), why=no_event),
        Ask(verb="create", path=EVENTS, body=event(scene, scene.here, reason="Evicted"), why=no_event),
        Ask(verb="create", path=EVENTS, body=event(scene, scene.here, type="Warning"), why=no_event),
        Ask(
            verb="create",
            path=EVENTS,
            body=event(scene, scene.here, involvedObject={"kind": "TrainingJob", "namespace": "elsewhere"}),
            why=no_event,
        ),
        Ask(verb="create", path="/apis/events.k8s.io/v1/namespaces/elsewhere/events", body=event(scene, scene.here)),
    )


async def test_an_agent_is_refused_everything_else(cluster: LocalCluster, scene: Scene, tmp_path: Path) -> None:
    async with agent_on(cluster, scene.here, tmp_path) as agent:
        answers = [(ask, await refusal(agent, ask)) for ask in refused_asks(scene)]
    assert [(ask.verb, ask.path, ask.body, said) for ask, said in answers if ask.why not in said] == []


async def refusal(agent: Client, ask: Ask) -> str:
    """Why it is forbidden; empty if it is not."""
    try:
        await ask.send(agent)
    except Rejected as error:
        return str(error) if error.status == 403 else f"{error.status}: {error}"
    return ""


async def test_an_agent_elsewhere_writes_nothing_of_the_job(
    cluster: LocalCluster, scene: Scene, tmp_path: Path
) -> None:
    """Also not where another rank of it runs."""
    async with agent_on(cluster, scene.there, tmp_path) as agent:
        change = status_patch(JOB, {"tuning": TUNING | {"attempt": 9}}, uid=scene.uid)
        with pytest.raises(Rejected, match="only the agent on the node of rank 0"):
            await agent.apply(STATUS, change, manager=AGENT)


async def test_what_else_comes_with_a_status_is_not_taken(
    cluster: LocalCluster, scene: Scene, admin: Client, tmp_path: Path
) -> None:
    before = await admin.get(job_path(JOB))
    forged = {"labels": {"x": "y"}, "annotations": {"x": "y"}, "finalizers": [], "ownerReferences": []}
    change = {"metadata": forged, "spec": {"cpusPerReplica": 47}, "status": {"tuning": TUNING | {"attempt": 2}}}
    async with agent_on(cluster, scene.here, tmp_path) as agent:
        await agent.patch(STATUS, change)
    after = await admin.get(job_path(JOB))
    assert after["status"]["tuning"]["attempt"] == 2
    for item in (before, after):
        for part in ("resourceVersion", "managedFields"):
            item["metadata"].pop(part, None)
    assert (after["metadata"], after["spec"]) == (before["metadata"], before["spec"])


async def test_the_token_of_an_agent_that_is_gone_opens_nothing(
    cluster: LocalCluster, scene: Scene, tmp_path: Path
) -> None:
    async with agent_on(cluster, scene.there, tmp_path):
        pass
    client = await connect(str(tmp_path / "kubeconfig.yaml"), timeout_s=30.0)
    try:
        with pytest.raises(Rejected) as refused:
            await client.get("/api/v1/namespaces")
    finally:
        await client.close()
    assert refused.value.status == 401
