"""Nodes that `coda doctor` calls suspect are those that the operator does."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coda_cli.doctor.finding import Level
from coda_cli.doctor.findings import findings
from coda_kube.failures.node_xids import SILENT_S
from coda_kube.objects.json_types import Json
from coda_kube.objects.quantities import time_from_seconds
from tests.cli.doctor.test_findings import NOW_S, WELL, profile, told

ECC = {"node": "n1", "reason": "GPU ECC error", "retry": "other-node", "explicit": True}


def failed_of_four_users(*, ago_s: float = 60.0) -> list[Json]:
    failure = ECC | {"time": time_from_seconds(NOW_S - ago_s)}
    return [
        {"metadata": {"uid": user, "name": user, "namespace": user}, "status": {"failure": failure}} for user in "abcd"
    ]


def test_a_node_whose_gpus_failed_four_users_is_named_with_the_way_to_trust_it_again() -> None:
    jobs = failed_of_four_users()
    assert told(replace(WELL, jobs=jobs[:3])) == []
    (found,) = [one for one in findings(replace(WELL, jobs=jobs)) if one.level is not Level.GOOD]
    assert "nothing is placed on n1 until " in found.says
    assert found.says.endswith("GPU ECC error in jobs of 4 users")
    assert "kubectl annotate node n1 --overwrite coda.scheduler/cleared=" in found.fix


def test_a_node_that_took_the_name_of_one_whose_gpus_failed_is_not_named() -> None:
    assert WELL.nodes is not None
    made = {"creationTimestamp": time_from_seconds(NOW_S - 10)}
    nodes = [node | {"metadata": node["metadata"] | made} for node in WELL.nodes]
    assert told(replace(WELL, jobs=failed_of_four_users(), nodes=nodes)) == []


def test_a_node_whose_agent_saw_a_broken_gpu_is_named() -> None:
    now = time_from_seconds(NOW_S - 60)
    seen = {"time": now, "xids": [{"gpu": "GPU-1", "xid": 79, "time": now, "podUIDs": []}]}
    profiles = [{"metadata": {"name": "n1"}, "status": seen}]
    found = [one.says for one in findings(replace(WELL, jobs=[], profiles=profiles)) if one.about == "suspect GPUs"]
    assert [says.partition(": ")[2] for says in found] == [
        "its agent saw Xid 79 on GPU-1: the GPU has fallen off the bus"
    ]


@pytest.mark.parametrize(
    ("settings", "ago_s", "suspects"),
    [
        ({}, 60.0, 1),
        ({"CODA_CORDON_SHARE": "0"}, 60.0, 0),
        ({}, 7200.0, 0),
        ({"CODA_CORDON_S": "14400"}, 7200.0, 1),
        ({"CODA_CORDON_S": "soon"}, 60.0, 1),
    ],
)
def test_the_operators_own_settings_count(settings: dict[str, str], ago_s: float, suspects: int) -> None:
    seen = replace(WELL, jobs=failed_of_four_users(ago_s=ago_s), operator_settings=settings)
    assert len([one for one in told(seen) if one[1] == "suspect GPUs"]) == suspects


@pytest.mark.parametrize(("silent_s", "suspects"), [(0.0, 0), (SILENT_S, 1)])
def test_only_an_agent_that_lives_belies_what_logs_say(silent_s: float, suspects: int) -> None:
    watching = profile("n1", written_s=NOW_S - silent_s, watchesXids=True)
    seen = replace(WELL, jobs=failed_of_four_users(), profiles=[watching, profile("n2")])
    assert len([one for one in told(seen) if one[1] == "suspect GPUs"]) == suspects
