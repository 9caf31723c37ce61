"""The node selector terms of pods: which nodes they allow, and how one node becomes the only one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from coda.model.constraints import NodeConstraints, NodeTerm, Requirement, Toleration
from coda_kube.objects.json_types import Json

Item = Mapping[str, Any]

_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"


def required_terms(spec: Item) -> tuple[Item, ...]:
    """Return the node selector terms that a pod's affinity requires one of."""
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    return tuple((affinity.get(_REQUIRED) or {}).get("nodeSelectorTerms") or ())


def pin_of(spec: Item) -> str | None:
    """The node that every required term asks for, if it is the same one in all."""
    pins = {_pins_of(term) for term in required_terms(spec)}
    only = pins.pop() if len(pins) == 1 else ()
    return str(only[0]) if len(only) == 1 else None


def _pins_of(term: Item) -> tuple[str, ...]:
    """The nodes that a term asks for by name, not those that it excludes. The name is the only field there is."""
    asked = [field for field in term.get("matchFields") or () if field["operator"] == "In"]
    return tuple(name for field in asked for name in field.get("values") or ())


def pinned(affinity: Item, node: str) -> Json:
    """Return the affinity that requires this node as well: terms are alternatives, so each one gets the pin."""
    node_affinity = affinity.get("nodeAffinity") or {}
    required = node_affinity.get(_REQUIRED) or {}
    pin = {"key": "metadata.name", "operator": "In", "values": [node]}
    terms = [
        {**term, "matchFields": [*(term.get("matchFields") or ()), pin]}
        for term in required.get("nodeSelectorTerms") or [{}]
    ]
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


def _requirement(expression: Item) -> Requirement:
    return Requirement(
        key=expression["key"], operator=expression["operator"], values=tuple(expression.get("values") or ())
    )
