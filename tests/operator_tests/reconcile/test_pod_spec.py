"""The pods and the Service of a gang: what torchrun reads, where they may run, and what the user wrote stays."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from coda.model import Placement, PlacementState
from coda_operator.reconcile.pod_spec import headless_service, probe_pod, rank_pod

JOB: dict[str, Any] = {
    "metadata": {"name": "bert", "namespace": "nlp", "uid": "u1", "generation": 1},
    "spec": {
        "replicas": 2,
        "gpusPerReplica": 8,
        "template": {
            "metadata": {"labels": {"team": "nlp"}},
            "spec": {
                "containers": [
                    {"name": "main", "image": "bert:1", "resources": {"limits": {"memory": "64Gi"}}},
                    {"name": "logs", "image": "logs:1"},
                ]
            },
        },
    },
}
PLAN = Placement(
    attempt=3,
    plan_id="p3",
    epoch=1,
    generation=1,
    state=PlacementState.RELEASED,
    nodes=("n1", "n2"),
    cpus_per_replica=12,
    committed_s=0.0,
    bind_deadline_s=60.0,
)


def with_affinity(terms: list[dict[str, Any]]) -> dict[str, Any]:
    job = copy.deepcopy(JOB)
    job["spec"]["template"]["spec"]["affinity"] = {
        "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    }
    return job


def terms_of(pod: dict[str, Any]) -> list[dict[str, Any]]:
    node_affinity = pod["spec"]["affinity"]["nodeAffinity"]
    terms: list[dict[str, Any]] = node_affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    return terms


def test_a_rank_is_named_by_its_attempt_and_pinned_to_its_node() -> None:
    pod = rank_pod(JOB, PLAN, 1)
    assert pod["metadata"]["name"] == "bert-3-1"
    assert terms_of(pod) == [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n2"]}]}]
    assert pod["metadata"]["annotations"]["coda.scheduler/plan"] == "p3"
    assert "coda.scheduler/user" not in pod["metadata"]["annotations"]
    assert pod["metadata"]["labels"]["team"] == "nlp"


def test_a_pod_carries_the_stamp_of_its_job() -> None:
    job = copy.deepcopy(JOB)
    job["metadata"]["annotations"] = {"coda.scheduler/user": "ann", "other": "1"}
    job["spec"]["template"]["metadata"]["annotations"] = {"mine": "2"}
    notes = rank_pod(job, PLAN, 1)["metadata"]["annotations"]
    assert notes == {"mine": "2", "coda.scheduler/user": "ann", "coda.scheduler/plan": "p3"}


def test_the_pin_is_added_to_every_term_the_user_wrote() -> None:
    zones = [{"matchExpressions": [{"key": "zone", "operator": "In", "values": [zone]}]} for zone in ("a", "b")]
    terms = terms_of(rank_pod(with_affinity(zones), PLAN, 0))
    assert [term["matchExpressions"] for term in terms] == [zone["matchExpressions"] for zone in zones]
    assert all(term["matchFields"][0]["values"] == ["n1"] for term in terms)


def test_torchrun_finds_its_gang_in_the_environment() -> None:
    env = {entry["name"]: entry["value"] for entry in rank_pod(JOB, PLAN, 1)["spec"]["containers"][0]["env"]}
    master = "attempt-3-rank-0.bert.nlp.svc"
    assert env == {
        "MASTER_ADDR": master,
        "MASTER_PORT": "29500",
        "WORLD_SIZE": "2",
        "RANK": "1",
        "PET_NNODES": "2",
        "PET_NODE_RANK": "1",
        "PET_NPROC_PER_NODE": "8",
        "PET_MASTER_ADDR": master,
        "PET_MASTER_PORT": "29500",
    }


def test_what_the_user_set_in_the_environment_stays() -> None:
    job = copy.deepcopy(JOB)
    job["spec"]["template"]["spec"]["containers"][0]["env"] = [{"name": "MASTER_PORT", "value": "1234"}]
    env = rank_pod(job, PLAN, 0)["spec"]["containers"][0]["env"]
    assert [entry["value"] for entry in env if entry["name"] == "MASTER_PORT"] == ["1234"]


def test_only_the_main_container_gets_gpus_and_cores_and_keeps_its_memory() -> None:
    main, logs = rank_pod(JOB, PLAN, 0)["spec"]["containers"]
    assert main["resources"] == {
        "requests": {"cpu": "12", "nvidia.com/gpu": "8"},
        "limits": {"cpu": "12", "nvidia.com/gpu": "8", "memory": "64Gi"},
    }
    assert "resources" not in logs


@pytest.mark.parametrize(
    ("spec", "marked"),
    [
        pytest.param({"cpusPerReplica": "auto"}, True, id="agents on all its nodes are to measure"),
        pytest.param({"cpusPerReplica": "auto", "replicas": 1}, False, id="one rank is measured anyway"),
        pytest.param({"cpusPerReplica": "4"}, False, id="its user chose its cores"),
        pytest.param({}, False, id="nobody said"),
    ],
)
def test_the_ranks_of_a_gang_that_is_tuned_say_so(spec: dict[str, Any], marked: bool) -> None:
    pod = rank_pod(JOB | {"spec": JOB["spec"] | spec}, PLAN, 0)
    assert (pod["metadata"]["annotations"].get("coda.scheduler/cores") == "auto") is marked


def test_building_pods_leaves_the_job_as_it_is() -> None:
    before = copy.deepcopy(JOB)
    rank_pod(JOB, PLAN, 0)
    probe_pod(JOB, attempt=1, cores=4)
    assert before == JOB


def test_the_probe_is_not_pinned_and_takes_no_name() -> None:
    pod = probe_pod(JOB, attempt=1, cores=4)
    assert "affinity" not in pod["spec"]
    assert "name" not in pod["metadata"]


def test_the_service_publishes_rank_zero_alone_before_it_is_ready() -> None:
    service = headless_service(JOB)
    selected = [
        rank
        for rank in (0, 1)
        if service["spec"]["selector"].items() <= rank_pod(JOB, PLAN, rank)["metadata"]["labels"].items()
    ]
    assert selected == [0]
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"] is True
    assert service["metadata"]["ownerReferences"][0]["uid"] == "u1"
