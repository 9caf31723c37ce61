"""Tricks of a namespace's editors: who refuses each with which words, or what becomes of it.

`waits`, `runs` and `outside` are pods of the scene of `test_tricks`: one that waits for good, one that was released,
and one that opted out. `train` is a TrainingJob that runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from coda_kube.objects.json_types import Json
from coda_kube.objects.names import ANNOTATION_USER
from coda_kube.objects.pods.users import user_from_json
from coda_kube.objects.write import job_path
from tests.e2e.accounts import Account
from tests.e2e.cpu_jobs import ANN, BATCH, GATE, JOBS, PODS, batch_job, pod_json
from tests.e2e.policy_cases import EVERYBODY, MASTER, MINE, MIRROR, WIDE_USER, daemon_set, key, owner, repelling

DEFAULT = "/api/v1/namespaces/default"
NODE = "node-0000"
BY_POLICY, BY_RBAC, BY_API_SERVER = "ValidatingAdmissionPolicy 'coda-", "cannot", "is invalid"


def opted_out(name: str) -> Json:
    item = pod_json(name, schedulerName="nobody")
    item["metadata"]["labels"] = {key("opt-in"): "false"}
    return item


def noted(**notes: str) -> Json:
    item = pod_json("forged")
    item["metadata"]["annotations"] = {key(name.replace("_", "-")): value for name, value in notes.items()}
    return item


def asks(**resources: str) -> list[Json]:
    return [{"name": "main", "image": "work:1", "resources": {"requests": resources}}]


HOST_PORT = [asks(cpu="1")[0] | {"ports": [{"containerPort": 80, "hostPort": 80}]}]
ONE_GPU = {"nvidia.com/gpu": "1"}
GPU = [{"name": "main", "image": "work:1", "resources": {"requests": ONE_GPU, "limits": ONE_GPU}}]


def brings_gate(**spec: Any) -> Json:
    return pod_json("gated", schedulingGates=[GATE], schedulerName="coda", tolerations=[MINE], **spec)


def owned_by(kind: str, version: str) -> Json:
    item = pod_json("owned")
    return item | {"metadata": item["metadata"] | owner(kind, version)}


def binding(name: str) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": name},
        "target": {"kind": "Node", "name": NODE},
    }


def elsewhere(item: Json) -> Json:
    return item | {"metadata": item["metadata"] | {"namespace": "default"}}


SPREADING = [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {}}]
CLAIM = {"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]}
LARGER = {"spec": {"containers": [{"name": "main", "image": "work:1", "resources": {"requests": {"cpu": "40"}}}]}}
EPHEMERAL = {"name": "more", "image": "work:1", "resources": {"requests": {"cpu": "40"}}}
REVISION = {"apiVersion": "apps/v1", "kind": "ControllerRevision", "metadata": {"name": "r"}, "revision": 1, "data": {}}
ENDED = {"status": {"phase": "Succeeded"}}
TRAIN = job_path(f"{BATCH}/train")


@dataclass(frozen=True, slots=True, kw_only=True)
class Try:
    """One request, and who refuses it with which words."""

    path: str = PODS
    body: Any
    by: str = BY_POLICY
    says: str
    account: Account = ANN
    method: str = "PATCH"


def new(body: Json, says: str, **more: Any) -> Try:
    return Try(method="POST", body=body, says=says, **more)


REFUSED: dict[str, Try] = {
    "takes the gate away": Try(path=f"{PODS}/waits", body={"spec": {"schedulingGates": []}}, says="admission"),
    "releases itself": new(noted(plan="p", planned_time="2026-01-01T00:00:00Z"), "only Coda may write"),
    "takes an earlier place": new(noted(queued_time="2020-01-01T00:00:00Z"), "queued-time"),
    "takes the mark of borrowed cores off": Try(
        path=f"{PODS}/runs", body={"metadata": {"annotations": {key("planned-time"): None}}}, says="planned-time"
    ),
    "keeps everybody's pods off its zone": new(
        pod_json("repels", affinity=repelling(EVERYBODY)), "required podAntiAffinity by topology.kubernetes.io/zone"
    ),
    "marks itself with an unknown key": new(noted(priority="1"), "leave out the keys"),
    "changes the user's stamp": Try(
        path=f"{PODS}/waits", body={"metadata": {"annotations": {ANNOTATION_USER: "bob"}}}, says="who asked first"
    ),
    "takes the stamp off": Try(
        path=f"{PODS}/runs", body={"metadata": {"annotations": {ANNOTATION_USER: None}}}, says="who asked first"
    ),
    "takes the stamp off while it waits": Try(
        path=f"{PODS}/waits", body={"metadata": {"annotations": {ANNOTATION_USER: None}}}, says="who asked first"
    ),
    "edits the requests of a gated pod": Try(path=f"{PODS}/waits", body=LARGER, says="Forbidden", by=BY_API_SERVER),
    "resizes a gated pod": Try(path=f"{PODS}/waits/resize", body=LARGER, says="alone resizes", account=WIDE_USER),
    "resizes a released pod": Try(path=f"{PODS}/runs/resize", body=LARGER, says="alone resizes", account=WIDE_USER),
    "names another scheduler, later": Try(
        path=f"{PODS}/waits", body={"spec": {"schedulerName": "nobody"}}, says="Forbidden", by=BY_API_SERVER
    ),
    "unpins a released pod": Try(
        path=f"{PODS}/runs", body={"spec": {"affinity": None}}, says="Forbidden", by=BY_API_SERVER
    ),
    "adds an ephemeral container with cores": Try(
        path=f"{PODS}/runs/ephemeralcontainers",
        body={"spec": {"ephemeralContainers": [EPHEMERAL]}},
        says="resources: Forbidden",
        by=BY_API_SERVER,
        account=MASTER,
    ),
    "names a node": new(pod_json("node", nodeName=NODE), "leave spec.nodeName to the scheduler"),
    "binds a gated pod": Try(
        path=f"{PODS}/waits/binding",
        body=binding("waits"),
        says="belongs to the pool",
        account=WIDE_USER,
        method="POST",
    ),
    "binds a pod that opted out": Try(
        path=f"{PODS}/outside/binding",
        body=binding("outside"),
        says="belongs to the pool",
        account=WIDE_USER,
        method="POST",
    ),
    "brings the gate with a GPU": new(brings_gate(containers=GPU), "cores and memory only"),
    "brings the gate with a claim": new(brings_gate(**CLAIM), "cores and memory only"),
    "brings the gate with the host's network": new(brings_gate(hostNetwork=True), "cores and memory only"),
    "brings the gate with a port of the host": new(brings_gate(containers=HOST_PORT), "cores and memory only"),
    "brings the gate with a class of the system": new(
        brings_gate(priorityClassName="system-node-critical"), "system- priority classes"
    ),
    "is spread by a webhook after Coda gave the gate": new(
        brings_gate(topologySpreadConstraints=SPREADING),
        "after Coda gave it the gate: label such pods, in their template",
    ),
    "gets a port of the host from a webhook": new(brings_gate(containers=HOST_PORT), "coda.scheduler/opt-in=false"),
    "gets another scheduler from a webhook": new(
        pod_json("gated", schedulingGates=[GATE], schedulerName="other", tolerations=[MINE]),
        "coda.scheduler/opt-in=false",
    ),
    "brings the gate to another namespace": new(
        elsewhere(brings_gate()), "admission", path=f"{DEFAULT}/pods", account=WIDE_USER
    ),
    "tolerates the pool's taint": new(pod_json("t", schedulerName="nobody", tolerations=[MINE]), "taint"),
    "tolerates it later": Try(path=f"{PODS}/outside", body={"spec": {"tolerations": [MINE]}}, says="taint"),
    "makes a DaemonSet for the pool": new(
        daemon_set(MINE), "taint", path=f"/apis/apps/v1/namespaces/{BATCH}/daemonsets"
    ),
    "looks like a mirror pod": new(
        pod_json("m", nodeName=NODE) | {"metadata": {"name": "m", "annotations": MIRROR}}, "leave spec.nodeName"
    ),
    "looks like a ReplicaSet's": new(owned_by("ReplicaSet", "apps/v1"), "leave out metadata.ownerReferences"),
    "looks like a Job's": new(owned_by("Job", "batch/v1"), "leave out metadata.ownerReferences"),
    "looks like a daemon's": new(owned_by("DaemonSet", "apps/v1"), "leave out metadata.ownerReferences"),
    "is given to a ReplicaSet": Try(
        path=f"{PODS}/waits", body={"metadata": owner("ReplicaSet", "apps/v1")}, says="leave out"
    ),
    "looks like a rank": new(owned_by("TrainingJob", "coda.scheduler/v1alpha1"), "whose controller is a TrainingJob"),
    "rewrites the revision of a StatefulSet": new(
        REVISION, "controllerrevisions", path=f"/apis/apps/v1/namespaces/{BATCH}/controllerrevisions", by=BY_RBAC
    ),
    "says that its pod has ended": Try(path=f"{PODS}/runs/status", body=ENDED, says="pods/status", by=BY_RBAC),
    "writes the status of a job as its administrator": Try(
        path=f"{TRAIN}/status", body={"status": {"queuedTime": "2020-01-01T00:00:00Z"}}, says="status", by=BY_RBAC
    ),
    "writes the status of a job with more rights": Try(
        path=f"{TRAIN}/status",
        body={"status": {"queuedTime": "2020-01-01T00:00:00Z"}},
        says="does not write status.queuedTime",
        account=WIDE_USER,
    ),
    "uses another tenant's namespace": new(elsewhere(pod_json("p")), "default", path=f"{DEFAULT}/pods", by=BY_RBAC),
    "opts in by itself": Try(
        path=f"/api/v1/namespaces/{BATCH}",
        body={"metadata": {"labels": {key("opt-in"): "x"}}},
        says="namespaces",
        by=BY_RBAC,
    ),
    "asks for less than nothing": new(pod_json("n", cpu="-8"), "must be greater than or equal to 0", by=BY_API_SERVER),
    "brings its own overhead": new(pod_json("o", overhead={"cpu": "1m"}), "verhead", by=""),
}


def gates(item: Json) -> list[Json]:
    return list(item["spec"].get("schedulingGates") or ())


def stamp(item: Json) -> str:
    return str(item["metadata"]["annotations"][ANNOTATION_USER])


def suspended() -> Json:
    job = batch_job("job", pods=1, cpu="1", suspend=True)
    job["spec"]["template"]["metadata"]["annotations"] = {ANNOTATION_USER: "bob"}
    return job


CORRECTED: dict[str, tuple[Try, Callable[[Json], object], object]] = {
    "forges the stamp": (new(noted(user="bob"), ""), stamp, ANN.user),
    "forges it in a template": (
        new(suspended(), "", path=JOBS),
        lambda item: item["spec"]["template"]["metadata"]["annotations"][ANNOTATION_USER],
        ANN.user,
    ),
    "asks as one of its many accounts": (
        new(pod_json("p"), "", account=Account(user=f"system:serviceaccount:{BATCH}:bot-7", groups=WIDE_USER.groups)),
        lambda item: user_from_json(item["metadata"]),
        BATCH,
    ),
    "is older than it is": (
        new(pod_json("p") | {"metadata": {"name": "p", "creationTimestamp": "2020-01-01T00:00:00Z"}}, ""),
        lambda item: item["metadata"]["creationTimestamp"] > "2026",
        True,
    ),
    "asks for a millionth": (
        new(pod_json("p", containers=asks(cpu="1u")), ""),
        lambda item: item["spec"]["containers"][0]["resources"]["requests"]["cpu"],
        "1m",
    ),
    "says that it opted out, once it waits": (
        Try(path=f"{PODS}/waits", body={"metadata": {"labels": {key("opt-in"): "false"}}}, says=""),
        gates,
        [GATE],
    ),
    "opted out from the start": (
        new(opted_out("p"), ""),
        lambda item: [each for each in item["spec"]["tolerations"] if each.get("key") == key("pool")],
        [],
    ),
    "names a class that nobody throttles or evicts": (
        new(pod_json("p", priorityClassName="system-cluster-critical"), ""),
        lambda item: [item["spec"]["schedulerName"], *gates(item)],
        ["default-scheduler"],
    ),
    "opted out from the start, for a webhook's sake": (
        new(opted_out("p") | {"spec": pod_json("p", topologySpreadConstraints=SPREADING)["spec"]}, ""),
        gates,
        [],
    ),
    "listens at a port of the host": (
        new(pod_json("p", hostNetwork=True), ""),
        lambda item: [each for each in item["spec"]["tolerations"] if each.get("key") == key("pool")],
        [],
    ),
}


def sidecar(cpu: str) -> Json:
    return asks(cpu=cpu)[0] | {"name": "sidecar", "restartPolicy": "Always"}


TOO_LARGE: dict[str, Json] = {
    "an init container": {"initContainers": [asks(cpu="49")[0] | {"name": "init"}]},
    "a sidecar beside the containers": {"initContainers": [sidecar("40")], "containers": asks(cpu="40")},
    "the pod itself": {"resources": {"requests": {"cpu": "49"}}},
    "the overhead of a runtime": {"runtimeClassName": "heavy"},
    "a limit without a request": {
        "containers": [{"name": "main", "image": "work:1", "resources": {"limits": {"cpu": "49"}}}]
    },
    "as much as a number can be": {"containers": asks(cpu="9223372036854775807", memory="9223372036854775807")},
    "more than a number can be": {"containers": asks(cpu="99999999999999999999E")},
    "pages that no node has": {
        "containers": [
            {
                "name": "main",
                "image": "work:1",
                "resources": {name: {"cpu": "1", "hugepages-2Mi": "2Mi"} for name in ("requests", "limits")},
            }
        ]
    },
}
