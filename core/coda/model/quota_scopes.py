"""Which pods a ResourceQuota with scopes counts. Source: Kubernetes' `pkg/quota/v1/evaluator/core/pods.go`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PodScopes:
    """What scopes ask of a pod that was admitted. A rank has cores, so it is never one of best effort."""

    priority_class: str = ""  # empty: none
    terminating: bool = False  # the pod has a deadline of its own


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaScope:
    """One scope of a ResourceQuota. `operator` and `values`: of a list of priority classes."""

    name: str
    operator: str = "Exists"
    values: frozenset[str] = frozenset()


def is_counted(scopes: tuple[QuotaScope, ...], pod: PodScopes | None) -> bool:
    """True if a quota with these scopes counts such a pod: all of them match, or there is none.

    An unknown scope matches nothing, and a pod of which nothing is known (None) matches no scope."""
    if not scopes:
        return True
    return pod is not None and all(_matches(scope, pod) for scope in scopes)


def _matches(scope: QuotaScope, pod: PodScopes) -> bool:
    if scope.name in ("Terminating", "NotTerminating"):
        return pod.terminating is (scope.name == "Terminating")
    if scope.name == "NotBestEffort":
        return True
    return scope.name == "PriorityClass" and _has_class(scope, pod.priority_class)


def _has_class(scope: QuotaScope, name: str) -> bool:
    if scope.operator in ("Exists", "DoesNotExist"):
        return bool(name) is (scope.operator == "Exists")
    return (bool(name) and name in scope.values) is (scope.operator == "In")  # without a class it is in no list
