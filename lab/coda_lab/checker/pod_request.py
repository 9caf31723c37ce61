"""The request of a pod, read from its JSON. The referee reads it in its own way, on purpose not the planner's.

Amounts are exact integers in thousandths of the resource's unit (1 core = 1000, 1 byte = 1000, 1 pod slot = 1000).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, Final

from coda_kube.objects.json_types import Json
from coda_kube.objects.quantities import milli_from_quantity

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
    """The capacity a pod takes: the larger of running and its worst init step, plus overhead and one pod slot.

    During an in-place resize the largest of wanted, allocated and actual counts, as in kube-scheduler: growth takes
    capacity from the moment it is asked for, and a shrink frees only what was really given back. A size that a kubelet
    calls infeasible takes nothing.

    Source: KEP-753 (sidecars), KEP-2837 (pod-level resources replace the sum), KEP-1287 (resize), KEP-688 (overhead).
    """
    spec, status = pod["spec"], pod.get("status") or {}
    seen = _by_name(status.get("containerStatuses")) | _by_name(status.get("initContainerStatuses"))
    in_vain = _is_infeasible(status)
    sidecars: dict[str, int] = {}
    worst_start: dict[str, int] = {}
    for container in spec.get("initContainers") or ():
        need = _counted(container.get("resources"), seen.get(container["name"]), in_vain=in_vain)
        if container.get("restartPolicy") == "Always":
            sidecars = _sum(sidecars, need)
            worst_start = _larger(worst_start, sidecars)
        else:
            worst_start = _larger(worst_start, _sum(sidecars, need))
    running = sidecars
    for container in spec.get("containers") or ():
        running = _sum(running, _counted(container.get("resources"), seen.get(container["name"]), in_vain=in_vain))
    whole = _larger(running, worst_start) | _counted(spec.get("resources"), status, in_vain=in_vain)
    return _sum(whole, amounts_from_quantities(spec.get("overhead"))) | POD_SLOT


def _counted(resources: Json | None, status: Json | None, *, in_vain: bool) -> dict[str, int]:
    wanted = amounts_from_quantities((resources or {}).get("requests"))
    allocated = amounts_from_quantities((status or {}).get("allocatedResources"))
    actual = amounts_from_quantities((((status or {}).get("resources")) or {}).get("requests"))
    has = _larger(allocated, actual)
    return wanted | has if in_vain else _larger(wanted, has)


def _is_infeasible(status: Json) -> bool:
    return any(
        each["type"] == "PodResizePending" and each["status"] == "True" and each.get("reason") == "Infeasible"
        for each in status.get("conditions") or ()
    )


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
