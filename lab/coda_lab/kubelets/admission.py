"""A kubelet's admission: does this pod still fit beside those admitted before it?

Counts for itself on purpose, because it checks Coda's own arithmetic; it shares only the reading of quantities.
Stricter than a kubelet in one point: it refuses an extended resource that the node does not have; a kubelet ignores it.
Sources: `pkg/kubelet/lifecycle/predicate.go`, `fitsRequest` of the scheduler's noderesources plugin, and
`k8s.io/component-helpers/resource` PodRequests.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from coda_kube.objects.quantities import milli_from_quantity, whole_from_quantity

Amounts = Mapping[str, int]  # by resource name; cpu in millicores, everything else in whole units

_FIRST: Final = (
    "cpu",
    "memory",
    "ephemeral-storage",
)  # the order in which a kubelet checks; it reports the first shortage
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
    """The request of a pod of this spec at its peak, overhead included.

    That is the containers and sidecars together, or an init container with the sidecars started before it, if that is
    more. Pod-level requests replace the sum.
    """
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
    """The first resource that is too small for a pod; `reason` and `message` as a kubelet writes them."""

    resource: str
    requested: int
    used: int
    capacity: int

    @property
    def reason(self) -> str:
        """The status.reason of the refused pod."""
        return f"OutOf{self.resource}"

    @property
    def message(self) -> str:
        """The sentence with the numbers."""
        return (
            f"Node didn't have enough resource: {self.resource}, requested: {self.requested}, "
            f"used: {self.used}, capacity: {self.capacity}"
        )


class Ledger:
    """The requests of the admitted pods of one node, by uid."""

    def __init__(self, allocatable: Amounts) -> None:
        self.allocatable = allocatable
        self._held_by_uid: dict[str, Amounts] = {}
        self._used: dict[str, int] = {}

    def shortage(self, request: Amounts, *, beside: str | None = None) -> Shortage | None:
        """Why one more pod with `request` does not fit, or the pod `beside` with it instead of its present request;
        None if it fits. Resources it does not ask for may be exceeded.
        """
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
        """Count the pod, even if it does not fit: a running pod cannot be undone."""
        if uid not in self._held_by_uid:
            self._held_by_uid[uid] = request
            self._used = _sum((self._used, request))

    def change(self, uid: str, request: Amounts) -> None:
        """Change the request of an admitted pod."""
        self.release(uid)
        self.admit(uid, request)

    def release(self, uid: str) -> None:
        """Stop counting the pod; one that was never admitted is fine."""
        for name, amount in self._held_by_uid.pop(uid, {}).items():
            self._used[name] -= amount
