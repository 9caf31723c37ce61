from __future__ import annotations

import pytest

from coda.model import Node
from coda.model.constraints import NodeConstraints, NodeTerm, Requirement, Taint, Toleration
from coda.model.trial_run import TRIAL_TAINT
from coda.nodes import Exclusion, accepts, exclusion, is_blocked, tolerates
from tests.builders import node

TAINT = Taint(key="pool", value="gold")
PRESSURE = Taint(key="node.kubernetes.io/memory-pressure")


@pytest.mark.parametrize(
    ("toleration", "taint", "expected"),
    [
        pytest.param(None, TAINT, False, id="nothing tolerates nothing"),
        pytest.param(None, Taint(key="pool", effect="PreferNoSchedule"), True, id="PreferNoSchedule keeps nobody out"),
        pytest.param(None, Taint(key="pool", effect="NoExecute"), False, id="NoExecute keeps out too"),
        pytest.param(Toleration(key="pool", value="gold"), TAINT, True, id="equal key and value"),
        pytest.param(Toleration(key="pool", value="lead"), TAINT, False, id="another value"),
        pytest.param(Toleration(key="lake", value="gold"), TAINT, False, id="another key"),
        pytest.param(Toleration(key="pool", operator="", value="gold"), TAINT, True, id="no operator means Equal"),
        pytest.param(Toleration(key="pool", operator="Exists"), TAINT, True, id="Exists covers every value"),
        pytest.param(Toleration(operator="Exists"), TAINT, True, id="Exists without key covers all"),
        pytest.param(Toleration(key="pool", operator="Exists", effect="NoSchedule"), TAINT, True, id="same effect"),
        pytest.param(Toleration(key="pool", operator="Exists", effect="NoExecute"), TAINT, False, id="another effect"),
        pytest.param(
            Toleration(key="pool", operator="Gt", value="1"), Taint(key="pool", value="2"), False, id="Gt off"
        ),
        pytest.param(
            Toleration(key="node.kubernetes.io/unschedulable", operator="Exists"),
            Taint(key="node.kubernetes.io/unschedulable"),
            True,
            id="the unschedulable taint is a taint",
        ),
    ],
)
def test_tolerates_as_kube_scheduler_does(toleration: Toleration | None, taint: Taint, expected: bool) -> None:
    assert tolerates(() if toleration is None else (toleration,), taint) is expected


@pytest.mark.parametrize(
    ("toleration", "expected"),
    [
        pytest.param(Toleration(key=TRIAL_TAINT, operator="Exists"), True, id="a trial names it"),
        pytest.param(Toleration(operator="Exists"), False, id="every taint"),
        pytest.param(Toleration(operator="Exists", effect="NoSchedule"), False, id="every NoSchedule"),
    ],
)
def test_nodes_for_trials_take_only_who_names_their_taint(toleration: Toleration, expected: bool) -> None:
    kept = node("n1", taints=(Taint(key=TRIAL_TAINT),))
    assert accepts(NodeConstraints(tolerations=(toleration,)), kept) is expected


def term(operator: str, *values: str, key: str = "size") -> NodeTerm:
    return NodeTerm(labels=(Requirement(key=key, operator=operator, values=values),))


@pytest.mark.parametrize(
    ("one_term", "labels", "expected"),
    [
        pytest.param(term("In", "4", "5"), {"size": "5"}, True, id="In"),
        pytest.param(term("In", "4"), {}, False, id="In needs the label"),
        pytest.param(term("NotIn", "4"), {"size": "5"}, True, id="NotIn"),
        pytest.param(term("NotIn", "5"), {"size": "5"}, False, id="NotIn excludes"),
        pytest.param(term("NotIn", "4"), {}, True, id="NotIn is content without the label"),
        pytest.param(term("Exists"), {"size": ""}, True, id="Exists with an empty value"),
        pytest.param(term("Exists"), {}, False, id="Exists"),
        pytest.param(term("DoesNotExist"), {}, True, id="DoesNotExist"),
        pytest.param(term("DoesNotExist"), {"size": "5"}, False, id="DoesNotExist excludes"),
        pytest.param(term("Gt", "4"), {"size": "5"}, True, id="Gt"),
        pytest.param(term("Gt", "5"), {"size": "5"}, False, id="Gt is strict"),
        pytest.param(term("Gt", "9"), {"size": "10"}, True, id="Gt compares numbers, not text"),
        pytest.param(term("Lt", "-3"), {"size": "-4"}, True, id="Lt with negative numbers"),
        pytest.param(term("Lt", "5"), {"size": "large"}, False, id="Lt of a word"),
        pytest.param(term("Lt", "5"), {}, False, id="Lt needs the label"),
        pytest.param(term("Gt", "5"), {"size": str(2**63)}, False, id="Gt beyond 64 bits"),
        pytest.param(term("Gt", "1", "2"), {"size": "5"}, False, id="Gt with two values selects nothing"),
        pytest.param(term("Near", "5"), {"size": "5"}, False, id="an unknown operator selects nothing"),
        pytest.param(NodeTerm(), {"size": "5"}, False, id="an empty term selects nothing"),
    ],
)
def test_required_node_affinity_selects_by_label(one_term: NodeTerm, labels: dict[str, str], expected: bool) -> None:
    assert accepts(NodeConstraints(terms=(one_term,)), node("n1", labels=labels)) is expected


@pytest.mark.parametrize(
    ("requirement", "expected"),
    [
        pytest.param(Requirement(key="metadata.name", operator="In", values=("n1",)), True, id="In"),
        pytest.param(Requirement(key="metadata.name", operator="In", values=("n2",)), False, id="In another"),
        pytest.param(Requirement(key="metadata.name", operator="NotIn", values=("n2",)), True, id="NotIn"),
        pytest.param(Requirement(key="metadata.name", operator="NotIn", values=("n1",)), False, id="NotIn this"),
        pytest.param(Requirement(key="metadata.name", operator="In", values=("n1", "n2")), False, id="two values"),
        pytest.param(Requirement(key="metadata.uid", operator="In", values=("n1",)), False, id="another field"),
        pytest.param(Requirement(key="metadata.name", operator="Exists"), False, id="another operator"),
    ],
)
def test_match_fields_select_by_name(requirement: Requirement, expected: bool) -> None:
    assert accepts(NodeConstraints(terms=(NodeTerm(fields=(requirement,)),)), node("n1")) is expected


def test_one_term_is_enough_but_all_of_it() -> None:
    both = NodeTerm(labels=(*term("In", "5").labels, *term("Exists", key="ssd").labels))
    assert accepts(NodeConstraints(terms=(term("In", "4"), term("In", "5"))), node("n1", labels={"size": "5"}))
    assert not accepts(NodeConstraints(terms=(both,)), node("n1", labels={"size": "5"}))


@pytest.mark.parametrize(
    ("demand", "one_node", "excluded", "blocked"),
    [
        pytest.param(NodeConstraints(), node("n1"), None, False, id="no demand accepts every node"),
        pytest.param(NodeConstraints(selector={"a": "b"}), node("n1"), Exclusion.SELECTOR, False, id="selector"),
        pytest.param(NodeConstraints(terms=(term("Exists"),)), node("n1"), Exclusion.AFFINITY, False, id="affinity"),
        pytest.param(NodeConstraints(), node("n1", taints=(TAINT,)), Exclusion.TAINT, False, id="taint"),
        pytest.param(
            NodeConstraints(), node("n1", schedulable=False), None, True, id="cordoned is no matter of the demand"
        ),
        pytest.param(NodeConstraints(), node("n1", taints=(PRESSURE,)), None, True, id="a condition's taint passes"),
        *(
            pytest.param(NodeConstraints(), node("n1", taints=(Taint(key=key),)), None, True, id=key)
            for key in (
                "ToBeDeletedByClusterAutoscaler",
                "startup-taint.cluster-autoscaler.kubernetes.io/driver",
                "karpenter.sh/disrupted",
                "node.cilium.io/agent-not-ready",
                "ebs.csi.aws.com/agent-not-ready",
                "node.cloudprovider.kubernetes.io/uninitialized",
                "aws-node-termination-handler/spot-itn",
                "cloud.google.com/impending-node-termination",
            )
        ),
        pytest.param(
            NodeConstraints(),
            node("n1", taints=(Taint(key="DeletionCandidateOfClusterAutoscaler", effect="PreferNoSchedule"),)),
            None,
            False,
            id="a node that may be removed some time takes pods",
        ),
        pytest.param(
            NodeConstraints(),
            node("n1", taints=(Taint(key="karpenter.sh/pool"),)),
            Exclusion.TAINT,
            False,
            id="a pool's",
        ),
        pytest.param(
            NodeConstraints(tolerations=(Toleration(operator="Exists"),)),
            node("n1", taints=(PRESSURE, TAINT), schedulable=False),
            None,
            True,
            id="no toleration lifts a cordon",
        ),
    ],
)
def test_tells_what_excludes_for_good_from_what_blocks_now(
    demand: NodeConstraints, one_node: Node, excluded: Exclusion | None, blocked: bool
) -> None:
    assert (exclusion(demand, one_node), is_blocked(demand, one_node)) == (excluded, blocked)
