"""Nodes on which a pod was bound that kube-scheduler may not know of: the API server stored the bind and died before it
answered, or the answer was lost on its way. Decides nothing.

kube-scheduler then forgets the pod, and until its own watch is back it takes the room for free. What it does know it
shows: it learns of pods in the order of their resourceVersions, so a pod that it asks about proves every older bind
known. Nothing is guessed about how long its watch stays away.

After an outage it tries all its pods anew at once, so that several may choose one such node before the first is seen
bound there: until these binds are proven, pods in flight count on them.
"""

from __future__ import annotations

from collections.abc import KeysView
from typing import Final, NamedTuple

from coda_extender.guard.in_flight import Clock

SPREAD_S: Final = 2.0  # after a list anew kube-scheduler hears of all pods at once, in no order; it has by then
CALM_S: Final = 5.0  # after an outage its binds have all been seen by then
LONGEST_S: Final = 60.0  # client-go waits 30 s, at most doubled by chance, before it watches again


class _Bind(NamedTuple):
    version: int
    until_s: float


class UnconfirmedBinds:
    """Nodes by their last bind that kube-scheduler has not been seen to know; of the whole cluster at the start."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._bind_by_node: dict[str, _Bind] = {}  # oldest first
        self._newest = 0  # version of a bind
        self._shown = 0  # by kube-scheduler so far
        self._shown_before = 0  # the same, `SPREAD_S` ago or longer at the next turn
        self._proven = 0  # binds up to this version are known in all of kube-scheduler
        self._turn_s = float("-inf")
        self._outage_s = float("-inf")  # the last moment of the last outage that was noticed
        self._is_doubted = False

    def outage(self) -> None:
        """The API server is away: binds of this moment may be forgotten."""
        self._outage_s, self._is_doubted = self._clock(), True

    def bound(self, node: str, version: int) -> None:
        """A pod was seen bound to `node`, in the state of that resourceVersion."""
        now_s = self._clock()
        self._newest = max(self._newest, version)
        self._bind_by_node.pop(node, None)
        self._bind_by_node[node] = _Bind(version, now_s + LONGEST_S)
        self._forget(now_s)

    def asked(self, version: int) -> None:
        """kube-scheduler asks about a pod as of that resourceVersion."""
        now_s = self._clock()
        self._shown = max(self._shown, min(version, self._newest))  # no claim about binds still to come
        if now_s >= self._turn_s:
            self._proven, self._shown_before, self._turn_s = self._shown_before, self._shown, now_s + SPREAD_S
        self._forget(now_s)
        since_s = now_s - self._outage_s
        if since_s > LONGEST_S or (since_s > CALM_S and not self._bind_by_node):
            self._is_doubted = False

    @property
    def nodes(self) -> KeysView[str]:
        """The nodes with such a bind."""
        return self._bind_by_node.keys()

    @property
    def is_doubted(self) -> bool:
        """True after an outage, until the binds from then are proven."""
        return self._is_doubted

    def _forget(self, now_s: float) -> None:
        while self._bind_by_node:
            node, bind = next(iter(self._bind_by_node.items()))
            if bind.version > self._proven and bind.until_s > now_s:
                break
            del self._bind_by_node[node]
