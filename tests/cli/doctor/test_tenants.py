"""What `coda doctor` says of tenants that own more than there is."""

from __future__ import annotations

from dataclasses import replace

from coda_cli.doctor.finding import Level
from coda_cli.doctor.findings import findings
from coda_kube.objects.json_types import Json
from tests.cli.doctor.test_findings import WELL, told


def tenant(name: str, reason: str, message: str) -> Json:
    condition = {"type": "Oversubscribed", "status": "True", "reason": reason, "message": message}
    return {"metadata": {"name": name}, "status": {"conditions": [condition]}}


def test_tenants_that_own_more_than_the_cluster_has_are_one_line() -> None:
    says = "the top-level VirtualClusters own 32 GPUs together, and the cluster has 16 GPUs"
    other = tenant("part", "ParentOwnsLess", "another matter")
    assert told(replace(WELL, tenants=[other, {"metadata": {"name": "new"}}])) == []
    seen = replace(WELL, tenants=[other, *(tenant(name, "ClusterHasLess", says) for name in "ab")])
    (found,) = [one for one in findings(seen) if one.level is not Level.GOOD]
    assert (found.level, found.about, found.says) == (Level.NOTE, "quotas", says)
    assert "kubectl get vc" in found.fix
