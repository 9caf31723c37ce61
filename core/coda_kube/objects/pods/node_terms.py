"""Where pods say they may or would rather be: which nodes their terms allow, and how one node becomes the only one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from coda.model.constraints import NodeConstraints, NodeTerm, Requirement, Toleration
from coda_kube.objects.json_types import Json

Item = Mapping[str, Any]

_PREFERRED: Final = "preferredDuringSchedulingIgnoredDuringExecution"
_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"


def required_terms(spec: Item) -> tuple[Item, ...]:
    """Return the node selector terms that a pod's affinity requires one of."""
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    return tuple((affinity.get(_REQUIRED) or {}).get("nodeSelectorTerms") or ())


def prefers_nodes(spec: Item) -> bool:
    """True if a pod's affinity says which nodes it would rather have."""
    return bool(((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(_PREFERRED))


def has_preferences(spec: Item) -> bool:
    """True if kube-scheduler scores nodes by what the pod itself says about them, its rules aside."""
    kinds = (spec.get("affinity") or {}).values()
    spreads = spec.get("topologySpreadConstraints") or ()
    return any(kind and kind.get(_PREFERRED) for kind in kinds) or any(
        spread.get("whenUnsatisfiable") == "ScheduleAnyway" for spread in spreads
    )


def pin_of(spec: Item) -> str | None:
    """The one node that the required terms allow by name, if there is exactly one. A user may name nodes too."""
    asked = [nodes for term in required_terms(spec) if (nodes := _nodes_of(term)) is None or nodes]
    if not asked or any(nodes is None for nodes in asked):
        return None
    allowed = frozenset[str]().union(*(nodes for nodes in asked if nodes is not None))
    return next(iter(allowed)) if len(allowed) == 1 else None


def _nodes_of(term: Item) -> frozenset[str] | None:
    """The nodes that a term allows by name; None: it asks for none. The name is the only field there is.

    An empty term selects nothing, and so do two that ask for different nodes. Source: the API's NodeSelectorTerm."""
    if _is_empty(term):
        return frozenset()
    names = [frozenset(map(str, field.get("values") or ())) for field in _name_fields(term, "In")]
    excluded = frozenset(str(name) for field in _name_fields(term, "NotIn") for name in field.get("values") or ())
    return frozenset.intersection(*names) - excluded if names else None


def _name_fields(term: Item, operator: str) -> list[Item]:
    return [field for field in term.get("matchFields") or () if field["operator"] == operator]


def _is_empty(term: Item) -> bool:
    return not term.get("matchExpressions") and not term.get("matchFields")


def pinned(affinity: Item, node: str) -> Json:
    """Return the affinity that requires this node as well: terms are alternatives, so each one gets the pin.

    An empty term stays as it is: it selects nothing, and with the pin it would."""
    node_affinity = affinity.get("nodeAffinity") or {}
    required = node_affinity.get(_REQUIRED) or {}
    pin = {"key": "metadata.name", "operator": "In", "values": [node]}
    terms = [
        term if _is_empty(term) else {**term, "matchFields": [*(term.get("matchFields") or ()), pin]}
        for term in required.get("nodeSelectorTerms") or ()
    ]
    terms = terms or [{"matchFields": [pin]}]
    return {**affinity, "nodeAffinity": {**node_affinity, _REQUIRED: {**required, "nodeSelectorTerms": terms}}}


def constraints_from_json(spec: Item, terms: tuple[Item, ...]) -> NodeConstraints:
    """Read which nodes are eligible: `nodeSelector` and `tolerations` of `spec`, and the given node selector terms."""
    return NodeConstraints(
        selector=spec.get("nodeSelector") or {},
        terms=tuple(
            NodeTerm(
                labels=tuple(_requirement(r) for r in term.get("matchExpressions") or ()),
                fields=tuple(_requirement(r) for r in term.get("matchFields") or ()),
            )
            for term in terms
        ),
        tolerations=tuple(
            Toleration(
                key=t.get("key") or "",
                operator=t.get("operator") or "Equal",
                value=t.get("value") or "",
                effect=t.get("effect") or "",
            )
            for t in spec.get("tolerations") or ()
        ),
    )


def constraints_from_request(request: Item) -> NodeConstraints:
    """Read the same from a job's `status.request`, with the claims whose volumes are part of its terms."""
    constraints = constraints_from_json(request, tuple(request.get("nodeSelectorTerms") or ()))
    return replace(constraints, claims=tuple(request.get("volumeClaims") or ()))


def _requirement(expression: Item) -> Requirement:
    return Requirement(
        key=expression["key"], operator=expression["operator"], values=tuple(expression.get("values") or ())
    )
