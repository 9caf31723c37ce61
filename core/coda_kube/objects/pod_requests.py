"""The request of a pod, computed from its JSON as kube-scheduler does.

Source: `k8s.io/component-helpers/resource` PodRequests. The request is the largest of two: all containers with the
sidecars; and each init container with the sidecars started before it. Pod-level requests replace it where set, and
overhead is added. What is in a resize, a container (KEP-1287) or a whole pod (KEP-5419), counts with the largest of its
wanted, allocated and actual amounts, but the wanted amount does not count if it is infeasible. What a kubelet reports
of a whole pod may include the overhead already: it is added all the same, as in Kubernetes 1.36.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from coda.errors import InvalidQuantity
from coda.model import Resources
from coda.model.resources import HOST_PORT
from coda_kube.objects.names import GPU
from coda_kube.objects.quantities import milli_from_quantity, quantity_from_milli, whole_from_quantity

MOST_HOST_PORTS = 16
"""Host ports of one pod that are counted. Our choice: few pods have more than two, and each costs time in a cycle."""
Amounts = dict[str, int]  # milli-cores for cpu, whole units for everything else


def _amounts(quantities: Mapping[str, Any] | None) -> Amounts:
    """A negative amount counts as none: nobody gives capacity back by asking for less than nothing."""
    return {name: _amount(name, text) for name, text in (quantities or {}).items()}


def _amount(name: str, quantity: Any) -> int:
    return max(0, milli_from_quantity(quantity) if name == "cpu" else whole_from_quantity(quantity))


def _add(into: Amounts, more: Amounts) -> None:
    for name, amount in more.items():
        into[name] = into.get(name, 0) + amount


def _raise_to(into: Amounts, floor: Amounts) -> None:
    for name, amount in floor.items():
        into[name] = max(into.get(name, 0), amount)


def _container_amounts(
    container: Mapping[str, Any], status: Mapping[str, Any] | None, kind: str, *, infeasible: bool = False
) -> Amounts:
    """Of a container, or of a whole pod. `infeasible`: the wanted amounts will never be allocated."""
    resources = container.get("resources") or {}
    amounts = _amounts(resources.get(kind))
    if kind == "requests":
        for name, amount in _amounts(resources.get("limits")).items():
            amounts.setdefault(name, amount)  # as the API server sets defaults
        if status:
            allocated = _amounts(status.get("allocatedResources"))
            _raise_to(allocated, _amounts((status.get("resources") or {}).get("requests")))
            if infeasible and allocated:
                return amounts | allocated
            _raise_to(amounts, allocated)
    return amounts


def is_infeasible(status: Mapping[str, Any]) -> bool:
    """True if the kubelet says in the pod's `status` that the last resize can never happen."""
    return any(
        condition["type"] == "PodResizePending" and condition.get("reason") == "Infeasible"
        for condition in status.get("conditions") or ()
    )


def pod_amounts(pod: Mapping[str, Any], kind: str = "requests") -> Amounts:
    """Return the effective `requests` or `limits` of a pod by resource name (cpu in millicores)."""
    spec, status = pod["spec"], pod.get("status") or {}
    statuses = {
        entry["name"]: entry
        for entry in (status.get("containerStatuses") or []) + (status.get("initContainerStatuses") or [])
    }
    total: Amounts = {}
    infeasible = is_infeasible(status)
    for container in spec.get("containers") or ():
        _add(total, _container_amounts(container, statuses.get(container["name"]), kind, infeasible=infeasible))
    sidecars: Amounts = {}
    peak: Amounts = {}
    for container in spec.get("initContainers") or ():
        amounts = _container_amounts(container, statuses.get(container["name"]), kind, infeasible=infeasible)
        if container.get("restartPolicy") == "Always":
            _add(sidecars, amounts)
            _raise_to(peak, sidecars)
        else:
            _add(amounts, sidecars)
            _raise_to(peak, amounts)
    _add(total, sidecars)
    _raise_to(total, peak)
    if whole := (spec.get("resources") or {}).get(kind):
        amounts = _container_amounts(spec, status, kind, infeasible=infeasible)
        total |= {name: amounts[name] for name in whole}  # of the others a status says nothing that is not known
    _add(total, _amounts(spec.get("overhead")))
    if kind == "requests":
        total |= dict.fromkeys(host_ports(spec), 1)
    return total


def host_ports(spec: Mapping[str, Any]) -> list[str]:
    """Return the host ports of a pod as names of resources. Of too many, some are left to kube-scheduler.

    Source: kube-scheduler's plugin NodePorts. Addresses (`hostIP`) are not told apart."""
    sidecars = [each for each in spec.get("initContainers") or () if each.get("restartPolicy") == "Always"]
    names = {
        f"{HOST_PORT}{port['hostPort']}-{port.get('protocol') or 'TCP'}"
        for container in (*(spec.get("containers") or ()), *sidecars)
        for port in container.get("ports") or ()
        if port.get("hostPort")
    }
    return sorted(names)[:MOST_HOST_PORTS]


def resources_from_amounts(amounts: Mapping[str, int], *, pods: int) -> Resources:
    """Return the model's resources. `pods`: the number of pod slots that belong to them."""
    other = {name: amount for name, amount in amounts.items() if name not in ("cpu", "memory", GPU, "pods") and amount}
    return Resources(
        cpu_m=amounts.get("cpu", 0),
        memory_bytes=amounts.get("memory", 0),
        gpus=amounts.get(GPU, 0),
        pods=pods,
        other=other,
    )


def resources_from_quantities(quantities: Mapping[str, Any], *, pods: int) -> Resources:
    """Return the model's resources from quantities by name, as in a node's allocatable or a job's `status.request`."""
    return resources_from_amounts(_amounts(quantities), pods=pods)


def readable_quantities(quantities: Mapping[str, Any]) -> dict[str, Any]:
    """Return what can be read of quantities that a kubelet or a device plugin reported; the rest counts as absent."""
    found: dict[str, Any] = {}
    for name, quantity in quantities.items():
        with suppress(InvalidQuantity):
            _amount(name, quantity)
            found[name] = quantity
    return found


def resources_reported(quantities: Mapping[str, Any]) -> Resources:
    """Return a node's `allocatable` or `capacity` as the model's resources, as far as it can be read."""
    found = readable_quantities(quantities)
    pods = max(0, whole_from_quantity(found.pop("pods", 0)))
    return resources_from_quantities(found, pods=pods)


def quantities_from_amounts(amounts: Mapping[str, int]) -> dict[str, str]:
    """Return the amounts as quantities, sorted by name."""
    return {
        name: quantity_from_milli(amount) if name == "cpu" else str(amount) for name, amount in sorted(amounts.items())
    }


def quota_use(pod: Mapping[str, Any]) -> dict[str, str]:
    """Return the use of each ResourceQuota key by one pod, as quantities.

    Source: `pkg/quota/v1/evaluator/core/pods.go` podComputeUsageHelper."""
    requests, limits = pod_amounts(pod, "requests"), pod_amounts(pod, "limits")
    use: dict[str, str] = {"pods": "1", "count/pods": "1"}
    for name, quantity in quantities_from_amounts(requests).items():
        if name.startswith(HOST_PORT):
            continue
        use[f"requests.{name}"] = quantity
        if name in ("cpu", "memory", "ephemeral-storage") or name.startswith("hugepages-"):
            use[name] = quantity
    for name, quantity in quantities_from_amounts(limits).items():
        if name in ("cpu", "memory", "ephemeral-storage"):
            use[f"limits.{name}"] = quantity
    return use
