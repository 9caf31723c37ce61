"""What the operator knows of nodes: since when each is not Ready, and how many cores the largest has.

Of the rest of a Node object only the labels of nodes with GPUs are kept: with its images it is a hundred times as
large. Times are those at which the operator saw a change, by its own clock: the clocks of the node and of Kubernetes'
controllers may differ.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from coda.errors import InvalidInput
from coda.lifecycle import LifecycleConfig
from coda.lifecycle.node_loss import Brake, brake_moment, next_brake
from coda.model import NOTHING, Node
from coda.model.constraints import NodeConstraints, key_of_constraints
from coda.nodes.eligibility import exclusion
from coda_kube.api.client import Client
from coda_kube.api.watch_cache import WatchCache, key_of
from coda_kube.objects.json_types import Json
from coda_kube.objects.names import ANNOTATION_CLEARED, GPU
from coda_kube.objects.pod_requests import readable_quantities
from coda_kube.objects.pods.node_terms import constraints_from_json, required_terms
from coda_kube.objects.quantities import milli_from_quantity, seconds_from_time, whole_from_quantity

log = logging.getLogger(__name__)

_OUT_OF_SERVICE = "node.kubernetes.io/out-of-service"

_DAEMONS_CPU_M: Final = 1000
"""Millicores of a node that ranks are not given by themselves: the pods of DaemonSets, the agent's among them, ask for
some. Our choice: those of a usual cluster ask for 0.2 to 0.7 cores."""

_MOST_WISHES: Final = 1000
"""Constraints of jobs for which the cores are kept. Our choice: each costs a walk over all nodes."""

_BLINK_S: Final = 5.0
"""A watch that is back within this time missed little: whatever cuts it often puts no loss off. Our choice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSeen:
    """A node as last seen; `ready` is its Ready condition's status (True, False, Unknown)."""

    ready: str
    changed: str  # when that changed last, by another machine's clock: only compared with itself
    boot: str  # the kernel's boot id: another one means that the node was restarted
    out_of_service: bool  # an administrator says that nothing runs there any more
    may_have_run: bool  # its status does not exclude that it has been Ready
    gpus: int
    cores: int  # whole ones that ranks may have beside the pods of DaemonSets; at least 1
    memory_bytes: int
    labels: tuple[str, ...]  # keys and values in turn, of a node with GPUs; strings that others have, too, are shared
    cleared: str  # the date that an administrator wrote who trusts its GPUs again, by another machine's clock
    created_s: float  # when this Node was made, by the API server; 0: it does not say
    cleared_s: float  # since then they are trusted, by our clock; 0: nobody said so


class Nodes:
    """A watch on nodes; `changed` is called with the name of each node whose loss is to be judged again."""

    def __init__(
        self, client: Client, changed: Callable[[str], None], clock: Callable[[], float], config: LifecycleConfig
    ) -> None:
        self._changed = changed
        self._clock = clock
        self._config = config
        self._seen: dict[str, NodeSeen] = {}
        self._unready_since_s: dict[str, float] = {}
        self._outages: dict[str, tuple[float, float | None]] = {}
        self._been_ready: set[str] = set()  # nodes that count for the brake
        self._unready_counted_s: dict[str, float] = {}  # of those, since when each is not Ready
        self._brake = Brake()
        self._brake_timer: asyncio.TimerHandle | None = None
        self._most_cores_by_gpus: dict[int, int] = {}
        self._part_by_wish: dict[Hashable, int] = {}  # by GPUs, and by constraints where there are any
        self._broke = asyncio.Event()  # set while changes of nodes are not seen
        self._back_s = 0.0  # when they were seen again after the last outage
        self.cache = WatchCache(client, "/api/v1/nodes", listener=self._on_node, on_break=self._broke.set)

    async def run(self) -> None:
        """Watch until cancelled."""
        await asyncio.gather(self.cache.run(), self._note_outages_of_the_watch())

    def unready_since_s(self, names: Iterable[str]) -> Mapping[str, float]:
        """Return the nodes among `names` that are not Ready or gone, with since when (by our clock).

        Not before the brake was last released, nor before changes are seen again after an outage: until then, nobody
        could judge them."""
        now_s = self._clock()
        for name in names:
            if name not in self._seen:
                self._unready_since_s.setdefault(name, now_s)
        floor_s = now_s if self._broke.is_set() else max(self._brake.released_s, self._back_s)
        return {name: max(floor_s, since) for name in names if (since := self._unready_since_s.get(name)) is not None}

    def given_up(self, names: Iterable[str]) -> frozenset[str]:
        """Return the nodes among `names` that are deleted or tainted out-of-service."""
        return frozenset(name for name in names if (seen := self._seen.get(name)) is None or seen.out_of_service)

    def outages(self, names: Iterable[str]) -> Mapping[str, tuple[float, float | None]]:
        """Return the last outage that was seen of each node among `names`: since when, until when (None: it lasts)."""
        return {name: self._outages[name] for name in names if name in self._outages}

    def boots(self, names: Iterable[str]) -> Mapping[str, str]:
        """Return the boot id of each node among `names` that tells it."""
        return {name: seen.boot for name in names if (seen := self._seen.get(name)) is not None and seen.boot}

    def is_braked(self) -> bool:
        """True while so many nodes are not Ready that none may be called lost."""
        moment_s = brake_moment(self._brake, self._config)
        if moment_s is not None and self._clock() >= moment_s:
            self._judge_brake()
        return self._brake.since_s is not None

    def unready_count(self) -> int:
        """Return how many of the nodes that exist are not Ready."""
        return sum(1 for name in self._unready_since_s if name in self._seen)

    def forget_if_gone(self, name: str) -> None:
        """Forget a node that is gone, once no pod of a gang is on it."""
        if name not in self._seen:
            self._unready_since_s.pop(name, None)
            self._outages.pop(name, None)

    def most_cores(self, gpus: int) -> int:
        """Return the cores of the largest node with at least `gpus` GPUs; 0 if there is none."""
        cores = self._most_cores_by_gpus.get(gpus)
        if cores is None:
            cores = max((node.cores for node in self._seen.values() if node.gpus >= gpus), default=0)
            self._most_cores_by_gpus[gpus] = cores
        return cores

    def part_of_cores(self, gpus: int, spec: Json | None = None) -> int:
        """Return the whole cores that go with `gpus` GPUs, above 0, on the poorest node that has so many.

        With a pod's spec only nodes count that its selector and required affinity accept; all, if it accepts none.
        At least 1; 0 without such a node. So ranks that fill its GPUs fit its cores (docs/decisions/0053)."""
        limits = _limits_of(spec or {})
        part = 0 if limits is None else self._part(gpus, limits)
        return part or self._part(gpus, None)

    def _part(self, gpus: int, limits: NodeConstraints | None) -> int:
        wish = gpus, None if limits is None else key_of_constraints(limits)
        part = self._part_by_wish.get(wish)
        if part is None:
            if len(self._part_by_wish) >= _MOST_WISHES:
                self._part_by_wish.clear()
            nodes = (node for name, node in self._seen.items() if node.gpus >= gpus and _accepts(limits, name, node))
            part = min((max(1, node.cores * gpus // node.gpus) for node in nodes), default=0)
            self._part_by_wish[wish] = part
        return part

    def with_gpus(self) -> int:
        """Return how many nodes have GPUs."""
        return sum(1 for node in self._seen.values() if node.gpus)

    def cleared_s(self) -> Mapping[str, float]:
        """Return the nodes that an administrator trusts again, and since when."""
        return {name: node.cleared_s for name, node in self._seen.items() if node.cleared_s}

    def created_s(self) -> Mapping[str, float]:
        """Return since when each node is there: what was before is of another machine with its name."""
        return {name: node.created_s for name, node in self._seen.items() if node.created_s}

    def memory_bytes(self, name: str) -> int:
        """Return the memory that a node may give to pods; 0 if it is not known."""
        return self._seen[name].memory_bytes if name in self._seen else 0

    async def _note_outages_of_the_watch(self) -> None:
        """No kubelet can say that it is back while the API server is away: its node gets its whole time afterwards."""
        while True:
            await self._broke.wait()
            since_s = self._clock()
            while not self.cache.in_touch.is_set():
                await self.cache.in_touch.wait()
            self._broke.clear()
            now_s = self._clock()
            if now_s - since_s >= _BLINK_S:
                self._back_s = now_s
            for name in [*self._unready_since_s]:
                self._changed(name)

    def _on_node(self, old: Json | None, new: Json | None) -> None:
        name = key_of(new or old or {})
        before, was_unready = self._seen.get(name), name in self._unready_since_s
        if new is None:
            self._seen.pop(name, None)
            after = None
        else:
            after = self._seen[name] = _node_from_json(new, before, self._clock())
            self.cache.by_key[name] = {
                "metadata": {"name": name, "resourceVersion": new["metadata"]["resourceVersion"]}
            }
        if _size(before) != _size(after):
            self._most_cores_by_gpus.clear()
            self._part_by_wish.clear()
        self._note(name, before, after)
        given_up = before is not None and not before.out_of_service and (after is None or after.out_of_service)
        changed = was_unready != (name in self._unready_since_s)
        if self._count(name, before, after) or changed:
            self._judge_brake()
        if changed or given_up or after is None:  # what is known of a node that is gone goes, too
            self._changed(name)

    def _count(self, name: str, before: NodeSeen | None, after: NodeSeen | None) -> bool:
        """Note whether the node counts for the brake, and since when it is not Ready; True if the first changed. O(1).

        Of nodes that were there before this process, their status tells whether they may have been Ready."""
        counted = name in self._been_ready
        if after is None or after.out_of_service:
            self._been_ready.discard(name)
        elif after.ready == "True" or (before is None and not self.cache.synced.is_set() and after.may_have_run):
            self._been_ready.add(name)
        since_s = self._unready_since_s.get(name) if name in self._been_ready else None
        if since_s is None:
            self._unready_counted_s.pop(name, None)
        else:
            self._unready_counted_s[name] = since_s
        return counted != (name in self._been_ready)

    def _note(self, name: str, before: NodeSeen | None, after: NodeSeen | None) -> None:
        now_s = self._clock()
        rebooted = before is not None and after is not None and before.boot != after.boot and bool(before.boot)
        if after is None:
            self._unready_since_s.setdefault(name, now_s)
        elif after.ready == "True":
            since_s = self._unready_since_s.pop(name, now_s if rebooted else None)
            if since_s is not None:
                self._outages[name] = since_s, now_s
            return
        elif name not in self._unready_since_s or _came_back_unseen(before, after):
            self._unready_since_s[name] = now_s
        self._outages[name] = self._unready_since_s[name], None

    def _judge_brake(self) -> None:
        """Judge again whether node loss is suspended; if that changed, every node that is not Ready is judged again."""
        unready = self._unready_counted_s
        before, nodes = self._brake, len(self._been_ready)
        self._brake = next_brake(before, unready, nodes, self._clock(), self._config)
        self._set_brake_timer()
        if (before.since_s is None) != (self._brake.since_s is None):
            log.warning("%d of %d nodes are not Ready: %s", len(unready), nodes, self._brake_says())
            for name in [name for name in self._unready_since_s if name in self._seen]:
                self._changed(name)

    def _set_brake_timer(self) -> None:
        if self._brake_timer is not None:
            self._brake_timer.cancel()
        moment_s = brake_moment(self._brake, self._config)
        delay_s = None if moment_s is None else moment_s - self._clock() + 0.001
        later = asyncio.get_running_loop().call_later
        self._brake_timer = None if delay_s is None else later(max(0.0, delay_s), self._judge_brake)

    def _brake_says(self) -> str:
        judged = "each is judged alone again, from now on"
        return judged if self._brake.since_s is None else "too many at once, none is called lost for now"


def _came_back_unseen(before: NodeSeen | None, after: NodeSeen) -> bool:
    """True if the node was Ready in between, while the watch was away: same status, another time of change."""
    return before is not None and before.ready == after.ready and before.changed != after.changed


def _node_from_json(node: Json, before: NodeSeen | None, now_s: float) -> NodeSeen:
    cleared = str((node["metadata"].get("annotations") or {}).get(ANNOTATION_CLEARED) or "")
    spec, status = node.get("spec") or {}, node.get("status") or {}
    ready: Json = next((c for c in status.get("conditions") or () if c["type"] == "Ready"), {})
    allocatable = readable_quantities(status.get("allocatable") or {})
    gpus = whole_from_quantity(allocatable.get(GPU, "0"))
    return NodeSeen(
        ready=ready.get("status") or "Unknown",
        changed=str(ready.get("lastTransitionTime") or ""),
        boot=str((status.get("nodeInfo") or {}).get("bootID") or ""),
        out_of_service=any(taint["key"] == _OUT_OF_SERVICE for taint in spec.get("taints") or ()),
        may_have_run=bool(ready) and not _never_ran(ready, status["conditions"]),
        gpus=gpus,
        cores=max(1, (milli_from_quantity(allocatable.get("cpu", "0")) - _DAEMONS_CPU_M) // 1000),
        memory_bytes=whole_from_quantity(allocatable.get("memory", "0")),
        labels=_shared(node["metadata"].get("labels") or {}) if gpus else (),
        cleared=cleared,
        created_s=seconds_from_time(node["metadata"].get("creationTimestamp")),
        cleared_s=_cleared_s(cleared, before, now_s),
    )


def _cleared_s(text: str, before: NodeSeen | None, now_s: float) -> float:
    """Return since when a node is trusted again; 0 for anything but a date that somebody wrote there.

    A date that changes is an event of this moment: the administrator's clock may differ. One that was there before this
    process is believed, unless it is in the future."""
    if before is not None and before.cleared == text:
        return before.cleared_s
    try:
        written_s = seconds_from_time(text)
    except InvalidInput:
        return 0.0
    return min(written_s, now_s) if before is None or not written_s else now_s


def _never_ran(ready: Json, conditions: Iterable[Json]) -> bool:
    """True if its kubelet never spoke, or has called it not Ready since it first told its conditions.

    Kubelets write all conditions at once when they begin, and each one's time again only when it changes."""
    if ready.get("reason") == "NodeStatusNeverUpdated":
        return True
    others = {other.get("lastTransitionTime") for other in conditions if other["type"] != "Ready"}
    return ready.get("status") == "False" and ready.get("lastTransitionTime") in others


def _size(node: NodeSeen | None) -> tuple[int, int, tuple[str, ...]] | None:
    return (node.gpus, node.cores, node.labels) if node is not None else None


def _shared(labels: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(sys.intern(str(text)) for item in labels.items() for text in item)


def _limits_of(spec: Json) -> NodeConstraints | None:
    """Return what a pod's spec says of the labels of its nodes; None: nothing, or nothing that can be read.

    The API server has not judged the spec yet. Taints do not count: it may add tolerations."""
    try:
        limits = constraints_from_json({"nodeSelector": spec.get("nodeSelector")}, required_terms(spec))
        hash(key_of_constraints(limits))
    except (AttributeError, KeyError, TypeError, ValueError):
        return None
    requirements = [one for term in limits.terms for one in (*term.labels, *term.fields)]
    if not all(isinstance(value, str) for one in requirements for value in one.values):
        return None
    return limits if limits.selector or limits.terms else None


def _accepts(limits: NodeConstraints | None, name: str, node: NodeSeen) -> bool:
    if limits is None:
        return True
    labels = dict(zip(node.labels[::2], node.labels[1::2], strict=True))
    return exclusion(limits, Node(name=name, allocatable=NOTHING, labels=labels)) is None
