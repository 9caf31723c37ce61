"""DaemonSets whose makers the policies would refuse once they refuse: operators of networks, DNS and storage.

Such a DaemonSet runs on. Its operator can change nothing of it any more, so an upgrade of the platform hangs.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.deploy.charts import Helm, Json
from tests.deploy.test_policy_action import ALL, Cluster, action, cluster, refused

pytestmark = pytest.mark.e2e
__all__ = ["cluster"]  # a fixture

TAINT = {"key": "coda.scheduler/pool", "operator": "Exists"}


def daemon_set(*writers: str, namespace: str = "network", tolerates: Json = ALL) -> Json:
    """A DaemonSet whose pods each of these programs, by its name in managedFields, has written about."""
    wrote: Json = {"f:spec": {"f:template": {"f:spec": {"f:containers": {}}}}}
    managers = [
        {"manager": name, "operation": "Update", "fieldsType": "FieldsV1", "fieldsV1": wrote} for name in writers
    ]
    counts: Json = {"f:status": {"f:numberReady": {}}}
    managers.append({"manager": "kube-controller-manager", "subresource": "status", "fieldsV1": counts})
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": "d", "namespace": namespace, "managedFields": managers},
        "spec": {"template": {"spec": {"tolerations": [tolerates]}}},
    }


def said(who: str) -> str:
    return f"network/d: a DaemonSet that tolerates the taint coda.scheduler/pool, when {who} changes it"


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        pytest.param(daemon_set("dns-operator"), [said("dns-operator")], id="an operator's"),
        pytest.param(daemon_set("operator", tolerates=TAINT), [said("operator")], id="it names the taint"),
        pytest.param(daemon_set("kubectl-rollout", "operator"), [said("operator")], id="restarted by hand"),
        pytest.param(daemon_set("b", "a"), [said("a, b")], id="of two programs"),
        pytest.param(daemon_set(), [said("its maker")], id="nobody knows whose"),
        pytest.param(daemon_set("helm"), [], id="Helm's: an administrator's, or he reads the refusal"),
        pytest.param(
            daemon_set("helm3", "helm.exe", "terraform-provider-helm_v2.17.0_x5"), [], id="Helm's other names"
        ),
        pytest.param(daemon_set("HashiCorp", "Terraform", "oc.exe"), [], id="Terraform's other names"),
        pytest.param(daemon_set("helmsman"), [said("helmsman")], id="whose name begins alike"),
        pytest.param(daemon_set("kubectl-client-side-apply", "oc"), [], id="made by hand"),
        pytest.param(daemon_set("operator", tolerates={"key": "gpu", "operator": "Exists"}), [], id="another taint"),
        pytest.param(daemon_set("operator", namespace="gpu-operator"), [], id="a namespace of the platform"),
        pytest.param(daemon_set("operator", namespace="kube-system"), [], id="the cluster's own namespace"),
    ],
)
async def test_the_notes_list_daemon_sets_whose_programs_the_policies_would_refuse(
    helm: Helm, cluster: Cluster, tmp_path: Path, found: Json, expected: list[str]
) -> None:
    cluster.objects["daemonsets"] = [found]
    assert await refused(helm, cluster, tmp_path) == expected


async def test_the_policies_warn_while_an_operator_could_not_change_its_daemon_set(
    helm: Helm, cluster: Cluster
) -> None:
    """Its pods are the DaemonSet controller's, and pass."""
    cluster.objects["daemonsets"] = [daemon_set("dns-operator")]
    assert await action(helm, cluster) == ["Warn", "Audit"]
    cluster.objects["daemonsets"] = [daemon_set("dns-operator", namespace="gpu-operator")]
    assert await action(helm, cluster) == ["Deny"]
