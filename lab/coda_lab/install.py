"""Puts Coda's definitions, roles and pod objects into a fresh API server, and waits until they take effect."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from coda.errors import InvalidInput, Outage
from coda_kube.api.client import AlreadyExists, Client, NotFound, Rejected
from coda_kube.api.until import until
from coda_kube.objects.json_types import Json
from coda_kube.objects.names import (
    ANNOTATION_USER,
    API_VERSION,
    GROUP,
    KIND,
    LABEL_JOB_UID,
    LABEL_LEADER,
    SYSTEM_NAMESPACE,
)

MANAGER = "coda-local"

_CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_RBAC = "/apis/rbac.authorization.k8s.io/v1"
_ADMISSION = "/apis/admissionregistration.k8s.io/v1"
_COLLECTIONS: Mapping[str, str] = {
    "Namespace": "/api/v1/namespaces",
    "ServiceAccount": "/api/v1/namespaces/{namespace}/serviceaccounts",
    "CustomResourceDefinition": _CRDS,
    "ClusterRole": f"{_RBAC}/clusterroles",
    "ClusterRoleBinding": f"{_RBAC}/clusterrolebindings",
    "Role": f"{_RBAC}/namespaces/{{namespace}}/roles",
    "RoleBinding": f"{_RBAC}/namespaces/{{namespace}}/rolebindings",
    "FlowSchema": "/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas",
    "ValidatingAdmissionPolicy": f"{_ADMISSION}/validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": f"{_ADMISSION}/validatingadmissionpolicybindings",
    "MutatingAdmissionPolicy": f"{_ADMISSION}/mutatingadmissionpolicies",
    "MutatingAdmissionPolicyBinding": f"{_ADMISSION}/mutatingadmissionpolicybindings",
}
_SAFE: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the same objects in a fifth of the time
_PROPAGATION_S = 0.05  # how often we ask whether an authorizer or admission plug-in knows a change: no event tells
_PODS = f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/pods"


def objects_in(folder: Path) -> tuple[Json, ...]:
    """Every object of the YAML files in `folder`, files by name. Raises InvalidInput."""
    files = sorted(folder.glob("*.yaml"))
    if not files:
        raise InvalidInput(f"{folder} has no YAML files: restore it from the repository.")
    documents: list[Json] = []
    for file in files:
        try:
            documents += [document for document in yaml.load_all(file.read_text(), _SAFE) if document]
        except yaml.YAMLError as error:
            raise InvalidInput(f"{file} is no YAML: {error}") from error
    return tuple(documents)


def policies_in(folder: Path) -> tuple[Json, ...]:
    """The admission policies and their bindings in `folder`. Raises InvalidInput."""
    return tuple(item for item in objects_in(folder) if "AdmissionPolicy" in item["kind"])


async def apply_all(api: Client, objects: Iterable[Json]) -> None:
    """Apply each object, namespaces first."""
    for item in sorted(objects, key=lambda item: item["kind"] != "Namespace"):
        await api.apply(_path(item), item, manager=MANAGER)


async def delete_all(api: Client, objects: Iterable[Json]) -> None:
    """Delete each object that is there."""
    for item in objects:
        with suppress(NotFound):
            await api.delete(_path(item))


def _path(item: Json) -> str:
    """Where an object of a file goes. Raises InvalidInput."""
    metadata = item["metadata"]
    pattern = _COLLECTIONS.get(item["kind"])
    if pattern is None:
        raise InvalidInput(f"{item['kind']} {metadata['name']}: coda_lab.install does not know where this kind goes.")
    return f"{pattern.format(namespace=metadata.get('namespace'))}/{metadata['name']}"


async def wait_until_served(api: Client, definitions: Iterable[Json]) -> None:
    """Wait until the API server serves the kinds of these CustomResourceDefinitions."""
    names = {item["metadata"]["name"] for item in definitions}

    def all_established(by_name: Mapping[str, Json]) -> bool:
        return all(name in by_name and _holds(by_name[name], "Established") for name in names)

    await until(api, _CRDS, all_established)
    while True:  # Established is written a moment before the handler is there
        try:
            await api.get(f"/apis/{API_VERSION}/trainingjobs", {"limit": "1"})
        except NotFound:
            await asyncio.sleep(_PROPAGATION_S)
        else:
            return


async def wait_until_allowed(api: Client, *, verb: str, resource: str) -> None:
    """Wait until the API server allows `api`'s identity to do that in the namespace default."""
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": {"namespace": "default", "verb": verb, "group": GROUP, "resource": resource}},
    }
    while True:
        answer = await api.create("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review)
        if answer["status"]["allowed"]:
            return
        await asyncio.sleep(_PROPAGATION_S)


async def wait_until_jobs_are_taken(api: Client) -> None:
    """Wait until `api`'s identity can create TrainingJobs, and they are stamped with it.

    The API server looks for new policies every second and for new kinds every 5 s. In between the policy that stamps
    TrainingJobs first does nothing, then refuses all of them: only a stamp proves that it knows the kind.
    """
    template = {"spec": {"containers": [{"name": "main", "image": "probe"}]}}
    spec = {"gpusPerReplica": 1, "template": template}
    job = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": "probe"}, "spec": spec}
    while True:
        try:
            taken = await api.create(f"/apis/{API_VERSION}/namespaces/default/trainingjobs", job, {"dryRun": "All"})
        except Outage:
            pass
        else:
            if ANNOTATION_USER in (taken["metadata"].get("annotations") or {}):
                return
        await asyncio.sleep(_PROPAGATION_S)


async def wait_until_refused(api: Client) -> None:
    """Wait until the admission policies are in force for `api`'s identity. The API server reads them once a second."""
    while not await _is_refused(api):
        await asyncio.sleep(_PROPAGATION_S)


async def wait_until_taken(api: Client) -> None:
    """Wait until the policy on Coda's keys is not in force. The API server forgets those deleted with it, too."""
    while await _is_refused(api):
        await asyncio.sleep(_PROPAGATION_S)


async def _is_refused(api: Client) -> bool:
    """Whether a policy keeps `api`'s identity from writing what only Coda may write. Raises Rejected."""
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "probe", "labels": {LABEL_JOB_UID: "nobody"}},
        "spec": {"containers": [{"name": "probe", "image": "probe"}]},
    }
    try:
        await api.create("/api/v1/namespaces/default/pods", pod, {"dryRun": "All"})
    except Rejected as error:
        if "coda-reserved-keys" in str(error):
            return True
        if error.status != 403:
            raise
    return False


async def create_pod(api: Client, pod: Json) -> None:
    """Create a pod as soon as its service account is known to admission."""
    while True:
        try:
            await api.create(_PODS, pod)
        except AlreadyExists:
            return
        except Rejected as error:
            if error.status != 403 or "service account" not in str(error):
                raise
            await asyncio.sleep(_PROPAGATION_S)
        else:
            return


async def wait_for_account(api: Client, namespace: str) -> None:
    """Wait until the namespace has its default service account: without it admission refuses every pod there."""
    name = f"{namespace}/default"
    await until(api, f"/api/v1/namespaces/{namespace}/serviceaccounts", lambda by_name: name in by_name)


async def wait_for_nodes(api: Client, count: int) -> None:
    """Wait until `count` nodes are Ready and carry no taint that keeps pods away."""

    def all_usable(by_name: Mapping[str, Json]) -> bool:
        return sum(_holds(node, "Ready") and not node["spec"].get("taints") for node in by_name.values()) >= count

    await until(api, "/api/v1/nodes", all_usable)


async def wait_for_leader(api: Client) -> None:
    """Wait until an extender replica has labelled its pod as the leader's."""
    await until(api, _PODS, bool, query={"labelSelector": f"{LABEL_LEADER}=true"})


def _holds(item: Mapping[str, Any], condition: str) -> bool:
    conditions = item.get("status", {}).get("conditions") or ()
    return any(entry["type"] == condition and entry["status"] == "True" for entry in conditions)
