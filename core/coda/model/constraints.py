"""Which nodes a pod accepts, and what nodes say against pods: as in Kubernetes, as frozen values.

What must not live here: what follows from them (`fitting`).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Taint:
    """A node's taint; `effect` as Kubernetes spells it."""

    key: str
    value: str = ""
    effect: str = "NoSchedule"


@dataclass(frozen=True, slots=True, kw_only=True)
class Toleration:
    """A pod's toleration. Empty `key` with `Exists` tolerates all; empty `effect` every effect."""

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
    """Requirements that must all hold: `labels` on the node's labels, `fields` on its name."""

    labels: tuple[Requirement, ...] = ()
    fields: tuple[Requirement, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConstraints:
    """Which nodes a pod accepts: the selector, any one of the terms (none: all), and what it tolerates."""

    selector: Mapping[str, str] = field(default_factory=dict)
    terms: tuple[NodeTerm, ...] = ()
    tolerations: tuple[Toleration, ...] = ()


def key_of_constraints(constraints: NodeConstraints) -> Hashable:
    """Equal for demands that mean the same."""
    return (frozenset(constraints.selector.items()), constraints.terms, constraints.tolerations)
