"""What accounts and roles of the chart may do, as `kubectl auth can-i --list` says."""

from __future__ import annotations

import contextlib
import re
import subprocess
from collections.abc import AsyncIterator

from coda_kube.api.client import Client
from coda_lab.install import apply_all
from coda_lab.local.cluster import LocalCluster
from tests.deploy.charts import NAMESPACE, Helm, Json

RBAC = "rbac.authorization.k8s.io"
ROLES = {
    "ServiceAccount": "/api/v1/namespaces/{namespace}/serviceaccounts",
    "Role": f"/apis/{RBAC}/v1/namespaces/{{namespace}}/roles",
    "RoleBinding": f"/apis/{RBAC}/v1/namespaces/{{namespace}}/rolebindings",
    "ClusterRole": f"/apis/{RBAC}/v1/clusterroles",
    "ClusterRoleBinding": f"/apis/{RBAC}/v1/clusterrolebindings",
}
HOOKS = ("uninstall", "definitions")


def account_of(part: str) -> str:
    return f"system:serviceaccount:{NAMESPACE}:coda-{part}"


def accounts_of_hook(helm: Helm, part: str) -> list[Json]:
    """A hook's account and what it is granted: on a cluster they exist only while it runs."""
    return [
        {**item, "metadata": {"namespace": NAMESPACE} | item["metadata"]}
        for item in helm.render()
        if item["metadata"]["name"] == f"coda-{part}" and item["kind"] in ROLES
    ]


@contextlib.asynccontextmanager
async def applied(admin: Client, items: list[Json]) -> AsyncIterator[None]:
    await apply_all(admin, items)
    try:
        yield
    finally:
        for item in items:
            metadata = item["metadata"]
            collection = ROLES[item["kind"]].format(namespace=metadata["namespace"])
            await admin.delete(f"{collection}/{metadata['name']}")


def own(cluster: LocalCluster, account: str, namespace: str) -> list[str]:
    """What an account may do there, and not every account."""
    return sorted(may_do(cluster, account, namespace) - may_do(cluster, "system:serviceaccount:x:y", namespace))


def may_do(cluster: LocalCluster, account: str, namespace: str) -> set[str]:
    words = ("auth", "can-i", "--list", f"--as={account}", f"--namespace={namespace}", "--no-headers")
    ended = subprocess.run([*cluster.kubectl, *words], check=True, capture_output=True, text=True)
    return {_in_order(re.sub(r" {2,}", "  ", line.strip())) for line in ended.stdout.splitlines()}


def _in_order(line: str) -> str:
    """With its verbs sorted: the API server lists those of several roles in changing order."""
    what, bracket, verbs = line.rpartition("[")
    return what + bracket + " ".join(sorted(verbs.rstrip("]").split())) + "]"
