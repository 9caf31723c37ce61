"""Selectors, affinity terms, taints and tolerations, with Kubernetes' meaning. `nodes.eligibility` applies them."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Taint:
    """A taint of a node; `effect` as Kubernetes spells it."""

    key: str
    value: str = ""
    effect: str = "NoSchedule"


@dataclass(frozen=True, slots=True, kw_only=True)
class Toleration:
    """A toleration of a pod. An empty `key` with `Exists` tolerates every taint; an empty `effect` every effect."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """One expression of a node selector term: `key operator values` (In, NotIn, Exists, DoesNotExist, Gt, Lt)."""

    key: str
    operator: str
    values: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeTerm:
    """Requirements that must all hold: `labels` for the node's labels, `fields` for its name."""

    labels: tuple[Requirement, ...] = ()
    fields: tuple[Requirement, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConstraints:
    """The nodes that a pod accepts: the selector, any one of the terms (no terms: every node), and its tolerations.

    `claims`: the PersistentVolumeClaims whose volumes are part of the terms. They are said, and change no meaning."""

    selector: Mapping[str, str] = field(default_factory=dict)
    terms: tuple[NodeTerm, ...] = ()
    tolerations: tuple[Toleration, ...] = ()
    claims: tuple[str, ...] = ()


def key_of_constraints(constraints: NodeConstraints) -> Hashable:
    """Return a key that is equal for constraints with the same meaning."""
    return (frozenset(constraints.selector.items()), constraints.terms, constraints.tolerations)
