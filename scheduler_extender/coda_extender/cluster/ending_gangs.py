"""Attempts that are ending: the room of their first ranks is kept for a moment, until all of it can be given away.

The ranks of a gang end together, but their ends are seen one by one. Were each node given away as it is seen free,
small jobs would take them in between, and the next gang that needs them all would not find them free together.

A hold only makes room look taken for a moment longer: it can over-commit nothing, and a leader that has none is right
too. What must not live here: who gets the room, and what foreign pods may take of it (`guard`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from coda.model.resources import NOTHING, Resources
from coda_kube.cluster_state import ClusterState
from coda_kube.objects.read import Owner, Pod

SETTLE_S: Final = 2.0
"""For so long after the first end the others are waited for. A kubelet looks at its containers once a second
(`genericPlegRelistPeriod` in pkg/kubelet/kubelet.go, 1.36) and calls a pod ended once its sandbox is torn down."""

_Attempt = tuple[Owner, int]


@dataclass(slots=True, kw_only=True)
class _EndingGang:
    until_s: float
    live: set[str]  # ids of the pods that have not ended
    held: dict[str, Resources] = field(default_factory=dict)


class EndingGangs:
    """What is held of attempts of which some ranks have ended and some have not. Fed with every change of a pod."""

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
        ending.live.discard(before.id)
        if not ending.live:
            self._ending_by_attempt.pop(attempt, None)
        elif before.node is not None and self._clock() < ending.until_s:
            ending.held[before.node] = ending.held.get(before.node, NOTHING) + before.request

    def held(self) -> dict[str, Resources]:
        """Per node, what must not be given away yet; nodes without any are absent. O(ranks held)."""
        now_s = self._clock()
        held: dict[str, Resources] = {}
        for ending in self._ending_by_attempt.values():
            if ending.until_s <= now_s:
                ending.held.clear()  # who runs on, runs on: from now on room is given away as it is left
            for node, amount in ending.held.items():
                held[node] = held.get(node, NOTHING) + amount
        return held

    def next_expiry_in_s(self) -> float | None:
        """How long until time alone gives something away; None where nothing is held."""
        until_s = min((ending.until_s for ending in self._ending_by_attempt.values() if ending.held), default=None)
        return None if until_s is None else max(0.0, until_s - self._clock())

    def _begin(self, attempt: _Attempt, first: Pod) -> _EndingGang | None:
        """None where nothing is to be held: all ranks have ended; or the attempt was ordered to stop, and what it
        leaves counts as free, all of it at once, since then."""
        if first.node is None or self._state.is_stopped(*attempt):
            return None
        live = set(self._state.live_pods(*attempt))
        if not live:
            return None
        ending = self._ending_by_attempt[attempt] = _EndingGang(until_s=self._clock() + self._settle_s, live=live)
        return ending


def _lives_on(before: Pod, after: Pod | None) -> bool:
    return after is not None and after.uid == before.uid and not after.ended
