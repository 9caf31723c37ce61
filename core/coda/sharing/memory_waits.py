"""Processes of guaranteed jobs that wait for memory: for whom guests leave, who is told to wait, and for how long.

Each may lie, and each wait costs guests their work. So it must be of use: the card could satisfy the request, its
memory is not free already, and the pod has not waited for long on that GPU, from however many connections."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from coda.sharing.config import GIB

REFUSAL_S: Final = 150.0
"""So long a pod's word counts that it waits for memory of a GPU: its library waits for two minutes at most. Our choice:
longer, and one that stands still, or lies, would keep everybody off its GPU."""

PAUSE_S: Final = 600.0
"""So long it does not count after that, and waits that are further apart have nothing to do with each other. Our
choice: as long as a library asks nobody after a wait in vain."""

MARGIN_BYTES: Final = GIB // 2
"""Memory is free if so much more is free than is waited for. Our choice: about CUDA's context of a process."""

FREE_S: Final = 5.0
"""So long a process is told to wait although the memory is free: its library tries four times a second. Our choice.
Then no guest is to blame: the driver joins free pages, wherever they lie, so that they are never too scattered."""


class Card(NamedTuple):
    """A GPU of a guaranteed job. `owner`: the uid of its pod. `free_bytes`: what nobody has; None: not known."""

    uuid: str
    owner: str
    memory_bytes: int
    free_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRefusal:
    """What one process waits for. `has_bytes`: what its pod surely has of that GPU, contexts included. `is_first`: this
    was measured before the process gave its own cache back, perhaps."""

    refused_bytes: int
    has_bytes: int
    is_first: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitVerdict:
    """`waited_bytes`: what guests are to give back, or leave for. `told`: whether to wait, by process; None: nothing
    yet."""

    waited_bytes: int = 0
    told: Mapping[Hashable, bool | None] = field(default_factory=dict)


@dataclass(slots=True)
class _Wait:
    """One pod on one GPU. `at_s`: when its word last counted; `spent_s`: for how long it has counted by now."""

    at_s: float
    spent_s: float = 0.0
    free_since_s: float | None = None

    def goes_on(self, now_s: float, span_s: float) -> bool:
        """True if its word counts in this round. `span_s`: since the last round."""
        if self.spent_s >= REFUSAL_S:
            return False
        if now_s - self.at_s > FREE_S:
            self.free_since_s = None  # of a wait that ended meanwhile
        self.at_s, self.spent_s = now_s, self.spent_s + span_s
        return self.spent_s < REFUSAL_S


class Waits:
    """Remembers from round to round."""

    def __init__(self) -> None:
        self._waits: dict[tuple[str, str], _Wait] = {}  # by uid and GPU

    def forget(self, now_s: float) -> None:
        """Forget those whose pause has ended, or that have not waited for as long."""
        self._waits = {key: wait for key, wait in self._waits.items() if now_s - wait.at_s < PAUSE_S}

    def judge(self, card: Card, refusals: Mapping[Hashable, MemoryRefusal], now_s: float, span_s: float) -> WaitVerdict:
        """Return what the processes of the guaranteed job are worth, once a round. `span_s`: since the last one."""
        if not refusals:
            return WaitVerdict()
        wait = self._waits.setdefault((card.owner, card.uuid), _Wait(now_s))
        if not wait.goes_on(now_s, span_s):
            return WaitVerdict(told=dict.fromkeys(refusals, False))
        fits = {peer: one.has_bytes + one.refused_bytes <= card.memory_bytes for peer, one in refusals.items()}
        told = {peer: None if one.is_first else False for peer, one in refusals.items() if not fits[peer]}
        waiting = [peer for peer in refusals if fits[peer]]
        waited_bytes = sum(refusals[peer].refused_bytes for peer in waiting)
        if card.free_bytes is None or card.free_bytes < waited_bytes + MARGIN_BYTES:
            wait.free_since_s = None
            return WaitVerdict(waited_bytes=waited_bytes, told=told | dict.fromkeys(waiting, True))
        wait.free_since_s = now_s if wait.free_since_s is None else wait.free_since_s
        return WaitVerdict(told=told | dict.fromkeys(waiting, now_s - wait.free_since_s < FREE_S))
