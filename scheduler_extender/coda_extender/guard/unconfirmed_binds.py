"""Nodes on which a pod was bound that kube-scheduler may not know of.

The API server may store a bind and die before it answers, or the answer may be lost. kube-scheduler then forgets the
pod, and takes its capacity for free until its own watch is back. But it shows what it knows: it learns of pods in the
order of their resourceVersions. A pod that it asks about proves that every older bind is known.

After an outage kube-scheduler tries all its pods again at once, and several may choose one such node before the first
is seen bound there. Until these binds are proven, pods in flight count on them.
"""

from __future__ import annotations

from collections.abc import KeysView
from typing import NamedTuple

from coda.placements.wait_limits import SPREAD_S, is_bind_known, is_outage_over
from coda_extender.guard.in_flight import Clock


class _Bind(NamedTuple):
    version: int
    bound_s: float


class UnconfirmedBinds:
    """The nodes of the whole cluster by their last bind that kube-scheduler has not been seen to know."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._bind_by_node: dict[str, _Bind] = {}  # oldest first
        self._newest_version = 0  # of a bind
        self._shown_version = 0  # by kube-scheduler so far
        self._shown_before = 0  # the same, `SPREAD_S` or longer before the next turn
        self._proven_version = 0  # binds up to this version are known in all of kube-scheduler
        self._next_turn_s = float("-inf")
        self._outage_s = float("-inf")  # the last moment of the last outage that was noticed
        self._is_doubted = False

    def note_outage(self) -> None:
        """The API server is away: binds of this moment may be forgotten."""
        self._outage_s, self._is_doubted = self._clock(), True

    def add(self, node: str, version: int) -> None:
        """A pod was seen bound to `node`, in its state of that resourceVersion."""
        now_s = self._clock()
        self._newest_version = max(self._newest_version, version)
        self._bind_by_node.pop(node, None)
        self._bind_by_node[node] = _Bind(version, now_s)
        self._remove_known(now_s)

    def note_question(self, version: int) -> None:
        """kube-scheduler asks about a pod in its state of that resourceVersion."""
        now_s = self._clock()
        self._shown_version = max(self._shown_version, min(version, self._newest_version))  # proves no later bind
        if now_s >= self._next_turn_s:
            self._proven_version, self._shown_before = self._shown_before, self._shown_version
            self._next_turn_s = now_s + SPREAD_S
        self._remove_known(now_s)
        if self._is_doubted and is_outage_over(self._outage_s, now_s, has_unknown_binds=bool(self._bind_by_node)):
            self._is_doubted = False

    @property
    def nodes(self) -> KeysView[str]:
        """The nodes with such a bind."""
        return self._bind_by_node.keys()

    @property
    def is_doubted(self) -> bool:
        """True after an outage, until the binds from then are proven."""
        return self._is_doubted

    def _remove_known(self, now_s: float) -> None:
        while self._bind_by_node:
            node, (version, bound_s) = next(iter(self._bind_by_node.items()))
            if not is_bind_known(version, bound_s, proven_version=self._proven_version, now_s=now_s):
                break
            del self._bind_by_node[node]
