"""The kinds that are stored, where they live, and a harmless object of each. Values only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from coda_kube.objects.names import API_VERSION, GPU, KIND, NODE_PROFILE
from coda_lab.kubelets.behaviour import PREFIX

Json = dict[str, Any]
Path = tuple[str | int, ...]

HOSTILE_NAMESPACE: Final = "hostile"
ACCIDENT_NAMESPACE: Final = "accidents"
"""Here an administrator sets odd quotas and limits: in the other one they would keep everything else out."""
NAMESPACES: Final = (HOSTILE_NAMESPACE, ACCIDENT_NAMESPACE)
RUN_S: Final = 2.0  # of a harmless pod's containers


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind. `pod_spec`: where its pods' spec is, if it has any. `is_users`: a plain user may create it, else an
    administrator.
    """

    name: str
    api_version: str
    plural: str
    pod_spec: Path | None = None
    is_users: bool = True
    is_namespaced: bool = True

    @property
    def root(self) -> str:
        """The path of its API group: `api/v1`, `apis/apps/v1`."""
        return f"apis/{self.api_version}" if "/" in self.api_version else f"api/{self.api_version}"

    def path(self, namespace: str) -> str:
        """The path of its collection."""
        within = f"/namespaces/{namespace}" if self.is_namespaced else ""
        return f"/{self.root}{within}/{self.plural}"


_TEMPLATE: Final[Path] = ("spec", "template", "spec")

JOB: Final = Kind(name=KIND, api_version=API_VERSION, plural="trainingjobs", pod_spec=_TEMPLATE)
POD: Final = Kind(name="Pod", api_version="v1", plural="pods", pod_spec=("spec",))
NODE: Final = Kind(name="Node", api_version="v1", plural="nodes", is_users=False, is_namespaced=False)
PROFILE: Final = Kind(
    name=NODE_PROFILE, api_version=API_VERSION, plural="nodeprofiles", is_users=False, is_namespaced=False
)
KINDS: Final = (
    JOB,
    POD,
    Kind(name="ConfigMap", api_version="v1", plural="configmaps"),
    Kind(name="Secret", api_version="v1", plural="secrets"),
    Kind(name="Service", api_version="v1", plural="services"),
    Kind(name="ServiceAccount", api_version="v1", plural="serviceaccounts"),
    Kind(name="PersistentVolumeClaim", api_version="v1", plural="persistentvolumeclaims"),
    Kind(name="Event", api_version="v1", plural="events"),
    Kind(name="Lease", api_version="coordination.k8s.io/v1", plural="leases"),
    Kind(name="Job", api_version="batch/v1", plural="jobs", pod_spec=_TEMPLATE),
    Kind(name="Deployment", api_version="apps/v1", plural="deployments", pod_spec=_TEMPLATE),
    Kind(name="StatefulSet", api_version="apps/v1", plural="statefulsets", pod_spec=_TEMPLATE),
    NODE,
    PROFILE,
    Kind(name="LimitRange", api_version="v1", plural="limitranges", is_users=False),
    Kind(name="ResourceQuota", api_version="v1", plural="resourcequotas", is_users=False),
)
WEIGHT_BY_KIND: Final[Mapping[str, int]] = {JOB.name: 7, POD.name: 5, "Node": 1, "LimitRange": 1, "ResourceQuota": 1}
"""How often a kind comes; 2 where it is not named. Coda reads jobs and pods most."""


def pod_spec(*, gpus: int = 0) -> Json:
    """A harmless pod that asks for next to nothing."""
    amounts = {"cpu": "1m"} | ({GPU: str(gpus)} if gpus else {})
    resources = {"requests": amounts, "limits": amounts}
    return {
        "terminationGracePeriodSeconds": 1,
        "containers": [{"name": "main", "image": "x:1", "resources": resources}],
    }


def harmless(kind: Kind, name: str, namespace: str) -> Json:
    """A harmless object of that kind."""
    metadata: Json = {"name": name} | ({"namespace": namespace} if kind.is_namespaced else {})
    return {"apiVersion": kind.api_version, "kind": kind.name, "metadata": metadata} | _body(kind, name)


def template(name: str, *, ends: bool = True) -> Json:
    """A harmless pod template; without `ends` its pods run on, since their controller would make them again."""
    notes = {f"{PREFIX}run-seconds": f"{RUN_S:g}"} if ends else {}
    return {"metadata": {"labels": {"app": name}, "annotations": notes}, "spec": pod_spec()}


def _body(kind: Kind, name: str) -> Json:
    selector, lasting = {"matchLabels": {"app": name}}, template(name, ends=False)
    forms: Mapping[str, Json] = {
        JOB.name: {"spec": {"replicas": 1, "gpusPerReplica": 1, "cpusPerReplica": 1, "template": _rank()}},
        POD.name: {"spec": pod_spec() | {"restartPolicy": "Never"}},
        "ConfigMap": {"data": {"key": "value"}},
        "Secret": {"stringData": {"key": "value"}},
        "Service": {"spec": {"clusterIP": "None", "selector": {"app": name}, "ports": [{"port": 80}]}},
        "PersistentVolumeClaim": {
            "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
        },
        "Event": {
            "involvedObject": {"kind": "Pod", "namespace": HOSTILE_NAMESPACE, "name": name},
            "reason": "Said",
            "message": "something",
            "type": "Normal",
        },
        "Lease": {"spec": {"holderIdentity": name, "leaseDurationSeconds": 15}},
        "Job": {"spec": {"backoffLimit": 0, "template": _never(template(name))}},
        "Deployment": {"spec": {"replicas": 1, "selector": selector, "template": lasting}},
        "StatefulSet": {"spec": {"replicas": 1, "serviceName": name, "selector": selector, "template": lasting}},
        "Node": {"spec": {"unschedulable": True}, "status": {"allocatable": {"cpu": "1", "pods": "10"}}},
        "LimitRange": {"spec": {"limits": [{"type": "Container", "default": {"cpu": "1"}}]}},
        "ResourceQuota": {"spec": {"hard": {"count/configmaps": "100000"}}},
    }
    return forms.get(kind.name, {})


def _never(found: Json) -> Json:
    found["spec"]["restartPolicy"] = "Never"
    return found


def _rank() -> Json:
    found = template("rank")
    del found["spec"]["containers"][0]["resources"]
    return {"metadata": {"annotations": found["metadata"]["annotations"]}, "spec": found["spec"]}
