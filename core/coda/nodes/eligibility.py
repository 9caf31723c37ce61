"""Which nodes accept a job, as kube-scheduler judges it.

Users need two different answers. The job's constraints exclude a node for good (selector, affinity, taints). The
node's state blocks it for a while (cordoned, not ready, under pressure, being removed).
Source: Kubernetes 1.36 component-helpers `nodeaffinity` and `Toleration.ToleratesTaint`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from enum import Enum
from typing import Final

from coda.model.constraints import NodeConstraints, NodeTerm, Requirement, Taint, Toleration
from coda.model.decision import WaitCode, WaitReason
from coda.model.trial_run import TRIAL_TAINT
from coda.model.world import Node
from coda.wording import claims_text, counted, listed, numbers_of

_KEEPS_OUT: Final = ("NoSchedule", "NoExecute")
_PREFERS: Final = "PreferNoSchedule"  # it only decides between nodes with as many GPUs and cores left
_CONDITION_PREFIXES: Final = (
    "node.kubernetes.io/",
    "node.cloudprovider.kubernetes.io/",
    "ToBeDeletedByClusterAutoscaler",  # the node is being removed
    "karpenter.sh/disrupted",
    "karpenter.sh/disruption",  # the same before Karpenter 1.0
    "aws-node-termination-handler/",
    "cloud.google.com/impending-node-termination",
    "karpenter.sh/unregistered",  # the node is being set up
    "node.cilium.io/agent-not-ready",
    "ebs.csi.aws.com/agent-not-ready",
    "efs.csi.aws.com/agent-not-ready",
    "startup-taint.cluster-autoscaler.kubernetes.io/",  # whatever an administrator says so of
    "status-taint.cluster-autoscaler.kubernetes.io/",
    "ignore-taint.cluster-autoscaler.kubernetes.io/",
)
"""How keys of taints begin that come and go with the state of a node. Source: the documentation of these programs."""
_INTEGER: Final = re.compile(r"[+-]?[0-9]+")
_INT64: Final = 2**63


class Exclusion(Enum):
    """What in a job's constraints excludes a node."""

    SELECTOR = "selector"
    AFFINITY = "affinity"
    TAINT = "taint"


def exclusion(constraints: NodeConstraints, node: Node) -> Exclusion | None:
    """Return the first constraint that excludes the node for good; None if there is none.

    Taints that mirror a condition of the node do not count here, see `is_blocked`."""
    if any(node.labels.get(key) != value for key, value in constraints.selector.items()):
        return Exclusion.SELECTOR
    if constraints.terms and not any(_term_matches(term, node) for term in constraints.terms):
        return Exclusion.AFFINITY
    return Exclusion.TAINT if is_tainted(constraints, node) else None


def reason_without_match(constraints: NodeConstraints, excluded: Mapping[Exclusion, int], nodes: int) -> WaitReason:
    """Say what keeps a job from all of so many nodes for good, by how many nodes each constraint excludes."""
    counts = {cause: excluded.get(cause, 0) for cause in Exclusion}
    selector = ", ".join(f"{key}={value}" for key, value in sorted(constraints.selector.items()))
    clauses = {
        Exclusion.SELECTOR: f"without the labels of its nodeSelector ({selector})",
        Exclusion.AFFINITY: "outside its required node affinity",
        Exclusion.TAINT: "with a taint it does not tolerate",
    }
    parts = [f"{counts[cause]} {clause}" for cause, clause in clauses.items() if counts[cause]]
    message = f"none of {counted(nodes, 'node')} accepts its pods: {listed(parts)}" if nodes else "there is no node"
    numbers = numbers_of(nodes=nodes, **{f"excluded_by_{cause.value}": count for cause, count in counts.items()})
    return WaitReason(code=WaitCode.NO_MATCHING_NODE, message=message, numbers=numbers)


def with_claims(reason: WaitReason, claims: tuple[str, ...]) -> WaitReason:
    """Say of nodes outside a job's affinity that volumes are part of it: its template may name none."""
    volumes = "the volume" if len(claims) == 1 else "the volumes"
    message = f"{reason.message}; its node affinity includes that of {volumes} of {claims_text(claims)}"
    return replace(reason, message=message)


def is_tainted(constraints: NodeConstraints, node: Node) -> bool:
    """True if a taint keeps the job from the node for good."""
    return not all(_is_condition(taint) or tolerates(constraints.tolerations, taint) for taint in node.taints)


def is_blocked(constraints: NodeConstraints, node: Node) -> bool:
    """True while the node's state forbids the job: cordoned, not ready, being deleted, or in a condition."""
    return not node.schedulable or not all(
        tolerates(constraints.tolerations, taint) for taint in node.taints if _is_condition(taint)
    )


def accepts(constraints: NodeConstraints, node: Node) -> bool:
    """True if a pod with these constraints may go to the node now, apart from its free capacity."""
    return exclusion(constraints, node) is None and not is_blocked(constraints, node)


def tolerates(tolerations: tuple[Toleration, ...], taint: Taint) -> bool:
    """True if the taint keeps no pod out, or one of the tolerations covers it.

    Who tolerates all taints does not tolerate that of nodes for trials, unlike in Kubernetes: else any user may."""
    return taint.effect not in _KEEPS_OUT or any(_covers(toleration, taint) for toleration in tolerations)


def is_disliked(constraints: NodeConstraints, node: Node) -> bool:
    """True if a taint asks for other nodes, where any has as many GPUs and cores left. Source: `TaintToleration`, which
    counts such taints; for us one is as good as several."""
    return any(
        taint.effect == _PREFERS and not any(_covers(toleration, taint) for toleration in constraints.tolerations)
        for taint in node.taints
    )


def _covers(toleration: Toleration, taint: Taint) -> bool:
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key != taint.key and (toleration.key or taint.key == TRIAL_TAINT):
        return False
    if toleration.operator in ("", "Equal"):
        return toleration.value == taint.value
    return toleration.operator == "Exists"  # Lt and Gt are alpha, off by default, and then match nothing


def _is_condition(taint: Taint) -> bool:
    return taint.key.startswith(_CONDITION_PREFIXES)


def _term_matches(term: NodeTerm, node: Node) -> bool:
    if not term.labels and not term.fields:
        return False  # an empty term selects nothing
    return all(_label_matches(requirement, node.labels.get(requirement.key)) for requirement in term.labels) and all(
        _field_matches(requirement, node.name) for requirement in term.fields
    )


def _label_matches(requirement: Requirement, label: str | None) -> bool:
    test = _LABEL_TESTS.get(requirement.operator)
    return test is not None and test(label, requirement.values)


def _field_matches(requirement: Requirement, name: str) -> bool:
    if requirement.key != "metadata.name" or len(requirement.values) != 1:
        return False
    same = requirement.values[0] == name
    return same if requirement.operator == "In" else requirement.operator == "NotIn" and not same


def integer_of(text: str | None) -> int | None:
    """The number that a label or a value is for Gt and Lt; None if it is none."""
    if text is None or not _INTEGER.fullmatch(text):
        return None
    number = int(text)
    return number if -_INT64 <= number < _INT64 else None


def _above(label: str | None, values: tuple[str, ...]) -> bool:
    one, two = integer_of(label), integer_of(values[0]) if len(values) == 1 else None
    return one is not None and two is not None and one > two


def _below(label: str | None, values: tuple[str, ...]) -> bool:
    one, two = integer_of(label), integer_of(values[0]) if len(values) == 1 else None
    return one is not None and two is not None and one < two


_LABEL_TESTS: Final[Mapping[str, Callable[[str | None, tuple[str, ...]], bool]]] = {
    "In": lambda label, values: label is not None and label in values,
    "NotIn": lambda label, values: bool(values) and label not in values,
    "Exists": lambda label, values: label is not None and not values,
    "DoesNotExist": lambda label, values: label is None and not values,
    "Gt": _above,
    "Lt": _below,
}
