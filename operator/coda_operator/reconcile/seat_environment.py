"""What pods of ranks on seats leave out of their template's environment: what the seat says itself.

The kubelet puts what the pod sets behind what the seat brings, so the pod's word would win: which GPUs it sees, and how
its processes are held (`docs/gpu-sharing.md`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from coda.wording import listed
from coda_kube.objects.json_types import Json

LEFT_OUT: Final = "VariablesLeftOut"
"""The reason of the event that says so."""

_VISIBLE: Final = "NVIDIA_VISIBLE_DEVICES"
_OF_SEATS: Final = frozenset({_VISIBLE, "CODA_LIBRARY", "CODA_PYTHON", "CODA_SHARE", "CODA_SOCKET"})
_VOID: Final = {"name": _VISIBLE, "value": "void"}  # no GPU. Left out it would not do: images of CUDA ask for all
_NONE: Final = frozenset({"", "none", "void"})  # values by which NVIDIA's runtime adds no GPU


def with_environment_of_seats(spec: Mapping[str, Any]) -> Json:
    """Return containers without what the seat of the first one sets; the others see no GPU where they name some.

    A container that names nothing of this stays as it is."""
    main, *others = spec["containers"]
    changed: Json = {"containers": [_of_main(main), *map(_of_another, others)]}
    if spec.get("initContainers"):
        changed["initContainers"] = [*map(_of_another, spec["initContainers"])]
    return changed


def left_out_text(job: Mapping[str, Any]) -> str:
    """Say what pods of this job on seats leave out, or do not pass on; "" if it is nothing."""
    spec = job["spec"]["template"]["spec"]
    main, *others = spec["containers"]
    names = {str(entry["name"]) for entry in main.get("env") or () if entry.get("name") in _OF_SEATS}
    if any(_of_another(other) is not other for other in (*others, *(spec.get("initContainers") or ()))):
        names.add(_VISIBLE)
    if not names:
        return ""
    return f"a seat on a shared GPU sets {listed(sorted(names))}: the template's own values are left out"


def _of_main(container: Json) -> Json:
    env = container.get("env") or ()
    kept = [entry for entry in env if entry.get("name") not in _OF_SEATS]
    return container if len(kept) == len(env) else container | {"env": kept}


def _of_another(container: Json) -> Json:
    env = container.get("env") or ()
    kept = [_VOID if _names_gpus(entry) else entry for entry in env]
    return container if all(new is old for new, old in zip(kept, env, strict=True)) else container | {"env": kept}


def _names_gpus(entry: Mapping[str, Any]) -> bool:
    return entry.get("name") == _VISIBLE and ("valueFrom" in entry or (entry.get("value") or "") not in _NONE)
