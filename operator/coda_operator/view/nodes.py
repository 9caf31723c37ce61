"""What the operator knows of nodes: since when each is not Ready, and how many cores the largest has.

Nothing else of a Node object is kept: with its images and labels it is a hundred times as large.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from coda_kube.api.client import Client
from coda_kube.api.watch_cache import WatchCache, key_of
from coda_kube.objects.json_types import Json
from coda_kube.objects.names import GPU
from coda_kube.objects.quantities import milli_from_quantity, seconds_from_time, whole_from_quantity


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSeen:
    """A node as last seen; `ready` is its Ready condition's status (True, False, Unknown), `since_s` its transition."""

    ready: str
    since_s: float
    gpus: int
    cores: int


class Nodes:
    """A watch on nodes; `changed` is called with the name of each node that becomes Ready or stops being Ready."""

    def __init__(self, client: Client, changed: Callable[[str], None], clock: Callable[[], float]) -> None:
        self._changed = changed
        self._clock = clock
        self._seen: dict[str, NodeSeen] = {}
        self._unready_since_s: dict[str, float] = {}
        self._most_cores_by_gpus: dict[int, int] = {}
        self.cache = WatchCache(client, "/api/v1/nodes", listener=self._on_node)

    def unready_since_s(self, names: Iterable[str]) -> Mapping[str, float]:
        """Return the nodes among `names` that are not Ready or gone, with since when (seconds since 1970)."""
        for name in names:
            if name not in self._seen:
                self._unready_since_s.setdefault(name, self._clock())
        return {name: self._unready_since_s[name] for name in names if name in self._unready_since_s}

    def forget_if_gone(self, name: str) -> None:
        """Forget a node that is gone, once no pod of a gang is on it."""
        if name not in self._seen:
            self._unready_since_s.pop(name, None)

    def most_cores(self, gpus: int) -> int:
        """Return the cores of the largest node with at least `gpus` GPUs; 0 if there is none."""
        cores = self._most_cores_by_gpus.get(gpus)
        if cores is None:
            cores = max((node.cores for node in self._seen.values() if node.gpus >= gpus), default=0)
            self._most_cores_by_gpus[gpus] = cores
        return cores

    def _on_node(self, old: Json | None, new: Json | None) -> None:
        name = key_of(new or old or {})
        was_unready, before = name in self._unready_since_s, self._seen.get(name)
        if new is None:
            self._seen.pop(name, None)
            after = None
        else:
            after = self._seen[name] = _node_from_json(new)
            self.cache.by_key[name] = {
                "metadata": {"name": name, "resourceVersion": new["metadata"]["resourceVersion"]}
            }
        if _size(before) != _size(after):
            self._most_cores_by_gpus.clear()
        self._note(name, before, after)
        if was_unready != (name in self._unready_since_s):
            self._changed(name)

    def _note(self, name: str, before: NodeSeen | None, after: NodeSeen | None) -> None:
        if after is None:
            self._unready_since_s.setdefault(name, self._clock())
        elif after.ready == "True":
            self._unready_since_s.pop(name, None)
        elif name not in self._unready_since_s or _came_back_unseen(before, after):
            self._unready_since_s[name] = after.since_s or self._clock()


def _came_back_unseen(before: NodeSeen | None, after: NodeSeen) -> bool:
    """True if the node was Ready in between, while the watch was away: same status, another time of change."""
    return before is not None and before.ready == after.ready and before.since_s != after.since_s


def _node_from_json(node: Json) -> NodeSeen:
    status = node.get("status") or {}
    ready: Json = next((c for c in status.get("conditions") or () if c["type"] == "Ready"), {})
    allocatable = status.get("allocatable") or {}
    return NodeSeen(
        ready=ready.get("status") or "Unknown",
        since_s=seconds_from_time(ready.get("lastTransitionTime")),
        gpus=whole_from_quantity(allocatable.get(GPU, "0")),
        cores=milli_from_quantity(allocatable.get("cpu", "0")) // 1000,
    )


def _size(node: NodeSeen | None) -> tuple[int, int] | None:
    return (node.gpus, node.cores) if node is not None else None
