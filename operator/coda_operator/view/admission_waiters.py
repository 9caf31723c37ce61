"""Jobs that their namespace does not admit now: who of them is tried again, and when.

Each try costs the API server a dry run with all its webhooks. So what a namespace costs does not grow with its waiting
jobs: the few that wait longest have timers of their own, and the others are tried in turns. A pod that ends may have
been what the namespace lacked, and so may what a job that got through waited for: then some are tried at once.

Quotas themselves are not watched: their use is counted late, and the API server's answer is the only one that counts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from coda_operator.work_queue import LAST_DELAY_S

GATHER_S: Final = 0.5  # the pods of a gang end together, and the API server counts them a moment later
LONGEST: Final = 8
"""Jobs of a namespace with timers of their own. Our choice: most namespaces have no more waiting ones."""
IN_TURN: Final = 8
"""Jobs of a namespace with more of them, tried every `LAST_DELAY_S`: each of N within 30 s + N x 3.75 s. Our choice."""
FOLLOWERS: Final = 2
"""Jobs behind one that got through, which are tried at once: they may want the same. Our choice: 1 may be gone."""


@dataclass(slots=True)
class _Waiting:
    """The waiting jobs of one namespace, by key: in the order in which they came, and by when each was tried last."""

    keys: dict[str, None] = field(default_factory=dict)
    turns: dict[str, None] = field(default_factory=dict)
    after_end: asyncio.TimerHandle | None = None
    next_turn: asyncio.TimerHandle | None = None


class AdmissionWaiters:
    """The waiting jobs of all namespaces. `wake` has a job tried again; its key is namespace/name."""

    def __init__(self, wake: Callable[[str], None]) -> None:
        self._wake = wake
        self._by_namespace: dict[str, _Waiting] = {}

    def add(self, key: str) -> bool:
        """The job was tried and waits; it keeps its place if it waited already. True if it needs a timer of its own."""
        namespace = _namespace(key)
        waiting = self._by_namespace.setdefault(namespace, _Waiting())
        waiting.keys.setdefault(key)
        _to_end(waiting.turns, key)
        if key in islice(waiting.keys, LONGEST):
            return True
        self._await_turn(namespace, waiting)
        return False

    def discard(self, key: str) -> None:
        """The job waits no more: those behind it are tried."""
        waiting = self._by_namespace.get(_namespace(key))
        if waiting is None or key not in waiting.keys:
            return
        keys = list(waiting.keys)
        place = keys.index(key)
        del waiting.keys[key], waiting.turns[key]
        if not waiting.keys:
            self._forget(_namespace(key))
        for follower in keys[place + 1 : place + 1 + FOLLOWERS]:
            self._wake(follower)

    def forget_all(self) -> None:
        """Forget all jobs: another replica may have them admitted."""
        for namespace in [*self._by_namespace]:
            self._forget(namespace)

    def on_freed(self, namespace: str) -> None:
        """A pod of this namespace ended or went."""
        waiting = self._by_namespace.get(namespace)
        if waiting is not None and waiting.after_end is None:
            waiting.after_end = asyncio.get_running_loop().call_later(GATHER_S, self._after_end, namespace)

    def _after_end(self, namespace: str) -> None:
        waiting = self._by_namespace[namespace]
        waiting.after_end = None
        for key in [*islice(waiting.keys, LONGEST), *_next_in_turn(waiting)]:
            self._wake(key)

    def _await_turn(self, namespace: str, waiting: _Waiting) -> None:
        if waiting.next_turn is None:
            waiting.next_turn = asyncio.get_running_loop().call_later(LAST_DELAY_S, self._take_turn, namespace)

    def _take_turn(self, namespace: str) -> None:
        waiting = self._by_namespace[namespace]
        waiting.next_turn = None
        for key in _next_in_turn(waiting):
            self._wake(key)
        if len(waiting.keys) > LONGEST:
            self._await_turn(namespace, waiting)

    def _forget(self, namespace: str) -> None:
        waiting = self._by_namespace.pop(namespace)
        for timer in (waiting.after_end, waiting.next_turn):
            if timer is not None:
                timer.cancel()


def _namespace(key: str) -> str:
    return key.partition("/")[0]


def _next_in_turn(waiting: _Waiting) -> list[str]:
    """Return whose turn it is: who was tried least recently. They come last then, whenever they are tried."""
    keys = [*islice(waiting.turns, IN_TURN)]
    for key in keys:
        _to_end(waiting.turns, key)
    return keys


def _to_end(keys: dict[str, None], key: str) -> None:
    keys.pop(key, None)
    keys[key] = None
