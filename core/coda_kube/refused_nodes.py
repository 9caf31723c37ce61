"""The nodes where kube-scheduler refused CPU jobs that were released there: the next pods of their owners go elsewhere.

kube-scheduler judges by more than the planner knows, as by the anti-affinity of the pods that are on the node. A pod's
pin is for good, so another pod comes in its place. Without this memory it would get the same node again.
It may be lost: a new leader learns it again, at the price of one pod per node.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, NamedTuple

from coda.wording import counted, listed
from coda_kube.objects.pods.scheduler_refusals import SchedulerRefusal

FIRST_S: Final = 600.0
"""A node is avoided for so long after its first refusal, and twice as long after each further one. Our choice: what
repels a pod stays for as long as the pods that are there."""

FIRST_OF_ROOM_S: Final = 30.0
"""The same where only room lacked, which the planner counts too. Our choice: others were quicker, and leave again."""

LONGEST_S: Final = 4 * 3600.0
"""No node is avoided for longer. Our choice."""

FIRST_PAUSE_S: Final = 5.0
"""Between the first two times that refused pods of one owner are evicted; each pause is twice the last one. Our choice:
a Job may count each such pod as a failure."""

LONGEST_PAUSE_S: Final = 600.0

MOST_NODES: Final = 100
MOST_OWNERS: Final = 500
"""Of one owner, and in all; the oldest are forgotten, of owners those of the namespace that has most. Our choice: a few
megabytes at most. An owner that more nodes refuse comes back to the first ones, at the pace of the longest pause."""


class _Refused(NamedTuple):
    times: int
    until_s: float
    length_s: float


@dataclass(slots=True)
class _Owner:
    by_node: dict[str, _Refused] = field(default_factory=dict)
    avoided: frozenset[str] = frozenset()  # one object for all pods of the owner
    said: str = ""
    pauses: int = 0
    paused_until_s: float = 0.0
    pause_s: float = 0.0  # the last one


class RefusedNodes:
    """By owner: its namespace, "/", and any text that is the same for all pods of one controller. All times are of one
    clock of the caller."""

    def __init__(self) -> None:
        self._by_owner: dict[str, _Owner] = {}  # the one refused last comes last
        self._dropped: list[str] = []  # owners that were forgotten for others, since the last `expire`

    def avoided_by(self, owner: str) -> frozenset[str]:
        """The names of the nodes where no pod of this owner is to go now. O(1)."""
        known = self._by_owner.get(owner)
        return known.avoided if known is not None else frozenset()

    def text(self, owner: str) -> str:
        """Who refused pods of this owner, where, and in which words; empty for an owner without avoided nodes."""
        known = self._by_owner.get(owner)
        if known is None or not known.avoided:
            return ""
        names, others = sorted(known.avoided)[:3], len(known.avoided) - 3
        if others > 0:
            names.append(counted(others, "other node"))
        return f"kube-scheduler refused pods of its owner on {listed(names)} ({known.said}), tried again later"

    def note(self, owner: str, node: str, refusal: SchedulerRefusal, now_s: float) -> bool:
        """kube-scheduler refused a pod of this owner on this node. True if the node is avoided from now on.

        Several pods that are refused there while it is avoided, or together, count once."""
        known = self._by_owner.pop(owner, None) or _Owner()
        self._by_owner[owner] = known
        known.said = refusal.said
        before = known.by_node.pop(node, None)
        if before is not None and now_s < before.until_s:
            known.by_node[node] = before
            return False
        times = 1 if before is None else before.times + 1
        first_s = FIRST_OF_ROOM_S if refusal.is_of_room else FIRST_S
        length_s = min(first_s * 2.0 ** min(times - 1, 20), LONGEST_S)
        known.by_node[node] = _Refused(times, now_s + length_s, length_s)
        for name in list(islice(known.by_node, max(0, len(known.by_node) - MOST_NODES))):
            del known.by_node[name]
        if len(self._by_owner) > MOST_OWNERS:
            self._drop_one()
        _set_avoided(known, now_s)
        return True

    def is_paused(self, owner: str, now_s: float) -> bool:
        """True while no refused pod of this owner is to be evicted."""
        known = self._by_owner.get(owner)
        return known is not None and now_s < known.paused_until_s

    def pause(self, owner: str, now_s: float) -> None:
        """Refused pods of this owner are evicted now. Several within one pause begin no other one."""
        known = self._by_owner.get(owner)
        if known is not None and now_s >= known.paused_until_s:
            known.pause_s = min(FIRST_PAUSE_S * 2.0 ** min(known.pauses, 20), LONGEST_PAUSE_S)
            known.paused_until_s = now_s + known.pause_s
            known.pauses += 1

    def expire(self, now_s: float) -> list[str]:
        """Avoid no node any more whose time is over. Returns the owners that may have one again. O(nodes of all).

        How often a node refused is remembered for as long again as it was avoided, and how long an owner paused for as
        long again as its last pause: a node that was full is forgotten before."""
        changed, self._dropped = self._dropped, []
        for owner, known in [*self._by_owner.items()]:
            kept = {node: one for node, one in known.by_node.items() if now_s < one.until_s + one.length_s}
            known.by_node = kept
            if _set_avoided(known, now_s):
                changed.append(owner)
            if not kept and now_s >= known.paused_until_s + known.pause_s:
                del self._by_owner[owner]
        return changed

    def forget_node(self, node: str) -> list[str]:
        """The node is gone: another one may come by its name. Returns the owners that avoided it."""
        changed: list[str] = []
        for owner, known in self._owners_of(node):
            del known.by_node[node]
            if node in known.avoided:
                known.avoided -= {node}
                changed.append(owner)
        return changed

    def forget_owner(self, owner: str) -> None:
        """The owner is gone, and with it all its pods."""
        self._by_owner.pop(owner, None)

    def _drop_one(self) -> None:
        """Forget the oldest owner of the namespace that has most, so that no user makes others' be forgotten."""
        count_by_namespace = Counter(_namespace(owner) for owner in self._by_owner)
        most = max(count_by_namespace, key=count_by_namespace.__getitem__)  # of several, that of the oldest owner
        dropped = next(owner for owner in self._by_owner if _namespace(owner) == most)
        del self._by_owner[dropped]
        self._dropped.append(dropped)

    def _owners_of(self, node: str) -> Iterator[tuple[str, _Owner]]:
        return ((owner, known) for owner, known in self._by_owner.items() if node in known.by_node)


def _namespace(owner: str) -> str:
    return owner.partition("/")[0]


def _set_avoided(known: _Owner, now_s: float) -> bool:
    """True if they are others than before."""
    avoided = frozenset([node for node, one in known.by_node.items() if now_s < one.until_s])
    if avoided == known.avoided:
        return False
    known.avoided = avoided
    return True
