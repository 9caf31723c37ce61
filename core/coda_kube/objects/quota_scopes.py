"""Which ResourceQuotas with scopes count a gang, and what they lack for the whole of it.

The planner asks them, too. They are asked again before the launch: it may know less, and it is a moment older.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from coda.model.quota_scopes import PodScopes, QuotaScope, is_counted
from coda_kube.objects.json_types import Json
from coda_kube.objects.pod_requests import readable_quantities
from coda_kube.objects.quantities import milli_from_quantity, quantity_from_milli

Item = Mapping[str, Any]


def shortage(quotas: Iterable[Item], pod: PodScopes, use_of_rank: Item, ranks: int) -> str | None:
    """Return the sentence of the first scoped quota that lacks something for `ranks` pods like `pod`, or None.

    `use_of_rank`: the use of each quota key by one of them."""
    for quota in sorted(quotas, key=lambda quota: str(quota["metadata"]["name"])):
        spec = quota.get("spec") or {}
        scopes = scopes_from_spec(spec)
        if not scopes or not is_counted(scopes, pod):
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
    return is_counted(scopes_from_spec(spec), scopes_of_pod(pod))


def scopes_from_spec(spec: Item) -> tuple[QuotaScope, ...]:
    """Return the scopes of a quota with this `spec`."""
    named = [QuotaScope(name=name) for name in spec.get("scopes") or ()]
    selectors = (spec.get("scopeSelector") or {}).get("matchExpressions") or ()
    return (*named, *map(_scope_from_selector, selectors))


def _scope_from_selector(selector: Item) -> QuotaScope:
    values = frozenset(selector.get("values") or ())
    return QuotaScope(name=selector["scopeName"], operator=selector.get("operator") or "", values=values)


def scopes_of_pod(pod: Item) -> PodScopes:
    """Return what scopes ask of a pod. One that was admitted has the class that the API server gave it."""
    spec = pod["spec"]
    has_deadline = spec.get("activeDeadlineSeconds") is not None
    return PodScopes(priority_class=spec.get("priorityClassName") or "", terminating=has_deadline)


def json_from_scopes(scopes: PodScopes) -> Json:
    """Return them as they stand in `status.request.scopes`."""
    return {"priorityClassName": scopes.priority_class, "terminating": scopes.terminating}


def scopes_from_request(request: Item) -> PodScopes | None:
    """Return what `status.request` says of scopes; None if an earlier version of Coda wrote it."""
    known = request.get("scopes")
    if known is None:
        return None
    return PodScopes(priority_class=known["priorityClassName"], terminating=known["terminating"])
