"""Why the cores of a pod can never be changed, as far as its object says so before anybody tries. Source: KEP-1287."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from coda.allocator.resize import Obstacle
from coda_kube.objects.pod_requests import pod_amounts
from coda_kube.objects.pods.main_container import main_container
from coda_kube.objects.quantities import milli_from_quantity

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
    if _whole_m(pod) is not None or milli_from_quantity(requests["cpu"]) < asked_anyway_m(pod):
        return Obstacle.ASKED_ANYWAY
    return None


def asked_anyway_m(pod: Item) -> int:
    """Return how many millicores its main container may have before the pod asks for more than without it.

    A pod asks for what its largest init container needs as long as it exists, also when that has ended. One whose
    request is set as a whole asks for that, whatever its containers have."""
    spec = pod["spec"]
    if (whole_m := _whole_m(pod)) is not None:
        return whole_m
    init = spec.get("initContainers") or ()
    sidecars = [one for one in init if one.get("restartPolicy") == "Always"]
    if len(sidecars) == len(init):
        return 0
    main = main_container(pod)
    running = {**spec, "containers": [one for one in spec["containers"] if one is not main]}
    with_init, without = (pod_amounts({"spec": each}) for each in (running, {**running, "initContainers": sidecars}))
    return with_init.get("cpu", 0) - without.get("cpu", 0)


def _whole_m(pod: Item) -> int | None:
    """The millicores that the pod asks for as a whole; None: it asks for what its containers do."""
    requests = (pod["spec"].get("resources") or {}).get("requests") or {}
    return milli_from_quantity(requests["cpu"]) if "cpu" in requests else None
