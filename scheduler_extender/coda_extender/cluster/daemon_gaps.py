"""Room that pods of DaemonSets are about to take on their nodes: it is held back until kube-scheduler has bound them.

Such a pod is made for one node, which its required affinity names. At a rolling update the old one ends first. Jobs
that take its room at once would keep the new one from its node for as long as they run.

Owner references are written by whoever makes the pod, and a user may have DaemonSets. So nothing is held back that a
bound pod could not have: only what fits now beside the bound pods, on a node whose taints and labels let the pod in,
and for `LONGEST_S` at a stretch. A pod that waits for more room than there is withholds nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

from coda.model import NOTHING, Node, Resources
from coda.model.constraints import NodeConstraints
from coda.nodes.eligibility import exclusion
from coda_kube.cluster_state import ClusterState
from coda_kube.objects.json_types import Json
from coda_kube.objects.pods.node_terms import constraints_from_json, required_terms
from coda_kube.objects.read import Pod

GAP_S: Final = 5.0
"""The controller makes the next pod once the old one is deleted, which takes a kubelet a second or two. Our choice."""

LONGEST_S: Final = 60.0
"""kube-scheduler tries a pod again after 10 s at most (`podMaxBackoffSeconds`) once a pod of its node is gone. One that
it does not bind in this time, it does not want there. Our choice."""


@dataclass(slots=True)
class _Due:
    """What one DaemonSet is about to take on one node. `fits_s`: since when that fits; None: it does not."""

    request: Resources
    constraints: NodeConstraints
    until_s: float = float("inf")  # of a gap
    fits_s: float | None = None


class DaemonGaps:
    """It learns of every change of a pod. A new process learns of waiting pods when it lists them."""

    def __init__(self, state: ClusterState, clock: Callable[[], float]) -> None:
        self._state = state
        self._clock = clock
        self._due_by_node: dict[str, dict[str, _Due]] = {}  # by `daemon_set_of`
        self._gaps: deque[tuple[_Due, str, str]] = deque()  # with node and owner, the one that ends first comes first

    def observe(self, before: Pod | None, after: Pod | None, old: Json | None, new: Json | None) -> None:
        """A pod came, changed or went; the state knows already."""
        if new is not None and after is not None and (owner := daemon_set_of(new)):
            if after.node is not None:
                if before is None or before.node is None:  # not one that another is to replace
                    self._forget(after.node, owner)
            elif after.node is None and after.pinned_to is not None and not (after.gated or after.terminating):
                known = self._due_by_node.setdefault(after.pinned_to, {}).get(owner)
                fits_s = known.fits_s if known is not None and known.until_s == float("inf") else None
                self._due_by_node[after.pinned_to][owner] = _Due(after.request, _constraints(new), fits_s=fits_s)
        if before is None or before.ended or old is None or not (owner := daemon_set_of(old)):
            return
        is_gone = after is None or after.uid != before.uid or after.ended
        if before.node is None:
            if is_gone and after is None and before.pinned_to is not None:
                self._forget(before.pinned_to, owner)
        elif is_gone and before.pinned_to == before.node:
            self._forget_ended_gaps()
            due = _Due(before.request, _constraints(old), self._clock() + GAP_S)
            self._due_by_node.setdefault(before.node, {}).setdefault(owner, due)
            self._gaps.append((due, before.node, owner))

    def held_by_node(self, names: Collection[str] | None = None) -> dict[str, Resources]:
        """Per node, what must not be given away yet; with `names`, on these. O(pods that wait there, and gaps)."""
        due = [*self._due_by_node] if names is None else [name for name in names if name in self._due_by_node]
        held = {name: self._held_on(name) for name in due}
        return {name: amount for name, amount in held.items() if amount is not NOTHING}

    def next_expiry_in_s(self) -> float | None:
        """How long until capacity is free by time alone, as of the last `held_by_node`; None where nothing is held."""
        every = [due for by_owner in self._due_by_node.values() for due in by_owner.values()]
        now_s = self._clock()
        ends_s = [min(due.until_s, due.fits_s + LONGEST_S) for due in every if due.fits_s is not None]
        return min([end_s - now_s for end_s in ends_s if end_s > now_s], default=None)

    def _forget_ended_gaps(self) -> None:
        """Only a planner asks what is held; every replica sees pods end."""
        while self._gaps and self._clock() >= self._gaps[0][0].until_s:
            due, node, owner = self._gaps.popleft()
            if self._due_by_node.get(node, {}).get(owner) is due:
                self._forget(node, owner)

    def _held_on(self, name: str) -> Resources:
        node, now_s, held = self._state.node(name), self._clock(), NOTHING
        for owner, due in [*self._due_by_node[name].items()]:
            if now_s >= due.until_s:
                self._forget(name, owner)
            elif node is None or not self._fits(due, node, held):
                due.fits_s = None
            else:
                due.fits_s = now_s if due.fits_s is None else due.fits_s
                if now_s < due.fits_s + LONGEST_S:
                    held = held + due.request
        return held

    def _fits(self, due: _Due, node: Node, held: Resources) -> bool:
        missing = self._state.short_nodes.missing_by_name.get(node.name, NOTHING)
        free = node.allocatable - missing - self._state.use.of(node.name) - held
        return due.request.fits_in(free) and exclusion(due.constraints, node) is None

    def _forget(self, name: str, owner: str) -> None:
        by_owner = self._due_by_node.get(name, {})
        by_owner.pop(owner, None)
        if not by_owner:
            self._due_by_node.pop(name, None)


def daemon_set_of(pod: Json) -> str:
    """The namespace of the pod and the uid of the DaemonSet that controls it; empty without one."""
    for owner in pod["metadata"].get("ownerReferences") or ():
        if owner.get("controller") and owner.get("kind") == "DaemonSet":
            is_of_kubernetes = str(owner.get("apiVersion")).startswith("apps/")
            return f"{pod['metadata'].get('namespace')}/{owner.get('uid')}" if is_of_kubernetes else ""
    return ""


def _constraints(pod: Json) -> NodeConstraints:
    return constraints_from_json(pod["spec"], required_terms(pod["spec"]))
