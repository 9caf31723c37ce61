"""Mini-batches, by the steps of optimizers: one ends with the first step after a backward pass.

So an optimizer that steps once for each group of parameters, as DeepSpeed's does, ends one mini-batch. Where several
take turns, it is the step of the one that steps most rarely: that of a WGAN's generator, after five of its critic."""

from __future__ import annotations

import time
from typing import Callable

from coda_torch.library import FULL_SHARE

SILENT_S = 100.0
"""After so long without a backward pass each step counts: a recorded graph does without. Our choice."""

MOST_TURNS = 64
"""Steps after gradients between two of an optimizer that takes part; a rarer one does not. Our choice."""

KEPT = 256
LOOK_S = 0.05


class StepClock:
    """Durations of mini-batches since they were last taken."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._has_gradients = False
        self._gradients_s: float | None = None  # when a backward pass last began
        self._turns: dict[int, tuple[int, int]] = {}  # by optimizer: its last turn, and how many after the one before
        self._turn = 0
        self._last_s: float | None = None
        self._durations: list[float] = []
        self._usual_s = 0.0
        self.count = 0

    def gradients(self) -> bool:
        """A backward pass begins. True for the first one since a step."""
        is_first, self._has_gradients = not self._has_gradients, True
        self._gradients_s = self._clock()
        return is_first

    def is_boundary(self, optimizer: object) -> bool:
        """An optimizer has stepped. True if that ends a mini-batch.

        A new optimizer is heard from its third step on, at the latest after twice the turns of the one before. Where no
        backward pass was ever seen, each step has its gradients."""
        seen_s = self._gradients_s
        if not self._has_gradients and seen_s is not None and self._clock() - seen_s <= SILENT_S:
            return False
        self._has_gradients = False
        return self._leads(id(optimizer))

    def _leads(self, optimizer: int) -> bool:
        """True if no other one that still steps does so more rarely. Ties: the one that stepped first."""
        self._turn += 1
        before = self._turns.get(optimizer)
        self._turns[optimizer] = (self._turn, 0 if before is None else self._turn - before[0])
        leader, rarest = optimizer, 0
        for other, (last, gap) in list(self._turns.items()):
            if self._turn - last > MOST_TURNS:
                del self._turns[other]
            elif gap > rarest and self._turn - last <= 2 * gap:
                leader, rarest = other, gap
        return leader == optimizer

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


def rest(
    took_s: float,
    share: Callable[[], int],
    longest_s: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Pause after a mini-batch, in proportion to what it took, for `longest_s` at most: it may have been a checkpoint.

    share: in thousandths of the speed alone, looked at all the time; at 0 the pause lasts until it rises"""
    began_s = clock()
    while True:
        now = share()
        pause_s = min(longest_s, took_s * (FULL_SHARE / now - 1)) if now else float("inf")
        left_s = pause_s - (clock() - began_s)
        if left_s <= 0:
            return
        sleep(min(LOOK_S, left_s))
