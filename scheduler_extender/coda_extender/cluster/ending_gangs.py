"""Attempts that are ending: the capacity of their first ranks is held back for a moment, to be given away as a whole.

The ranks of a gang end together, but their ends are seen one by one. If each node were given away as soon as it looks
free, small jobs would take some of them, and the next gang would not find all of them free together.

Capacity that is held back only looks taken for a moment longer. So this can over-commit nothing, and a leader that
remembers nothing decides correctly too. Foreign pods do not wait for it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from coda.model import NOTHING, Resources
from coda.placements.lingering_use import SETTLE_S, is_held_back, may_still_end
from coda_kube.cluster_state import ClusterState
from coda_kube.objects.read import Owner, Pod

_Attempt = tuple[Owner, int]


@dataclass(slots=True, kw_only=True)
class _EndingGang:
    first_end_s: float
    live_pods: set[str]  # ids of the pods that have not ended
    held_by_node: dict[str, Resources] = field(default_factory=dict)


class EndingGangs:
    """Attempts of which some ranks have ended and some have not. It learns of every change of a pod."""

    def __init__(self, state: ClusterState, clock: Callable[[], float], *, settle_s: float = SETTLE_S) -> None:
        self._state = state
        self._clock = clock
        self._settle_s = settle_s
        self._ending_by_attempt: dict[_Attempt, _EndingGang] = {}

    def observe(self, before: Pod | None, after: Pod | None) -> None:
        """A pod came, changed or went; the state knows already. O(pods of the job) for the first end, else O(1)."""
        if before is None or before.member is None or before.ended or _lives_on(before, after):
            return
        attempt = (before.member.owner, before.member.attempt)
        ending = self._ending_by_attempt.get(attempt) or self._begin(attempt, before)
        if ending is None:
            return
        ending.live_pods.discard(before.id)
        if not ending.live_pods:
            self._ending_by_attempt.pop(attempt, None)
        elif before.node is not None and may_still_end(ending.first_end_s, self._clock(), self._settle_s):
            held = ending.held_by_node
            held[before.node] = held.get(before.node, NOTHING) + before.request

    def held_by_node(self) -> dict[str, Resources]:
        """Per node, what must not be given away yet; nodes without any are absent. O(ranks held back)."""
        now_s = self._clock()
        held: dict[str, Resources] = {}
        for ending in self._ending_by_attempt.values():
            if not may_still_end(ending.first_end_s, now_s, self._settle_s):
                ending.held_by_node.clear()  # the other ranks run on: from now on capacity is free as it is left
            for node, amount in ending.held_by_node.items():
                held[node] = held.get(node, NOTHING) + amount
        return held

    def next_expiry_in_s(self) -> float | None:
        """How long until capacity is free by time alone; None where nothing is held back."""
        holding = [ending for ending in self._ending_by_attempt.values() if ending.held_by_node]
        until_s = min((ending.first_end_s + self._settle_s for ending in holding), default=None)
        return None if until_s is None else max(0.0, until_s - self._clock())

    def _begin(self, attempt: _Attempt, first: Pod) -> _EndingGang | None:
        """A new ending attempt; None if nothing of it is to be held back."""
        live_pods = set(self._state.gang_pods.live(*attempt))
        is_stopped = self._state.is_stopped(*attempt)
        if not is_held_back(was_bound=first.node is not None, is_stopped=is_stopped, live_ranks=len(live_pods)):
            return None
        ending = self._ending_by_attempt[attempt] = _EndingGang(first_end_s=self._clock(), live_pods=live_pods)
        return ending


def _lives_on(before: Pod, after: Pod | None) -> bool:
    return after is not None and after.uid == before.uid and not after.ended
