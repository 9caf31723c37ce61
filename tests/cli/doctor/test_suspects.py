"""Nodes that `coda doctor` calls suspect are those that the operator does."""

from __future__ import annotations

from dataclasses import replace

from coda_cli.doctor.finding import Level
from coda_cli.doctor.findings import findings
from coda_kube.objects.quantities import time_from_seconds
from tests.cli.doctor.test_findings import NOW_S, WELL, told


def test_a_node_whose_gpus_failed_four_users_is_named_with_the_way_to_trust_it_again() -> None:
    failure = {"node": "n1", "reason": "GPU ECC error", "retry": "other-node", "explicit": True}
    failure["time"] = time_from_seconds(NOW_S - 60)
    jobs = [
        {"metadata": {"uid": user, "name": user, "namespace": user}, "status": {"failure": failure}} for user in "abcd"
    ]
    assert told(replace(WELL, jobs=jobs[:3])) == []
    (found,) = [one for one in findings(replace(WELL, jobs=jobs)) if one.level is not Level.GOOD]
    assert "nothing is placed on n1 until " in found.says
    assert found.says.endswith("GPU ECC error in jobs of 4 users")
    assert "kubectl annotate node n1 --overwrite coda.scheduler/cleared=" in found.fix


def test_a_node_whose_agent_saw_a_broken_gpu_is_named() -> None:
    now = time_from_seconds(NOW_S - 60)
    seen = {"time": now, "xids": [{"gpu": "GPU-1", "xid": 79, "time": now, "podUIDs": []}]}
    profiles = [{"metadata": {"name": "n1"}, "status": seen}]
    found = [one.says for one in findings(replace(WELL, jobs=[], profiles=profiles)) if one.about == "suspect GPUs"]
    assert [says.partition(": ")[2] for says in found] == [
        "its agent saw Xid 79 on GPU-1: the GPU has fallen off the bus"
    ]
