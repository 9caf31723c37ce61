"""Where the zone labels of volumes, and the topologies of their classes, let a pod run: as kube-scheduler has it."""

from __future__ import annotations

from typing import Any

import pytest

from coda.nodes.eligibility import accepts
from coda_kube.objects.pods.node_terms import constraints_from_json
from coda_kube.objects.volumes import terms_with_volumes
from tests.builders import node

ZONE, REGION = "topology.kubernetes.io/zone", "topology.kubernetes.io/region"
OLD_ZONE, OLD_REGION = "failure-domain.beta.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/region"


def volume(labels: dict[str, str], **affinity: str) -> dict[str, Any]:
    said = [{"key": ZONE, "operator": "In", "values": [value]} for value in affinity.values()]
    spec = {"nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": said}]}}} if said else {}
    return {"metadata": {"name": "pv", "labels": labels}, "spec": spec}


def storage_class(*topologies: dict[str, list[str]], provisioner: str = "ebs.csi.aws.com") -> dict[str, Any]:
    allowed = [
        {"matchLabelExpressions": [{"key": key, "values": values} for key, values in one.items()]} for one in topologies
    ]
    return {"metadata": {"name": "gp3"}, "provisioner": provisioner, "allowedTopologies": allowed}


@pytest.mark.parametrize(
    ("volumes", "labels", "is_allowed"),
    [
        pytest.param([volume({ZONE: "a"})], {ZONE: "a"}, True, id="its zone"),
        pytest.param([volume({ZONE: "a"})], {ZONE: "b"}, False, id="another zone"),
        pytest.param([volume({ZONE: "a__b"})], {ZONE: "b"}, True, id="one of its zones"),
        pytest.param([volume({ZONE: "a__b"})], {ZONE: "c"}, False, id="none of its zones"),
        pytest.param([volume({ZONE: "a__"})], {ZONE: "c"}, True, id="a list that cannot be read counts for nothing"),
        pytest.param([volume({ZONE: "a"})], {}, True, id="a node without zone or region"),
        pytest.param([volume({ZONE: "a"})], {"zone": "b"}, True, id="a label of another name"),
        pytest.param([volume({ZONE: "a"})], {REGION: "r"}, False, id="a node with a region and no zone"),
        pytest.param([volume({ZONE: "a", REGION: "r"})], {ZONE: "a", REGION: "r"}, True, id="zone and region"),
        pytest.param([volume({ZONE: "a", REGION: "r"})], {ZONE: "a", REGION: "s"}, False, id="another region"),
        pytest.param([volume({OLD_ZONE: "a"})], {ZONE: "a"}, True, id="a beta label, a new node"),
        pytest.param([volume({OLD_ZONE: "a"})], {ZONE: "b"}, False, id="a beta label, a new node elsewhere"),
        pytest.param([volume({OLD_ZONE: "a"})], {OLD_ZONE: "b", ZONE: "a"}, False, id="the beta label first"),
        pytest.param([volume({ZONE: "a"})], {OLD_ZONE: "a"}, False, id="a new label, an old node"),
        pytest.param([volume({OLD_ZONE: "a", OLD_REGION: "r"})], {ZONE: "a", REGION: "r"}, True, id="both beta labels"),
        pytest.param([volume({ZONE: "a__b"}), volume({ZONE: "b__c"})], {ZONE: "b"}, True, id="common to two"),
        pytest.param([volume({ZONE: "a__b"}), volume({ZONE: "b__c"})], {ZONE: "a"}, False, id="not common to two"),
        pytest.param([volume({ZONE: "a"}), volume({ZONE: "b"})], {ZONE: "a"}, False, id="two far apart"),
        pytest.param([volume({ZONE: "a"}, zone="a")], {}, False, id="the affinity counts besides"),
        pytest.param([storage_class({ZONE: ["a"]})], {ZONE: "a"}, True, id="a topology"),
        pytest.param([storage_class({ZONE: ["a"]})], {ZONE: "b"}, False, id="no topology"),
        pytest.param([storage_class({ZONE: ["a"]})], {}, False, id="a topology, and a node without zone"),
        pytest.param([storage_class({ZONE: ["a"], "rack": ["1"]})], {ZONE: "a"}, False, id="half a topology"),
        pytest.param([storage_class({ZONE: ["a"]}, {ZONE: ["b"]})], {ZONE: "b"}, True, id="the second topology"),
        pytest.param([storage_class({}, {ZONE: ["b"]})], {ZONE: "a"}, False, id="an empty topology allows nothing"),
        pytest.param([storage_class()], {ZONE: "b"}, True, id="any topology"),
        pytest.param(
            [storage_class({ZONE: ["a"]}, provisioner="kubernetes.io/no-provisioner")],
            {ZONE: "b"},
            True,
            id="nobody makes its volumes",
        ),
    ],
)
def test_where_volumes_let_a_pod_run(volumes: list[dict[str, Any]], labels: dict[str, str], is_allowed: bool) -> None:
    constraints = constraints_from_json({}, tuple(terms_with_volumes([], volumes)))
    assert accepts(constraints, node("n1", labels=labels)) is is_allowed


def test_what_several_volumes_say_is_said_once() -> None:
    """Jobs with many terms are judged less often."""
    assert len(terms_with_volumes([], [storage_class({ZONE: ["a"]}, {ZONE: ["b"]})] * 8)) == 2
    assert len(terms_with_volumes([], [volume({OLD_ZONE: "a", OLD_REGION: "r"})] * 8)) == 5
    assert len(terms_with_volumes([], [volume({ZONE: "a"}, zone="a")] * 8)) == 1
