"""Values of in-place resize: a container's size, how a node treats resizes, and what a pod's conditions say.

A node's annotations make it behave as some real ones do: `cpu-manager` "static"; `resize` "defer" (as if others had the
capacity), "error" (the runtime fails), "unsupported" (an old kubelet) or "hang" (no answer); `resize-seconds`: the time
from allocated to applied.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from coda.errors import InvalidInput
from coda_lab.kubelets.behaviour import PREFIX

Json = Mapping[str, Any]


class Manner(Enum):
    """How a node treats resizes; the value is its annotation's."""

    OBEYS = ""
    DEFERS = "defer"
    FAILS = "error"
    UNSUPPORTED = "unsupported"
    HANGS = "hang"


@dataclass(frozen=True, slots=True, kw_only=True)
class Manners:
    """A node's treatment of resizes, from its annotations."""

    manner: Manner = Manner.OBEYS
    static: bool = False  # the CPU manager's policy
    takes_s: float = 0.3


USUAL: Final = Manners()


def manners_from_node(item: Json) -> Manners:
    """Read the annotations of a node. Raises InvalidInput with the annotation's name."""
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
    """The resources of one container, as its spec says them."""

    requests: Mapping[str, str]
    limits: Mapping[str, str]
    restarts: bool = False  # its resizePolicy for cpu

    def json(self) -> dict[str, Any]:
        """JSON as in a container's status."""
        amounts = {"requests": dict(self.requests), "limits": dict(self.limits)}
        return {kind: amount for kind, amount in amounts.items() if amount}


def size_from_json(container: Json) -> Size:
    """The size of a container of a spec."""
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
"""Sizes by container."""


def sizes_from_json(spec: Json) -> dict[str, Size]:
    """The sizes of a pod's containers."""
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
