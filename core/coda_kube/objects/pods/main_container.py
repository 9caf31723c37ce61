"""Which container of a pod is the main one: the rank starts and ends with it, and has its cores and memory.

In a job's template it is the first. A webhook may put containers of its own before it, as proxies are injected.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from coda_kube.objects.names import ANNOTATION_MAIN, SHARING_VARIABLE

Item = Mapping[str, Any]


def main_container(pod: Item) -> Item:
    """Return the container that the pod's annotation names; the first one, where it names none that exists."""
    containers: Sequence[Item] = pod["spec"].get("containers") or ({},)
    name = (pod["metadata"].get("annotations") or {}).get(ANNOTATION_MAIN)
    return next((one for one in containers if one.get("name") == name), containers[0])


def main_status(pod: Item) -> Item:
    """Return what the kubelet says of the main container; empty while it says nothing."""
    name, told = main_container(pod).get("name"), (pod.get("status") or {}).get("containerStatuses") or ()
    return next((one for one in told if one.get("name") == name), {})


def images_of(spec: Item) -> frozenset[tuple[str, str]]:
    """Return the name of each container of a pod's spec, init containers too, with that of its image."""
    containers = (*(spec.get("initContainers") or ()), *(spec.get("containers") or ()))
    return frozenset((str(one.get("name") or ""), str(one.get("image") or "")) for one in containers)


def keeps_to_itself(spec: Item) -> bool:
    """True if a TrainingJob wants nothing of Coda's in its processes on GPUs of its own, and so nobody beside it.

    Its main container's environment says so. It does not count on a seat, which nobody has without the library."""
    containers: Sequence[Item] = ((spec.get("template") or {}).get("spec") or {}).get("containers") or ({},)
    said = [one.get("value") for one in containers[0].get("env") or () if one.get("name") == SHARING_VARIABLE]
    return bool(said) and said[-1] == "false"
