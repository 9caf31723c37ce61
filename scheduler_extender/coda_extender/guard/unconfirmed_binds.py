"""Nodes on which a pod was bound that kube-scheduler may not know of.

The API server may store a bind and die before it answers, or the answer may be lost. kube-scheduler then forgets the
pod, and takes its capacity for free until its own watch is back. But it shows what it knows: it learns of pods in the
order of their resourceVersions. A pod that it asks about proves that every older bind is known.

After an outage kube-scheduler tries all its pods again at once, and several may choose one such node before the first
is seen bound there. Until these binds are proven, pods in flight count on them.
"""

from __future__ import annotations

from collections.abc import KeysView
from typing import Final, NamedTuple

from coda.placements.lingering_use import SPREAD_S, is_bind_known, is_outage_over
from coda_extender.guard.in_flight import Clock
from coda_kube.api.watch_cache import version_of
from coda_kube.objects.json_types import Json
from coda_kube.objects.read import Pod

MOST_CLAIMS: Final = 1000
"""Our choice: a scheduler asks about one pod after the other, and is ahead of our watch by milliseconds."""


class _Bind(NamedTuple):
    version: int
    bound_s: float


class ShownVersions:
    """Which resourceVersion a question proves: at most the newest that the API server itself showed of that pod.

    A uid that no watch has shown proves nothing yet; it does once a watch shows it."""

    def __init__(self) -> None:
        self._version_by_uid: dict[str, int] = {}  # of pods that wait for a node
        self._claim_by_uid: dict[str, int] = {}  # of pods not shown yet, oldest first

    def clear(self) -> None:
        """Versions count from elsewhere: none that was shown or claimed proves anything."""
        self._version_by_uid.clear()
        self._claim_by_uid.clear()

    def version_of(self, uid: str, claimed: int) -> int:
        """What a question about that pod proves; 0: nothing."""
        if uid in self._version_by_uid:
            return min(claimed, self._version_by_uid[uid])
        self._claim_by_uid.pop(uid, None)
        self._claim_by_uid[uid] = claimed
        if len(self._claim_by_uid) > MOST_CLAIMS:
            del self._claim_by_uid[next(iter(self._claim_by_uid))]
        return 0

    def observe(self, before: Pod | None, after: Pod | None, new: Json | None) -> int:
        """A watch shows a pod: what an earlier question about it proves now; 0: nothing."""
        if before is not None and (after is None or after.uid != before.uid or after.node or after.ended):
            self._version_by_uid.pop(before.uid, None)
        if after is None or new is None:
            return 0
        if not (after.node or after.ended):
            self._version_by_uid[after.uid] = version_of(new)
        return min(self._claim_by_uid.pop(after.uid, 0), version_of(new))


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

    def begin_again(self) -> None:
        """Versions count from elsewhere, as after a restored backup: no bind is proven by an earlier one."""
        self._bind_by_node.clear()
        self._newest_version = self._shown_version = self._shown_before = self._proven_version = 0
        self.note_outage()

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
