"""Which ResourceQuotas with scopes count a gang, and what they lack for the whole of it.

The planner knows the quotas without scopes. Those with scopes depend on the pods, so they are asked before the launch.
Source: `pkg/quota/v1/evaluator/core/pods.go`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from coda_kube.objects.pod_requests import readable_quantities
from coda_kube.objects.quantities import milli_from_quantity, quantity_from_milli

Item = Mapping[str, Any]


def shortage(quotas: Iterable[Item], pod: Item, use_of_rank: Item, ranks: int) -> str | None:
    """Return the sentence of the first scoped quota that lacks something for `ranks` pods like `pod`, or None.

    `use_of_rank`: the use of each quota key by one of them."""
    for quota in sorted(quotas, key=lambda quota: str(quota["metadata"]["name"])):
        spec = quota.get("spec") or {}
        if not (spec.get("scopes") or spec.get("scopeSelector")) or not counts_pod(spec, pod):
            continue
        hard = _milli(spec.get("hard"))
        used = _milli((quota.get("status") or {}).get("used"))
        for key in sorted(hard.keys() & use_of_rank.keys()):
            wanted = ranks * milli_from_quantity(use_of_rank[key])
            if wanted + used.get(key, 0) > hard[key]:
                name, left = quota["metadata"]["name"], max(0, hard[key] - used.get(key, 0))
                asks = f"the gang asks for {quantity_from_milli(wanted)} {key}, {quantity_from_milli(left)} are left"
                return f"exceeded quota: {name}: {asks}"
    return None


def _milli(quantities: Item | None) -> dict[str, int]:
    return {key: milli_from_quantity(text) for key, text in readable_quantities(quantities or {}).items()}


def counts_pod(spec: Item, pod: Item) -> bool:
    """True if a quota with this `spec` counts the pod: all scopes match. An unknown scope is left to the API server."""
    selectors = [{"scopeName": name, "operator": "Exists"} for name in spec.get("scopes") or ()]
    selectors += (spec.get("scopeSelector") or {}).get("matchExpressions") or ()
    return all(_matches(selector, pod["spec"]) for selector in selectors)


def _matches(selector: Item, spec: Item) -> bool:
    scope = selector["scopeName"]
    if scope in ("Terminating", "NotTerminating"):
        return (spec.get("activeDeadlineSeconds") is not None) is (scope == "Terminating")
    if scope in ("BestEffort", "NotBestEffort"):
        return bool(scope == "NotBestEffort")  # a rank has cores and GPUs
    if scope == "PriorityClass":
        return _has_class(selector, spec.get("priorityClassName"))
    return False


def _has_class(selector: Item, name: str | None) -> bool:
    operator: str = selector.get("operator") or ""
    values: list[str] = list(selector.get("values") or ())
    if operator in ("Exists", "DoesNotExist"):
        return bool(name) is (operator == "Exists")
    return (bool(name) and name in values) is (operator == "In")  # without a class it is in no list
