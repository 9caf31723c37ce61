"""Pod JSON -> `RankSize`: the cores that its main container wants, was promised and has.

Source: KEP-1287 and a kubelet 1.36. `generation` tells news of the last change from news of the one before.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from coda.allocator import RankSize
from coda.allocator.resize import STATIC_CPU_MANAGER, Obstacle, Progressing
from coda_kube.objects.pods.main_container import main_container
from coda_kube.objects.quantities import milli_from_quantity
from coda_kube.objects.resize_obstacles import asked_anyway_m, obstacle_from_json

Item = Mapping[str, Any]

_PENDING, _IN_PROGRESS = "PodResizePending", "PodResizeInProgress"
_STATIC_POLICY = 'CPU Manager policy "static"'


def rank_size_from_json(pod: Item, main: Item) -> RankSize:
    """Return the cores of a pod whose main container runs; `main` is that container's status."""
    container, status = main_container(pod), pod.get("status") or {}
    requests = (container.get("resources") or {}).get("requests") or {}
    wanted_m = _milli(requests.get("cpu"))
    actual = main.get("resources") or {}
    allocated = main.get("allocatedResources") or actual.get("requests") or {}
    has = [(actual.get(kind) or {}).get("cpu") for kind in ("requests", "limits")]
    says, reason, message = _news(pod["metadata"], status)
    return RankSize(
        name=pod["metadata"]["name"],
        uid=pod["metadata"]["uid"],
        version=pod["metadata"].get("resourceVersion") or "",
        container=container["name"],
        wanted_m=wanted_m,
        allocated_m=_milli(allocated["cpu"]) if "cpu" in allocated else wanted_m,
        actual_m=tuple(_milli(text) for text in has if text is not None) or (wanted_m,),
        says=says,
        reason=reason,
        message=message,
        obstacle=_obstacle(pod, main),
        least_m=asked_anyway_m(pod),
    )


def _milli(quantity: Any) -> int:
    return milli_from_quantity(quantity) if quantity is not None else 0


def _obstacle(pod: Item, main: Item) -> Obstacle | None:
    return obstacle_from_json(pod) or (Obstacle.UNSUPPORTED if not main.get("resources") else None)


def _news(metadata: Item, status: Item) -> tuple[Progressing, str, str]:
    """Return what the kubelet says of the last change; a reason and a message if something prevents it."""
    generation = metadata.get("generation") or 0
    if 0 < (status.get("observedGeneration") or 0) < generation:
        return Progressing.UNSEEN, "", ""
    condition_by_type = {
        condition["type"]: condition
        for condition in status.get("conditions") or ()
        if condition["status"] == "True" and not 0 < (condition.get("observedGeneration") or 0) < generation
    }
    pending, under_way = condition_by_type.get(_PENDING), condition_by_type.get(_IN_PROGRESS)
    if pending is not None:
        message = pending.get("message") or ""
        if pending.get("reason") == "Infeasible":
            return Progressing.INFEASIBLE, STATIC_CPU_MANAGER if _STATIC_POLICY in message else "Infeasible", message
        return Progressing.DEFERRED, "Deferred", message
    if under_way is not None:
        return Progressing.UNDER_WAY, under_way.get("reason") or "", under_way.get("message") or ""
    return Progressing.NOTHING, "", ""
