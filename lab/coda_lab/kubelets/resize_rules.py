"""In-place resize as a kubelet answers it: wanted, allocated and actual sizes, and the conditions it reports. No clock.

Requests that the API server itself refuses (quota, QoS class, larger than the node) never come here. Sources: KEP-1287,
and the answers of a real kubelet 1.36.
"""

from __future__ import annotations

from typing import Any, Final

from coda_lab.kubelets.admission import amounts_from_quantities
from coda_lab.kubelets.machine import SimPod
from coda_lab.kubelets.resize_values import NO_NEWS, Manner, News, Pending, Sizes

RETRY_S: Final = 1.0  # after an error; our choice (a kubelet's next sync)
_MUTABLE: Final = ("cpu", "memory")


def judge(pod: SimPod) -> News | None:
    """The kubelet's answer to the wanted sizes; None if it gives none at all."""
    manners = pod.machine.manners
    if manners.manner is Manner.HANGS:
        return None
    if pod.wanted == pod.allocated:
        return NO_NEWS
    if manners.static and pod.is_guaranteed:
        message = 'Resize is infeasible for Guaranteed Pods alongside CPU Manager policy "static"'
        return News(pending=Pending.INFEASIBLE, message=message)
    request, ledger = request_if(pod, pod.wanted), pod.machine.ledger
    for name in _MUTABLE:
        if request.get(name, 0) > ledger.allocatable.get(name, 0):
            asked, capacity = request[name], ledger.allocatable.get(name, 0)
            message = f"Node didn't have enough capacity: {name}, requested: {asked}, capacity: {capacity}"
            return News(pending=Pending.INFEASIBLE, message=message)
    shortage = ledger.shortage(request, beside=pod.uid)
    if shortage is not None:
        return News(pending=Pending.DEFERRED, message=shortage.message)
    if manners.manner is Manner.DEFERS and request.get("cpu", 0) > pod.request.get("cpu", 0):
        return News(pending=Pending.DEFERRED, message="Node didn't have enough resource: cpu (asked for by annotation)")
    return News(under_way=True)


def request_if(pod: SimPod, sizes: Sizes) -> dict[str, int]:
    """The pod's request with these sizes of its containers."""
    request = dict(pod.request)
    for name, size in sizes.items():
        before = pod.allocated.get(name)
        if before is None:
            continue
        had, wants = amounts_from_quantities(before.requests), amounts_from_quantities(size.requests)
        for resource in _MUTABLE:
            request[resource] = request.get(resource, 0) + wants.get(resource, 0) - had.get(resource, 0)
    return request


def allocate(pod: SimPod) -> None:
    """Promise the pod the wanted sizes."""
    pod.request = request_if(pod, pod.wanted)
    pod.allocated = pod.wanted
    pod.machine.ledger.change(pod.uid, pod.request)


def apply(pod: SimPod) -> None:
    """Give the containers the promised sizes; a container whose policy says so restarts."""
    for name, size in pod.allocated.items():
        before = pod.actual.get(name, size)
        if size.restarts and before.requests.get("cpu") != size.requests.get("cpu"):
            pod.restarts[name] = pod.restarts.get(name, 0) + 1
    pod.actual = pod.allocated


def conditions(pod: SimPod) -> list[dict[str, Any]]:
    """The pod's resize conditions; a condition that no longer holds is removed."""
    if not pod.was_resized:
        return []
    news = pod.news
    pending = _condition("PodResizePending", pod, news.pending.value if news.pending else None, news.message)
    reason = "Error" if news.failed else ""
    under_way = _condition("PodResizeInProgress", pod, reason if news.under_way else None, news.message)
    return [pending, under_way]


def _condition(kind: str, pod: SimPod, reason: str | None, message: str) -> dict[str, Any]:
    if reason is None:
        return {"type": kind, "$patch": "delete"}
    return {"type": kind, "status": "True", "reason": reason, "message": message, "observedGeneration": pod.generation}
