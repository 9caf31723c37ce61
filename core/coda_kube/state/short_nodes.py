"""Nodes that lack devices for a moment: while a device plugin starts again, its node offers none of its resource. So
does a node that is new, or was started again, until its driver is installed.

Without this memory the GPUs of such nodes would be gone for these seconds: the pool would be full, gangs would stop
for whoever can start a moment later, jobs that fit would never fit, and CPU jobs would get the cores beside the GPUs as
their own. So the node counts with what it had, and what it lacks is held back: nobody gets it before it is offered.
Of a node that joins nobody knows what it will have: while its labels promise GPUs and it offers none, it takes no jobs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final, NamedTuple

from coda.model import NOTHING, Node, Resources
from coda_kube.objects.json_types import Json
from coda_kube.objects.names import GROUP
from coda_kube.objects.pod_requests import resources_reported
from coda_kube.objects.quantities import seconds_from_time
from coda_kube.objects.read import node_from_json

SHORT_S: Final = 120.0
"""After this time the node counts with what it offers. Our choice: a plugin starts again within seconds, and after an
upgrade within a minute; a node whose GPUs are taken away for good misleads nobody for long."""
JOINS_S: Final = 600.0
"""For this time after a node was made, or came back, its labels count. Our choice: its driver is installed within three
to six minutes as a rule, by a container also after each reboot. A node that offers none is of use to CPU jobs then."""

_PROMISES: Final = (
    "nvidia.com/gpu.present",  # the GPU operator's, and that of GPU feature discovery
    "feature.node.kubernetes.io/pci-10de.present",  # node feature discovery's, which comes first
    "cloud.google.com/gke-accelerator",
    "k8s.amazonaws.com/accelerator",
    "kubernetes.azure.com/accelerator",
    "karpenter.k8s.aws/instance-gpu-count",
)
"""Labels of nodes with GPUs, also before these are offered. Source: the documentation of these programs. Cluster
Autoscaler takes a node for unready, too, that has its provider's label and offers no GPU (`gpu_processor.go`)."""
_NO: Final = ("", "0", "false")
_MAKERS: Final = ("nvidia.com/", "amd.com/")  # they also offer slices, under other names, instead of whole GPUs
_WHOLE: Final = "/gpu"  # every other maker's, by custom: these labels promise GPUs of any


class _Offered(NamedTuple):
    node: Node  # as its object says
    boot: str  # the boot id that it had when it was last seen Ready
    ready: str  # since when it is Ready, by its own clock; empty if it is not
    there_s: float  # when it was made, or came back


class _Short(NamedTuple):
    had: Resources
    until_s: float


class ShortNodes:
    """What each node offers, and what it had before, if that was more and not long ago. `clock` only grows; `now_s` is
    the API server's time.

    What it remembers may be lost: a new process counts what the node's capacity says besides, for as long. When a node
    came back it reads from the object."""

    def __init__(self, clock: Callable[[], float], now_s: Callable[[], float]) -> None:
        self._clock = clock
        self._now_s = now_s
        self._offered_by_name: dict[str, _Offered] = {}
        self._short_by_name: dict[str, _Short] = {}
        self._joins_until_s: dict[str, float] = {}  # of nodes without the GPUs that their labels promise
        self.missing_by_name: dict[str, Resources] = {}  # what is held back of each short node

    def note(self, name: str, item: Json | None) -> tuple[Node | None, bool]:
        """A node came, changed or went. Returns it with what it has for the planner, and whether it lacks something
        else than before.

        How long it may be short counts from the first fall, however often it falls and rises before it is whole."""
        before = self._offered_by_name.get(name)
        now = _offered(item, before, self._now_s()) if item is not None else None  # if that fails, nothing changes
        self._offered_by_name.pop(name, None)
        short = self._short_by_name.pop(name, None)
        lacked = self.missing_by_name.pop(name, NOTHING)
        self._joins_until_s.pop(name, None)
        if now is None:
            return None, lacked is not NOTHING
        self._offered_by_name[name] = now
        if short is None:
            had = _capacity(item or {}) if before is None else before.node.allocatable
            short = _Short(had, self._clock() + SHORT_S)
        offered = now.node.allocatable
        missing = _missing(short.had, offered)
        if missing is NOTHING or self._clock() >= short.until_s:
            return self._joining(now), lacked is not NOTHING
        self._short_by_name[name], self.missing_by_name[name] = short, missing
        return replace(now.node, allocatable=offered + missing), missing != lacked

    def pop_over(self) -> list[Node]:
        """Return the nodes that have been short, or joining, for too long, as they are; they count so from now on.

        One that was short and still joins takes no jobs for the rest of that time, like any other without GPUs."""
        now_s = self._clock()
        short = [name for name, short in self._short_by_name.items() if now_s >= short.until_s]
        for name in short:
            del self._short_by_name[name], self.missing_by_name[name]
        joined = [name for name, until_s in self._joins_until_s.items() if now_s >= until_s]
        for name in joined:
            del self._joins_until_s[name]
        rest = [self._joining(self._offered_by_name[name]) for name in short]
        return [*rest, *(self._offered_by_name[name].node for name in joined)]

    def next_over_in_s(self) -> float | None:
        """How long until `pop_over` returns one; None if no node is short or joins."""
        short_s = [short.until_s for short in self._short_by_name.values()]
        until_s = min((*short_s, *self._joins_until_s.values()), default=None)
        return None if until_s is None else max(0.0, until_s - self._clock())

    def _joining(self, offered: _Offered) -> Node:
        """The node; as one that takes no jobs yet, if it is new, or back, and lacks the GPUs that its labels promise.

        CPU jobs would own its cores for as long as they run, also those beside the GPUs that come."""
        node = offered.node
        if node.allocatable.gpus or all(node.labels.get(label, "") in _NO for label in _PROMISES):
            return node
        if any(name.startswith(_MAKERS) or name.endswith(_WHOLE) for name in node.allocatable.other):
            return node
        left_s = offered.there_s + JOINS_S - self._now_s()
        if left_s <= 0:
            return node
        self._joins_until_s[node.name] = self._clock() + min(JOINS_S, left_s)
        return replace(node, schedulable=False, joins=True)


def _offered(item: Json, before: _Offered | None, now_s: float) -> _Offered:
    """The node as its object says. A new boot id tells of a reboot during which nobody saw the node as not Ready. With
    an unchanged one a node that is Ready again is no return: its kubelet, or its network, was away.

    The clock of a node that was just started may be wrong: no return counts as later than it was seen."""
    status = item.get("status") or {}
    boot = str((status.get("nodeInfo") or {}).get("bootID") or "")
    since = [one for one in status.get("conditions") or () if one["type"] == "Ready" and one["status"] == "True"]
    ready = str(since[0].get("lastTransitionTime") or "") if since else ""
    there_s = seconds_from_time(item["metadata"].get("creationTimestamp"))
    had_boot = before.boot if before is not None else ""
    if not boot or boot != had_boot:
        if before is None or ready != before.ready:
            there_s = max(there_s, min(now_s, seconds_from_time(ready)))
        if boot and had_boot:
            there_s = max(there_s, now_s)
    if before is not None:
        there_s = max(there_s, before.there_s)
    return _Offered(node_from_json(item), boot if since else had_boot, ready, there_s)


def _capacity(item: Json) -> Resources:
    return resources_reported((item.get("status") or {}).get("capacity") or {})


def _missing(had: Resources, offered: Resources) -> Resources:
    """The devices that are not offered any more; `NOTHING` without any. Coda's own are seats, which an agent offers
    only while it works."""
    other = {
        name: amount - offered.other.get(name, 0)
        for name, amount in had.other.items()
        if "/" in name and not name.startswith(f"{GROUP}/") and amount > offered.other.get(name, 0)
    }
    gpus = max(0, had.gpus - offered.gpus)
    return Resources(gpus=gpus, other=other) if gpus or other else NOTHING
