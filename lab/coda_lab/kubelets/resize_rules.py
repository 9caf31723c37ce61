"""In-place resize as a kubelet answers it: what is wanted, allocated and actual, and the words told. No clock.

What the API server refuses itself (quota, QoS class, larger than the node) never comes here. Sources: KEP-1287, and the
answers of a real kubelet 1.36. A node's annotations make it behave in other ways that real ones do:
`cpu-manager` "static"; `resize` "defer" (as if others had the room), "error" (the runtime fails), "unsupported" (an
old kubelet) or "hang" (no answer); `resize-seconds`, from allocated to applied.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from coda.errors import InvalidInput
from coda_lab.kubelets.admission import amounts_from_quantities
from coda_lab.kubelets.behaviour import PREFIX

if TYPE_CHECKING:
    from coda_lab.kubelets.machine import SimPod

Json = Mapping[str, Any]

RETRY_S: Final = 1.0  # after an error; our choice (a kubelet's next sync)
_MUTABLE: Final = ("cpu", "memory")


class Manner(Enum):
    """How a node treats resizes; the value is its annotation's."""

    OBEYS = ""
    DEFERS = "defer"
    FAILS = "error"
    UNSUPPORTED = "unsupported"
    HANGS = "hang"


@dataclass(frozen=True, slots=True, kw_only=True)
class Manners:
    """A node's, from its annotations."""

    manner: Manner = Manner.OBEYS
    static: bool = False  # the CPU manager's policy
    takes_s: float = 0.3


USUAL: Final = Manners()


def manners_from_node(item: Json) -> Manners:
    """Raises InvalidInput with the annotation's name."""
    notes = item["metadata"].get("annotations") or {}
    text = notes.get(f"{PREFIX}resize", "")
    if text not in {manner.value for manner in Manner}:
        choices = ", ".join(manner.value for manner in Manner if manner.value)
        raise InvalidInput(f"annotation {PREFIX}resize is {text!r}: give one of {choices}")
    policy = notes.get(f"{PREFIX}cpu-manager", "none")
    if policy not in ("none", "static"):
        raise InvalidInput(f"annotation {PREFIX}cpu-manager is {policy!r}: give none or static")
    try:
        takes_s = float(notes.get(f"{PREFIX}resize-seconds", USUAL.takes_s))
    except ValueError as error:
        raise InvalidInput(f"annotation {PREFIX}resize-seconds: {error}") from error
    return Manners(manner=Manner(text), static=policy == "static", takes_s=max(0.0, takes_s))


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """What one container may and must have, as its spec says it."""

    requests: Mapping[str, str]
    limits: Mapping[str, str]
    restarts: bool = False  # its resizePolicy for cpu

    def json(self) -> dict[str, Any]:
        """As in a container's status."""
        amounts = {"requests": dict(self.requests), "limits": dict(self.limits)}
        return {kind: amount for kind, amount in amounts.items() if amount}


def size_from_json(container: Json) -> Size:
    """Of a container of a spec."""
    resources = container.get("resources") or {}
    policies = container.get("resizePolicy") or ()
    return Size(
        requests=resources.get("requests") or {},
        limits=resources.get("limits") or {},
        restarts=any(
            each["resourceName"] == "cpu" and each["restartPolicy"] == "RestartContainer" for each in policies
        ),
    )


Sizes = Mapping[str, Size]
"""By container."""


def sizes_from_json(spec: Json) -> dict[str, Size]:
    """Of a pod's containers."""
    return {container["name"]: size_from_json(container) for container in spec["containers"]}


class Pending(Enum):
    """Why a resize is not allocated."""

    DEFERRED = "Deferred"
    INFEASIBLE = "Infeasible"


@dataclass(frozen=True, slots=True, kw_only=True)
class News:
    """What the pod's conditions say about its last resize."""

    pending: Pending | None = None
    under_way: bool = False
    failed: bool = False
    message: str = ""


NO_NEWS: Final = News()


def judge(pod: SimPod) -> News | None:
    """What the kubelet says to what is wanted now; None when it says nothing at all."""
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
    """What the pod would need with these sizes of its containers."""
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
    """Promise the pod what is wanted."""
    pod.request = request_if(pod, pod.wanted)
    pod.allocated = pod.wanted
    pod.machine.ledger.change(pod.uid, pod.request)


def apply(pod: SimPod) -> None:
    """Give the containers what was promised; those whose policy says so start again."""
    for name, size in pod.allocated.items():
        before = pod.actual.get(name, size)
        if size.restarts and before.requests.get("cpu") != size.requests.get("cpu"):
            pod.restarts[name] = pod.restarts.get(name, 0) + 1
    pod.actual = pod.allocated


def conditions(pod: SimPod) -> list[dict[str, Any]]:
    """The pod's resize conditions; what was told before and holds no more is taken away."""
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
