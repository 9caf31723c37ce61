"""ResourceQuotas -> model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from coda.model.world import Quota
from coda_kube.objects.pod_requests import readable_quantities
from coda_kube.objects.quantities import milli_from_quantity
from coda_kube.objects.quota_scopes import scopes_from_spec

Item = Mapping[str, Any]


def quota_from_json(item: Item) -> Quota:
    """Read a ResourceQuota."""
    spec, status = item.get("spec") or {}, item.get("status") or {}
    return Quota(
        namespace=item["metadata"]["namespace"],
        name=item["metadata"]["name"],
        hard=_milli_by_key(spec.get("hard")),
        used=_milli_by_key(status.get("used")),
        scopes=scopes_from_spec(spec),
    )


def _milli_by_key(quantities: Item | None) -> dict[str, int]:
    """A key whose amount cannot be read is left out: the API server alone judges it then."""
    readable = readable_quantities(quantities or {})
    return {key: max(0, milli_from_quantity(text)) for key, text in readable.items()}
