"""Whether the leader's work goes on. A process that answers its probe may still do nothing else.

Three things must go on while it leads: work that has begun makes requests or ends, kopf tells of the changes that we
write ourselves, and the term has begun. Another replica takes over once the kubelet has ended a process that hangs.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

HANG_S: Final = 60.0
"""Without progress for this long, work hangs: a request takes 5 s at most. Our choice."""


class Liveness:
    """Ask `is_alive` at each probe; `progress` grows with whatever is done."""

    def __init__(
        self,
        is_leader: Callable[[], bool],
        is_busy: Callable[[], bool],
        progress: Callable[[], int],
        unheard_since_s: Callable[[], float | None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._is_leader = is_leader
        self._is_busy = is_busy
        self._progress = progress
        self._unheard_since_s = unheard_since_s
        self._clock = clock
        self._last = -1
        self._last_s = clock()
        self._works = False

    def set_term(self, *, works: bool) -> None:
        """The work of a term has begun, or ended."""
        self._works = works
        self._last_s = self._clock()

    def is_alive(self) -> bool:
        """Return False once the leader's work hangs. A replica that waits is always alive."""
        now_s, progress = self._clock(), self._progress()
        if progress != self._last or not self._is_leader() or (self._works and not self._is_busy()):
            self._last, self._last_s = progress, now_s
        unheard_s = self._unheard_since_s()
        is_deaf = self._is_leader() and unheard_s is not None and now_s - unheard_s > HANG_S
        return now_s - self._last_s <= HANG_S and not is_deaf
