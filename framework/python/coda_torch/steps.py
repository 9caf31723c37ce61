"""Mini-batches by the steps of an optimizer: of the first one that stepped, since some scripts have several."""

from __future__ import annotations

import time
from typing import Callable

SILENT_S = 100.0
KEPT = 256


class StepClock:
    """Durations of mini-batches since they were last taken."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._leader: int | None = None
        self._last_s: float | None = None
        self._durations: list[float] = []
        self._usual_s = 0.0
        self.count = 0

    def is_boundary(self, optimizer: object) -> bool:
        """True if a step of this optimizer ends a mini-batch."""
        if self._leader is None or (self._last_s is not None and self._clock() - self._last_s > SILENT_S):
            self._leader = id(optimizer)
        return self._leader == id(optimizer)

    def tick(self) -> float | None:
        """End a mini-batch; return how long it took, None for the first one."""
        now_s, last_s = self._clock(), self._last_s
        self._last_s = now_s
        self.count += 1
        if last_s is None:
            return None
        took_s = now_s - last_s
        self._durations.append(took_s)
        del self._durations[:-KEPT]
        return took_s

    def restart(self) -> None:
        """A pause of ours has ended: it is no part of the next mini-batch."""
        self._last_s = self._clock()

    def is_outlier(self, took_s: float) -> bool:
        """True if this mini-batch took ten times what is usual."""
        return 0 < 10 * self._usual_s < took_s

    def take(self) -> list[float]:
        """The durations since the last call, at most ten by quantile, ascending."""
        ordered = sorted(self._durations)
        self._durations = []
        if not ordered:
            return []
        self._usual_s = ordered[len(ordered) // 2]
        if len(ordered) <= 10:
            return ordered
        return [ordered[round(at * (len(ordered) - 1) / 9)] for at in range(10)]
