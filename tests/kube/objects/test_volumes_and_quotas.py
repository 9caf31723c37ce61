"""What volumes and scoped quotas say of a gang before it is launched."""

from __future__ import annotations

from typing import Any

import pytest

from coda.model.quota_scopes import PodScopes
from coda_kube.objects.pod_requests import MOST_HOST_PORTS, pod_amounts, quota_use
from coda_kube.objects.pods.node_terms import constraints_from_request
from coda_kube.objects.quota_scopes import counts_pod, shortage
from coda_kube.objects.volumes import (
    MOST_TERMS,
    claims_of,
    claims_with_terms,
    problem_of,
    refusal_of,
    terms_with_volumes,
)


def term(value: str, key: str = "zone") -> dict[str, Any]:
    return {"matchExpressions": [{"key": key, "operator": "In", "values": [value]}]}


def volume(*zones: str) -> dict[str, Any]:
    return {"spec": {"nodeAffinity": {"required": {"nodeSelectorTerms": [term(zone) for zone in zones]}}}}


def test_every_term_is_joined_with_every_term_of_a_volume() -> None:
    assert terms_with_volumes([], [volume("a")]) == [term("a")]
    assert terms_with_volumes([term("x", "rack")], []) == [term("x", "rack")]
    joined = terms_with_volumes([term("x", "rack"), term("y", "rack")], [volume("a", "b")])
    assert [[part["values"][0] for part in one["matchExpressions"]] for one in joined] == [
        ["x", "a"],
        ["x", "b"],
        ["y", "a"],
        ["y", "b"],
    ]
    many = [term(str(number)) for number in range(MOST_TERMS)]
    assert terms_with_volumes(many, [volume("a", "b")]) == many


@pytest.mark.parametrize(
    ("claim", "mode", "reason"),
    [
        pytest.param(None, None, "VolumeClaimMissing", id="missing"),
        pytest.param({"metadata": {}, "status": {"phase": "Bound"}}, None, None, id="bound"),
        pytest.param({"metadata": {}, "status": {"phase": "Pending"}}, "Immediate", "VolumeClaimUnbound", id="unbound"),
        pytest.param({"metadata": {}, "status": {"phase": "Pending"}}, "WaitForFirstConsumer", None, id="first use"),
        pytest.param({"metadata": {}, "status": {"phase": "Pending"}}, None, "VolumeClaimUnbound", id="no class"),
        pytest.param({"metadata": {}, "status": {"phase": "Lost"}}, None, "VolumeClaimLost", id="lost"),
        pytest.param(
            {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}, "status": {"phase": "Bound"}},
            None,
            "VolumeClaimLost",
            id="going",
        ),
    ],
)
def test_why_a_claim_keeps_a_job_waiting(claim: dict[str, Any] | None, mode: str | None, reason: str | None) -> None:
    found = problem_of("data", claim, None if mode is None else {"volumeBindingMode": mode})
    assert (found[0] if found else None) == reason


@pytest.mark.parametrize(
    ("modes", "replicas", "is_refused"),
    [
        (["ReadWriteOncePod"], 1, False),
        (["ReadWriteOncePod"], 2, True),
        (["ReadWriteOnce"], 2, False),
        (None, 2, False),
    ],
)
def test_a_claim_for_one_pod_is_refused_for_a_gang(modes: list[str] | None, replicas: int, is_refused: bool) -> None:
    said = "PersistentVolumeClaim data is ReadWriteOncePod: one pod mounts it, and the job has 2 ranks"
    claim = {"metadata": {}, "spec": {"accessModes": modes}}
    assert refusal_of("data", claim, replicas) == (said if is_refused else None)
    assert refusal_of("data", None, replicas) is None


def test_terms_that_no_volume_brings_name_no_claim() -> None:
    """A webhook may have given the pods an affinity, whatever they mount."""
    term = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}
    assert constraints_from_request({"nodeSelectorTerms": [term]}).claims == ()
    assert constraints_from_request({"nodeSelectorTerms": [term], "volumeClaims": ["a", "b"]}).claims == ("a", "b")
    volumes: dict[str, Any] = {
        "nfs": {"spec": {"nfs": {}}},
        "b": {"metadata": {"labels": {"topology.kubernetes.io/zone": "a"}}, "spec": {}},
    }
    local = {"spec": {"nodeAffinity": {"required": {"nodeSelectorTerms": [term]}}}}
    assert claims_with_terms(volumes | {"a": local}) == ["a", "b"]


def test_which_claims_a_pod_mounts() -> None:
    volumes = [{"persistentVolumeClaim": {"claimName": name}} for name in ("b", "a", "b")] + [{"emptyDir": {}}]
    assert claims_of({"volumes": volumes}) == ("a", "b")
    assert claims_of({}) == ()


def quota(name: str = "q", *, left: int = 0, **spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": name},
        "spec": {"hard": {"pods": "10"}} | spec,
        "status": {"used": {"pods": str(10 - left)}},
    }


HIGH = {"scopeName": "PriorityClass", "operator": "In", "values": ["high"]}


@pytest.mark.parametrize(
    ("item", "lacks"),
    [
        pytest.param(quota(left=3), False, id="no scopes: the planner knows it"),
        pytest.param(quota(scopes=["NotTerminating"], left=3), True, id="too few"),
        pytest.param(quota(scopes=["NotTerminating"], left=4), False, id="enough"),
        pytest.param(quota(scopes=["Terminating"]), False, id="another scope"),
        pytest.param(quota(scopes=["NotBestEffort"]), True, id="ranks ask for something"),
        pytest.param(quota(scopes=["BestEffort"]), False, id="not for nothing"),
        pytest.param(quota(scopeSelector={"matchExpressions": [HIGH]}), True, id="its priority class"),
        pytest.param(quota(scopeSelector={"matchExpressions": [HIGH | {"operator": "NotIn"}]}), False, id="not it"),
        pytest.param(quota(scopes=["PriorityClass"]), True, id="any priority class"),
        pytest.param(quota(scopes=["NotTerminating", "Terminating"]), False, id="all scopes must match"),
        pytest.param(quota(scopes=["FromTheFuture"]), False, id="unknown"),
    ],
)
def test_a_scoped_quota_is_asked_for_the_whole_gang(item: dict[str, Any], lacks: bool) -> None:
    pod = PodScopes(priority_class="high")
    found = shortage([item], pod, {"pods": "1", "count/pods": "1"}, 4)
    assert (found is not None) is lacks
    if found:
        assert found.startswith("exceeded quota: q: the gang asks for 4 pods, ")


@pytest.mark.parametrize(
    ("operator", "counts"), [("In", False), ("NotIn", True), ("Exists", False), ("DoesNotExist", True)]
)
def test_a_pod_without_a_class_is_in_no_list_of_classes(operator: str, counts: bool) -> None:
    values = ["high"] if operator.endswith("In") else []
    selector = {"matchExpressions": [{"scopeName": "PriorityClass", "operator": operator, "values": values}]}
    assert counts_pod({"scopeSelector": selector}, {"spec": {}}) is counts


def test_huge_pages_count_under_both_of_their_names() -> None:
    resources = {"requests": {"hugepages-2Mi": "4Mi"}, "limits": {"hugepages-2Mi": "4Mi"}}
    use = quota_use({"spec": {"containers": [{"name": "main", "resources": resources}]}})
    assert use["hugepages-2Mi"] == use["requests.hugepages-2Mi"] == str(4 << 20)


def test_host_ports_are_amounts_of_a_pod_but_of_no_quota() -> None:
    ports = [{"containerPort": 80, "hostPort": 8080}, {"containerPort": 53, "hostPort": 53, "protocol": "UDP"}]
    sidecar = {"name": "s", "restartPolicy": "Always", "ports": [{"containerPort": 1, "hostPort": 1}]}
    once = {"name": "o", "ports": [{"containerPort": 2, "hostPort": 2}]}
    pod = {"spec": {"containers": [{"name": "main", "ports": ports}], "initContainers": [sidecar, once]}}
    assert pod_amounts(pod) == {"hostPort/1-TCP": 1, "hostPort/53-UDP": 1, "hostPort/8080-TCP": 1}
    assert quota_use(pod) == {"pods": "1", "count/pods": "1"}


def test_of_many_host_ports_only_some_are_counted() -> None:
    ports = [{"containerPort": number, "hostPort": number} for number in range(1, 1000)]
    assert len(pod_amounts({"spec": {"containers": [{"name": "main", "ports": ports}]}})) == MOST_HOST_PORTS
