"""A kubelet's admission: does this pod still fit beside those admitted before it?

Counts for itself on purpose (Coda's own arithmetic is what it checks); shares nothing but the reading of quantities.
Sources: `pkg/kubelet/lifecycle/predicate.go`, `fitsRequest` of the scheduler's noderesources plugin, and
`k8s.io/component-helpers/resource` PodRequests. Stricter than a kubelet in one point: an extended resource that the
node does not have is refused, where a kubelet ignores it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from coda_kube.objects.quantities import milli_from_quantity, whole_from_quantity

Amounts = Mapping[str, int]  # by resource name; cpu in millicores, everything else in whole units

_FIRST: Final = ("cpu", "memory", "ephemeral-storage")  # the order in which a kubelet looks; the first shortage is told
_POD_LEVEL: Final = ("cpu", "memory", "hugepages-")  # the resources a pod-level request may name


@lru_cache(maxsize=4096)
def _amount(resource: str, quantity: str) -> int:
    return milli_from_quantity(quantity) if resource == "cpu" else whole_from_quantity(quantity)


def amounts_from_quantities(quantities: Mapping[str, Any] | None) -> dict[str, int]:
    """Kubernetes quantities as integers. Raises InvalidQuantity."""
    return {resource: _amount(resource, str(quantity)) for resource, quantity in (quantities or {}).items()}


def _sum(parts: Iterable[Amounts]) -> dict[str, int]:
    total: dict[str, int] = {}
    for part in parts:
        for resource, amount in part.items():
            total[resource] = total.get(resource, 0) + amount
    return total


def _requests(container: Mapping[str, Any]) -> Amounts:
    return amounts_from_quantities((container.get("resources") or {}).get("requests"))


def request_of(spec: Mapping[str, Any]) -> Amounts:
    """What a pod of this spec needs at its peak, overhead included.

    That is the containers and sidecars together, or an init container with the sidecars started before it, whichever is
    more. Where pod-level requests are set they count instead."""
    sidecars: dict[str, int] = {}
    peaks: list[Amounts] = []
    for container in spec.get("initContainers") or ():
        step = _sum((sidecars, _requests(container)))
        if container.get("restartPolicy") == "Always":
            sidecars = step
        peaks.append(step)
    peaks.append(_sum((sidecars, *(_requests(container) for container in spec["containers"]))))
    names = {name for peak in peaks for name in peak}
    needed = {name: max(peak.get(name, 0) for peak in peaks) for name in names}
    pod_level = amounts_from_quantities((spec.get("resources") or {}).get("requests"))
    needed |= {name: amount for name, amount in pod_level.items() if name.startswith(_POD_LEVEL)}
    return _sum((needed, amounts_from_quantities(spec.get("overhead"))))


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortage:
    """The first resource a pod does not fit by; `reason` and `message` as a kubelet writes them."""

    resource: str
    requested: int
    used: int
    capacity: int

    @property
    def reason(self) -> str:
        """What status.reason of the refused pod says."""
        return f"OutOf{self.resource}"

    @property
    def message(self) -> str:
        """The sentence with the numbers."""
        return (
            f"Node didn't have enough resource: {self.resource}, requested: {self.requested}, "
            f"used: {self.used}, capacity: {self.capacity}"
        )


class Ledger:
    """What the admitted pods of one node hold, by uid."""

    def __init__(self, allocatable: Amounts) -> None:
        self.allocatable = allocatable
        self._held_by_uid: dict[str, Amounts] = {}
        self._used: dict[str, int] = {}

    def shortage(self, request: Amounts, *, beside: str | None = None) -> Shortage | None:
        """Why one more pod with `request` does not fit, or the pod `beside` with it instead of what it holds; None when
        it does. Amounts not asked for may be exceeded."""
        slots, own = self.allocatable.get("pods", 0), self._held_by_uid.get(beside or "", {})
        if beside is None and len(self._held_by_uid) + 1 > slots:
            return Shortage(resource="pods", requested=1, used=len(self._held_by_uid), capacity=slots)
        others = sorted(name for name in request if name not in _FIRST)
        for name in (*_FIRST, *others):
            asked, capacity = request.get(name, 0), self.allocatable.get(name, 0)
            used = self._used.get(name, 0) - own.get(name, 0)
            if asked > 0 and used + asked > capacity:
                return Shortage(resource=name, requested=asked, used=used, capacity=capacity)
        return None

    def admit(self, uid: str, request: Amounts) -> None:
        """Count the pod, whether it fits or not: one that already runs cannot be un-run."""
        if uid not in self._held_by_uid:
            self._held_by_uid[uid] = request
            self._used = _sum((self._used, request))

    def change(self, uid: str, request: Amounts) -> None:
        """An admitted pod holds so much from now on."""
        self.release(uid)
        self.admit(uid, request)

    def release(self, uid: str) -> None:
        """Stop counting the pod; one that was never admitted is fine."""
        for name, amount in self._held_by_uid.pop(uid, {}).items():
            self._used[name] -= amount
