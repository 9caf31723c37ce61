"""What the pods of each node ask for together, as a running sum."""

from __future__ import annotations

from collections.abc import Callable

from coda.model import NOTHING, Resources
from coda_kube.objects.read import Pod


class NodeUse:
    """The bound pods that have not ended. `on_changed`: takes each node whose use was summed up again."""

    def __init__(self, on_changed: Callable[[str], None]) -> None:
        self._on_changed = on_changed
        self.by_name: dict[str, Resources] = {}  # nodes without pods are absent

    def of(self, node: str) -> Resources:
        """The sum of the requests on this node."""
        return self.by_name.get(node, NOTHING)

    def change(self, before: Pod | None, after: Pod | None) -> None:
        """A pod came, changed or went."""
        self._add(before, -1)
        self._add(after, +1)

    def _add(self, pod: Pod | None, sign: int) -> None:
        if pod is None or pod.node is None or pod.ended:
            return
        used = self.by_name.pop(pod.node, NOTHING)
        used = used + pod.request if sign > 0 else used - pod.request
        if used.pods:  # every pod asks for a place
            self.by_name[pod.node] = used
        self._on_changed(pod.node)
