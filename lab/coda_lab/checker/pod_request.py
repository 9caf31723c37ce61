"""What a pod asks of its node, read from the pod's JSON: the referee's own reading, on purpose not the planner's.

Amounts are exact integers in thousandths of the resource's unit (1 core = 1000, 1 byte = 1000, 1 pod slot = 1000)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, Final

from coda_kube.client import Json
from coda_kube.quantities import milli_from_quantity

Amounts = Mapping[str, int]
"""Thousandths by resource name."""

POD_SLOT: Final = {"pods": 1000}


@lru_cache(maxsize=65536)
def _milli(text: str | int | float) -> int:
    return milli_from_quantity(text)


def amounts_from_quantities(quantities: Mapping[str, Any] | None) -> dict[str, int]:
    """A resource list (`{"cpu": "500m"}`) as thousandths. Raises InvalidQuantity."""
    return {name: _milli(text) for name, text in (quantities or {}).items()}


def pod_request(pod: Json) -> Amounts:
    """What the pod takes from its node: the larger of running and its worst init step, plus overhead and one slot.

    During an in-place resize the amounts the kubelet granted count, not the wish: a deferred growth takes nothing,
    a shrink frees only what is really given back.
    Source: KEP-753 (sidecars), KEP-2837 (pod-level resources replace the sum), KEP-1287 (resize), KEP-688 (overhead).
    """
    spec, status = pod["spec"], pod.get("status") or {}
    seen = _by_name(status.get("containerStatuses")) | _by_name(status.get("initContainerStatuses"))
    sidecars: dict[str, int] = {}
    worst_start: dict[str, int] = {}
    for container in spec.get("initContainers") or ():
        need = _granted(container.get("resources"), seen.get(container["name"]))
        if container.get("restartPolicy") == "Always":
            sidecars = _sum(sidecars, need)
            worst_start = _larger(worst_start, sidecars)
        else:
            worst_start = _larger(worst_start, _sum(sidecars, need))
    running = sidecars
    for container in spec.get("containers") or ():
        running = _sum(running, _granted(container.get("resources"), seen.get(container["name"])))
    whole = _larger(running, worst_start) | _granted(spec.get("resources"), status)
    return _sum(whole, amounts_from_quantities(spec.get("overhead"))) | POD_SLOT


def _granted(resources: Json | None, status: Json | None) -> dict[str, int]:
    amounts = amounts_from_quantities((resources or {}).get("requests"))
    allocated = amounts_from_quantities((status or {}).get("allocatedResources"))
    actual = amounts_from_quantities((((status or {}).get("resources")) or {}).get("requests"))
    return amounts | {name: max(amount, actual.get(name, 0)) for name, amount in allocated.items()}


def _by_name(statuses: Iterable[Json] | None) -> dict[str, Json]:
    return {status["name"]: status for status in statuses or ()}


def _sum(one: Amounts, two: Amounts) -> dict[str, int]:
    total = dict(one)
    for name, amount in two.items():
        total[name] = total.get(name, 0) + amount
    return total


def _larger(one: Amounts, two: Amounts) -> dict[str, int]:
    larger = dict(one)
    for name, amount in two.items():
        larger[name] = max(larger.get(name, 0), amount)
    return larger
