"""Who asks the API server for what, and which new pods the policies refuse."""

from __future__ import annotations

from typing import Any

import pytest

from coda_kube.objects.json_types import Json
from tests.e2e.accounts import WIDE, Account, component, service_account

USER = Account(user="local-user")
WIDE_USER = Account(user="somebody", groups=(WIDE,))
MASTER = Account(user="root", groups=("system:masters",))
OPERATOR = component("operator")
EXTENDER = component("extender")
SCHEDULER = component("scheduler")
KUBE_SCHEDULER = Account(user="system:kube-scheduler", groups=(WIDE,))
REPLICA_SETS = service_account("kube-system", "replicaset-controller")
DEPLOYMENTS = service_account("kube-system", "deployment-controller")
CRON_JOBS = service_account("kube-system", "cronjob-controller")
BATCH_JOBS = service_account("kube-system", "job-controller")
DAEMON_SETS = service_account("kube-system", "daemon-set-controller")
COLLECTOR = service_account("kube-system", "generic-garbage-collector")
PLATFORM = "drivers"
DRIVER_CHECKS = service_account(PLATFORM, "validator")
NAMESPACES = ({"name": "elsewhere"}, {"name": PLATFORM, "labels": {"coda.scheduler/pool": "true"}})
ANY = "Exists"


def pods_path(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/pods"


PODS = pods_path("default")


def kubelet(node: str) -> Account:
    return Account(user=f"system:node:{node}", groups=("system:nodes", WIDE))


def pod(*, labels: Json | None = None, notes: Json | None = None, **more: Any) -> Json:
    metadata = {"name": "p", "labels": labels or {}, "annotations": notes or {}} | more.pop("metadata", {})
    spec = {"containers": [{"name": "main", "image": "busybox"}], **more}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def key(name: str) -> str:
    return f"coda.scheduler/{name}"


def owner(kind: str, version: str) -> Json:
    reference = {"apiVersion": version, "kind": kind, "name": "x", "uid": "1-2-3", "controller": True}
    return {"ownerReferences": [reference]}


def entries(name: str, count: int, version: str = "v1") -> Json:
    """Metadata with so many entries of one kind, each as small as it can be; `version`: the object's apiVersion."""
    numbers = range(count)
    owner_of = {"apiVersion": "v1", "kind": "ConfigMap", "name": "x"}
    manager_of = {"operation": "Apply", "apiVersion": version, "time": "2026-01-01T00:00:00Z", "fieldsType": "FieldsV1"}
    lists: dict[str, Any] = {
        "labels": {f"x{number}": "" for number in numbers},
        "annotations": {f"x{number}": "" for number in numbers},
        "finalizers": [f"example.com/x{number}" for number in numbers],
        "ownerReferences": [owner_of | {"uid": str(number)} for number in numbers],
        "managedFields": [
            manager_of | {"manager": f"m{number}", "fieldsV1": {"f:spec": {f"f:x{number}": {}}}} for number in numbers
        ],
    }
    return {name: lists[name]}


def daemon_set(*tolerations: Json) -> Json:
    template = pod(labels={"a": "b"}, tolerations=list(tolerations))
    del template["metadata"]["name"]
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": "d"},
        "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": template},
    }


SEAT = key("gpu-0")


def seated(*, name: str = SEAT, where: str = "containers", by: str = "limits") -> Json:
    """A pod that asks for a seat."""
    asking = {"name": "seated", "image": "busybox", "resources": {by: {name: "1"}}}
    made = pod()
    made["spec"][where] = [asking]
    return made


def mounting(path: str) -> Json:
    """A pod with a folder of its node."""
    return pod(volumes=[{"name": "v", "hostPath": {"path": path}}])


def repelling(term: Json, *, by: str = "topology.kubernetes.io/zone") -> Json:
    """An affinity that keeps the pods of this term off all nodes of its topology."""
    rule = {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": by} | term]}
    return {"podAntiAffinity": rule}


def job_key(operator: str) -> Json:
    """The pods of JobSets, as JobSet names them for its exclusive placement; with DoesNotExist, all others."""
    values = {"values": ["me"]} if operator.endswith("In") else {}
    return {"matchExpressions": [{"key": "jobset.sigs.k8s.io/job-key", "operator": operator} | values]}


def pinned(namespace: str) -> Json:
    """A pod for one node of the pool, as local-path-provisioner and NVIDIA's GPU operator make it."""
    return pod(nodeName="node-0001", tolerations=[{"operator": ANY}], metadata={"namespace": namespace})


def batch_job(
    *, labels: Json | None = None, metadata: Json | None = None, job: Json | None = None, **more: Any
) -> Json:
    """A Job of Kubernetes whose pods have these labels, and more in their specification."""
    template = pod(labels=labels, restartPolicy="Never") | {"metadata": {"labels": labels or {}}}
    template["spec"] |= more
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "j"} | (metadata or {}),
        "spec": {"template": {each: template[each] for each in ("metadata", "spec")}} | (job or {}),
    }


def asking_for(resource: str, container: str = "main") -> Json:
    """A container that asks for one of it."""
    return {"containers": [{"name": container, "image": "busybox", "resources": {"limits": {resource: "1"}}}]}


MINE = {"key": key("pool"), "operator": ANY}
ALL = {"operator": ANY}
GATE = [{"name": key("admission")}]
MIRROR = {"kubernetes.io/config.mirror": "x"}


def wide_role() -> Json:
    verbs = ["create", "update", "patch", "delete", "get"]
    resources = ["pods", "pods/status", "pods/binding", "bindings", "pods/resize"]
    resources += [kind + of for kind in ("services", "nodes", "namespaces") for of in ("", "/status")]
    rules = [
        {"apiGroups": [""], "resources": [*resources, "configmaps"], "verbs": verbs},
        {"apiGroups": ["apps"], "resources": ["daemonsets", "deployments", "replicasets"], "verbs": verbs},
        {"apiGroups": ["batch"], "resources": ["jobs"], "verbs": verbs},
        {
            "apiGroups": ["coda.scheduler"],
            "resources": ["trainingjobs", "trainingjobs/status", "nodeprofiles", "nodeprofiles/status"],
            "verbs": verbs,
        },
    ]
    return {"metadata": {"name": "test-wide"}, "rules": rules}


def wide_binding() -> Json:
    group = "rbac.authorization.k8s.io"
    return {
        "metadata": {"name": "test-wide"},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "test-wide"},
        "subjects": [{"apiGroup": group, "kind": "Group", "name": WIDE}],
    }


NEW_PODS = [
    pytest.param(USER, pod(labels={key("job-uid"): "x"}), "job-uid", id="a job's uid"),
    pytest.param(USER, pod(notes={key("plan"): "x"}), "plan", id="a plan"),
    pytest.param(USER, pod(labels={key("borrowed"): "1"}), "borrowed", id="a key of the design"),
    pytest.param(USER, pod(labels={key("anything"): "1"}), "anything", id="an unknown key"),
    pytest.param(USER, pod(labels={key("leader"): "true"}), "leader", id="the leader's label"),
    pytest.param(USER, pod(metadata={"finalizers": [key("operator")]}), "operator", id="Coda's finalizer"),
    pytest.param(USER, pod(schedulingGates=[{"name": key("mine")}]), "mine", id="an unknown gate"),
    pytest.param(USER, pod(labels={key("throttling"): "false"}), None, id="throttling is the user's"),
    pytest.param(USER, pod(labels={"sim.coda.scheduler/x": "1"}), None, id="another prefix"),
    pytest.param(USER, pod(metadata=owner("TrainingJob", "coda.scheduler/v1alpha1")), "controller", id="a job's pod"),
    pytest.param(USER, pod(metadata=owner("ReplicaSet", "apps/v1")), None, id="a replica set's pod"),
    pytest.param(REPLICA_SETS, pod(labels={key("rank"): "0"}), "rank", id="a template launders nothing"),
    pytest.param(EXTENDER, pod(labels={key("rank"): "0"}), "rank", id="the extender makes no ranks"),
    pytest.param(EXTENDER, pod(labels={key("leader"): "true"}), "leader", id="no leader outside coda-system"),
    pytest.param(OPERATOR, pod(labels={key("job-uid"): "x"}, tolerations=[MINE]), None, id="the operator makes ranks"),
    pytest.param(MASTER, pod(labels={key("job-uid"): "x"}), None, id="an emergency"),
    pytest.param(USER, pod(tolerations=[MINE]), "taint", id="the pool's taint"),
    pytest.param(USER, pod(tolerations=[{"key": key("pool"), "value": "true"}]), "taint", id="by its value"),
    pytest.param(USER, pod(tolerations=[ALL]), "taint", id="every taint"),
    pytest.param(USER, pod(tolerations=[ALL | {"effect": "NoSchedule"}]), "taint", id="every NoSchedule"),
    pytest.param(USER, pod(tolerations=[ALL | {"effect": "NoExecute"}]), "taint", id="every NoExecute"),
    pytest.param(USER, pod(tolerations=[{"key": "other", "operator": ANY}]), None, id="another taint"),
    pytest.param(
        USER, pod(tolerations=[MINE], schedulerName="coda", schedulingGates=GATE), "admission", id="no opt-in"
    ),
    pytest.param(USER, pod(schedulingGates=GATE), "admission", id="gated for another scheduler"),
    pytest.param(USER, pod(tolerations=[MINE], schedulingGates=GATE), "coda.scheduler/", id="gated and tolerant"),
    pytest.param(USER, pod(tolerations=[MINE], schedulerName="coda"), "taint", id="Coda's scheduler alone"),
    pytest.param(REPLICA_SETS, pod(tolerations=[ALL]), "taint", id="by a template"),
    pytest.param(
        DAEMON_SETS, pod(tolerations=[ALL], metadata=owner("DaemonSet", "apps/v1")), None, id="of a daemon set"
    ),
    pytest.param(USER, pod(tolerations=[ALL], metadata=owner("DaemonSet", "apps/v1")), "taint", id="as if of one"),
    pytest.param(USER, pod(nodeName="node-0001"), "belongs to the pool", id="a node of the pool"),
    pytest.param(USER, pod(nodeName="node-0001\nnode-0002"), None, id="two names in one"),
    pytest.param(USER, pod(nodeName="node-00"), None, id="no node of the pool"),
    pytest.param(
        kubelet("node-0001"), pod(nodeName="node-0001", notes=MIRROR, tolerations=[ALL]), None, id="a mirror pod"
    ),
    pytest.param(kubelet("node-0001"), pod(nodeName="node-0002", notes=MIRROR), "belongs", id="of another node"),
    pytest.param(USER, pod(nodeName="node-0001", notes=MIRROR), "", id="as if a mirror pod"),
    pytest.param(MASTER, pod(nodeName="node-0001", tolerations=[ALL]), None, id="an administrator"),
    pytest.param(DRIVER_CHECKS, pinned(PLATFORM), None, id="a check of drivers by the platform"),
    pytest.param(WIDE_USER, pinned("kube-system"), None, id="a helper of volumes, as k3s has it"),
    pytest.param(DRIVER_CHECKS, pinned("elsewhere"), "", id="the platform in a user's namespace"),
    pytest.param(
        DRIVER_CHECKS, pod(nodeName="node-0001", metadata={"namespace": "elsewhere"}), "belongs", id="also by its node"
    ),
    pytest.param(USER, seated(), SEAT, id="a seat"),
    pytest.param(USER, seated(name=key("sharing")), "sharing", id="the files and the socket"),
    pytest.param(USER, seated(name=key("gpu-99")), "gpu-99", id="a seat that no node has"),
    pytest.param(USER, seated(by="requests"), None, id="a request without a limit: the API server's own rule"),
    pytest.param(USER, seated(where="initContainers"), SEAT, id="a seat to begin with"),
    pytest.param(REPLICA_SETS, seated(), SEAT, id="a seat by a template"),
    pytest.param(DAEMON_SETS, seated(), SEAT, id="a seat by a daemon set"),
    pytest.param(EXTENDER, seated(), SEAT, id="the extender seats nobody"),
    pytest.param(OPERATOR, seated(), None, id="the operator seats ranks"),
    pytest.param(MASTER, seated(), None, id="an administrator seats himself"),
    pytest.param(USER, seated(name="nvidia.com/gpu"), None, id="a whole GPU"),
    pytest.param(USER, mounting("/run/coda"), "/run/coda", id="the socket's folder"),
    pytest.param(USER, mounting("/run/coda/agent.sock"), "agent.sock", id="the socket"),
    pytest.param(USER, mounting("//var//run/coda/"), "coda", id="by another name"),
    pytest.param(USER, mounting("/var/lib/coda/framework"), "framework", id="the files"),
    pytest.param(USER, mounting("/proc/1/root/run/coda"), "coda", id="by way of a process"),
    pytest.param(USER, mounting("/proc/1/task/1/root/proc/./self/root/var/run/coda"), "coda", id="of two"),
    pytest.param(USER, mounting("/proc/1/cwd/run/coda"), "coda", id="by the folder where a process works"),
    pytest.param(USER, mounting("/proc/1/task/1/cwd/var/lib/coda/"), "coda", id="by that of a thread"),
    pytest.param(USER, mounting("proc/1/root/proc/1/cwd//run/./coda"), "coda", id="by that of a process of a process"),
    pytest.param(USER, mounting("/proc/9/cwd/coda/agent.sock"), "coda", id="by that of one that works in /run"),
    pytest.param(USER, mounting("/proc/self/fd/3/coda"), "coda", id="by an open folder"),
    pytest.param(USER, mounting("/./dev//fd/3/run/coda"), "coda", id="by an open folder of one's own"),
    pytest.param(USER, mounting("/proc/1/root/run"), None, id="a folder above, by way of a process"),
    pytest.param(USER, mounting("/proc/1/root/run/codas/dcoda"), None, id="another folder, by way of a process"),
    pytest.param(USER, mounting("/data/proc/coda"), None, id="another folder with processes"),
    pytest.param(USER, mounting("/run"), None, id="a folder above: for pod security to refuse"),
    pytest.param(USER, mounting("/run/codas"), None, id="another folder"),
    pytest.param(MASTER, mounting("/run/coda"), None, id="an administrator looks at it"),
]
EVERYBODY: Json = {"labelSelector": {}, "namespaceSelector": {}}
OF_JOB_SETS: Json = EVERYBODY | {"labelSelector": job_key("Exists")}
NEW_PODS += [
    pytest.param(USER, pod(affinity=repelling(term, by=by)), why, id=f"anti-affinity, {name}")
    for name, term, by, why in [
        ("to everybody", EVERYBODY, "kubernetes.io/os", "podAntiAffinity by kubernetes.io/os"),
        ("to a namespace", {"labelSelector": {}, "namespaces": ["default", "elsewhere"]}, "zone", "by zone"),
        ("to a label", EVERYBODY | {"labelSelector": {"matchLabels": {"a": "b"}}}, "zone", "by zone"),
        ("to all but JobSets", EVERYBODY | {"labelSelector": job_key("DoesNotExist")}, "zone", "by zone"),
        ("to all but one JobSet", EVERYBODY | {"labelSelector": job_key("NotIn")}, "zone", "by zone"),
        ("as JobSet has it", OF_JOB_SETS, "zone", None),
        ("to one JobSet", EVERYBODY | {"labelSelector": job_key("In")}, "zone", None),
        ("by hostname", EVERYBODY, "kubernetes.io/hostname", None),
        ("in its namespace", {"labelSelector": {}}, "zone", None),
        ("in its namespace by name", {"labelSelector": {}, "namespaces": ["default"]}, "zone", None),
        ("to nobody", {"namespaceSelector": {}}, "zone", None),
    ]
]
REPELS: Json = {"affinity": repelling(EVERYBODY)}
PREFERS: Json = {"weight": 1, "podAffinityTerm": EVERYBODY | {"topologyKey": "zone"}}
NEW_PODS += [
    pytest.param(REPLICA_SETS, pod(**REPELS), "podAntiAffinity", id="repels by a template"),
    pytest.param(
        DAEMON_SETS, pod(**REPELS, metadata=owner("DaemonSet", "apps/v1")), "podAntiAffinity", id="repels on each node"
    ),
    pytest.param(MASTER, pod(**REPELS), None, id="an administrator repels"),
    pytest.param(DRIVER_CHECKS, pod(**REPELS, metadata={"namespace": PLATFORM}), None, id="the platform repels"),
    pytest.param(WIDE_USER, pod(**REPELS, metadata={"namespace": "kube-system"}), None, id="the cluster repels"),
    pytest.param(
        USER,
        pod(affinity={"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [PREFERS]}}),
        None,
        id="would rather be alone",
    ),
    pytest.param(
        USER,
        pod(
            affinity={
                "podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [EVERYBODY | {"topologyKey": "zone"}]}
            }
        ),
        None,
        id="wants to be beside others",
    ),
]
BESIDE: Json = {"labelSelector": {"matchLabels": {"a": "b"}}, "topologyKey": "zone"}
SPREAD: Json = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}
RETURNING = [  # new Jobs of a namespace that opted in; which of them get the rule that evictions are no failures
    pytest.param(batch_job(), True, id="says nothing"),
    pytest.param(batch_job(metadata=owner("CronJob", "batch/v1")), True, id="of a CronJob"),
    pytest.param(batch_job(job={"backoffLimit": 1}), True, id="tries twice"),
    pytest.param(batch_job(affinity={"nodeAffinity": {}}), True, id="affinity to nodes"),
    pytest.param(batch_job(**asking_for("memory")), True, id="memory"),
    pytest.param(batch_job(job={"podReplacementPolicy": "Failed"}), True, id="replaces what has ended"),
    pytest.param(  # the API server fills this in before any policy looks, so who says it is not told from who does not
        batch_job(job={"podReplacementPolicy": "TerminatingOrFailed"}), True, id="says the default"
    ),
    pytest.param(batch_job(restartPolicy="OnFailure"), False, id="restarted in place"),
    pytest.param(batch_job(job={"backoffLimit": 0}), False, id="runs once"),
    pytest.param(
        batch_job(job={"completionMode": "Indexed", "completions": 2, "backoffLimitPerIndex": 0}),
        False,
        id="runs each index once",
    ),
    pytest.param(batch_job(metadata=owner("JobSet", "jobset.x-k8s.io/v1alpha2")), False, id="of a JobSet"),
    pytest.param(batch_job(metadata=owner("CronJob", "example.com/v1")), False, id="of another group's CronJob"),
    pytest.param(batch_job(metadata={"labels": {key("opt-in"): "false"}}), False, id="opted out"),
    pytest.param(batch_job(labels={key("opt-in"): "false"}), False, id="opted out in its template"),
    pytest.param(batch_job(**asking_for("nvidia.com/gpu")), False, id="GPUs"),
    pytest.param(batch_job(initContainers=asking_for("nvidia.com/gpu", "first")["containers"]), False, id="GPUs first"),
    pytest.param(batch_job(resourceClaims=[{"name": "a", "resourceClaimName": "a"}]), False, id="a device"),
    pytest.param(batch_job(hostNetwork=True), False, id="the host's network"),
    pytest.param(batch_job(schedulerName="volcano"), False, id="another scheduler"),
    pytest.param(batch_job(nodeName="elsewhere"), False, id="a node"),
    pytest.param(
        batch_job(affinity={"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [BESIDE]}}),
        False,
        id="anti-affinity",
    ),
    pytest.param(batch_job(topologySpreadConstraints=[SPREAD]), False, id="spreading"),
    pytest.param(batch_job(volumes=[{"name": "v", "persistentVolumeClaim": {"claimName": "v"}}]), False, id="a claim"),
    pytest.param(batch_job(priorityClassName="system-node-critical"), False, id="a class of the system"),
]
