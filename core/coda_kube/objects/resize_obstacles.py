"""Why the cores of a pod can never be changed, as far as its object says so before anybody tries. Source: KEP-1287."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from coda.allocator.resize import Obstacle
from coda_kube.objects.pods.main_container import main_container

Item = Mapping[str, Any]


def obstacle_from_json(pod: Item) -> Obstacle | None:
    """Return what the pod's specification and quality forbid for its main container."""
    container = main_container(pod)
    requests = (container.get("resources") or {}).get("requests") or {}
    if (pod.get("status") or {}).get("qosClass") == "BestEffort" or "cpu" not in requests:
        return Obstacle.BEST_EFFORT
    policies = container.get("resizePolicy") or ()
    if any(each["resourceName"] == "cpu" and each["restartPolicy"] == "RestartContainer" for each in policies):
        return Obstacle.WOULD_RESTART
    return None
