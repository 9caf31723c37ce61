"""The roles of the parts grant what the parts use, and nothing else. `test_installation` runs them under these."""

from __future__ import annotations

import pytest

from coda_lab.host.paths import manifests
from coda_lab.install import objects_in

GRANTED = {
    "coda-operator": {
        "trainingjobs": "delete get list patch watch",
        "trainingjobs/status": "patch",
        "pods": "create delete get list patch watch",
        "pods/log": "get",
        "services": "create delete get",
        "pods/resize": "patch",
        "nodes": "list watch",
        "resourcequotas": "list",
        "persistentvolumeclaims": "get",
        "persistentvolumes": "get",
        "storageclasses": "get",
        "nodeprofiles": "list watch",
        "virtualclusters": "list watch",
        "events": "create",
        "leases": "create",
        "leases coda-operator": "get update",
        "leases coda-planner": "get",
        "configmaps": "create list watch",
        "configmaps coda-pool-nodes-0": "get patch",
        "configmaps coda-pool-nodes-1": "get patch",
        "configmaps coda-run-times": "get patch",
        "secrets": "create",
        "secrets coda-authority": "get update",
        "secrets coda-extender-tls": "get update",
        "secrets coda-scheduler-tls": "get update",
        "daemonsets": "get",
    },
    "coda-extender": {
        "trainingjobs": "get list watch",
        "trainingjobs/status": "patch",
        "virtualclusters": "list watch",
        "arrayquotas": "list watch",
        "nodeprofiles": "list watch",
        "virtualclusters/status": "patch",
        "arrayquotas/status": "patch",
        "pods": "list patch watch",
        "pods/eviction": "create",
        "jobs": "list watch",
        "nodes": "list watch",
        "resourcequotas": "list watch",
        "events": "create",
        "leases": "create",
        "leases coda-planner": "get update",
        "configmaps": "create",
        "configmaps coda-run-times": "get",
        "configmaps coda-returned-places": "get patch",
    },
    "coda-agent": {
        "pods": "list watch",
        "namespaces": "list watch",
        "nodes": "get",
        "resourceslices": "list",
        "resourceclaims": "get",
        "trainingjobs": "get list watch",
        "trainingjobs/status": "patch",
        "nodeprofiles": "create get patch",
        "nodeprofiles/status": "patch",
        "events": "create",
    },
}


@pytest.mark.parametrize("part", GRANTED)
def test_a_part_may_do_what_it_does(part: str) -> None:
    found: dict[str, set[str]] = {}
    for item in objects_in(manifests()):
        if item["kind"] in ("Role", "ClusterRole") and item["metadata"]["name"] == part:
            for rule in item["rules"]:
                for resource in rule["resources"]:
                    for name in rule.get("resourceNames", [""]):
                        found.setdefault(f"{resource} {name}".strip(), set()).update(rule["verbs"])
    assert {resource: " ".join(sorted(verbs)) for resource, verbs in found.items()} == GRANTED[part]


def test_no_role_grants_everything_of_anything() -> None:
    rules = [rule for item in objects_in(manifests()) for rule in item.get("rules", ())]
    assert not [rule for rule in rules for field in ("apiGroups", "resources", "verbs") if "*" in rule.get(field, ())]
