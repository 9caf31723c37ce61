"""A guaranteed job whose mini-batches get longer with its neighbour's share: what the control law is tried on."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

from coda.sharing.config import SharingConfig
from coda.sharing.pace_control import PaceReport, PaceState, control

CONFIG = SharingConfig()
Harm = Callable[[int], float]


def harm_above(share: int, slope: float = 0.5) -> Harm:
    """No harm up to a share, then in proportion: `slope` at the full share beyond it."""
    return lambda now: max(0.0, now - share) / 1000 * slope


@dataclass
class Plant:
    """Runs the law on a job. `step_s` and `harm` may be changed between two calls of `run`."""

    step_s: float
    harm: Harm
    noise: float = 0.0
    others: tuple[str, ...] = ("o",)
    seed: int = 1

    def __post_init__(self) -> None:
        self.state = PaceState()
        self.now_s = 0.0
        self.shares: list[int] = []
        self.phases: list[str] = []
        self.slowdowns: list[float] = []
        self._left_s = 0.0
        self._rng = random.Random(self.seed)

    def run(self, seconds: int, *, silent: bool = False, held: bool = False) -> PaceState:
        for _ in range(seconds):
            share = self.state.share if self.others else 0
            steps = []
            self._left_s += 1.0
            while not silent:
                slowdown = 1 + self.harm(share)
                step_s = self.step_s * slowdown * (1 + self._rng.gauss(0, self.noise))
                if step_s > self._left_s:
                    break
                self._left_s -= step_s
                steps.append(step_s)
                self.slowdowns.append(slowdown)
            self._left_s = 0.0 if silent else self._left_s
            self.now_s += 1.0
            report = PaceReport(guaranteed="g", opportunistic=self.others, steps=tuple(steps), held=held)
            self.state = control(self.state, report, self.now_s, CONFIG)
            self.shares.append(self.state.share)
            self.phases.append(self.state.phase.value)
        return self.state

    def changes(self, last_s: int) -> int:
        """How often the share changed in the last seconds."""
        shares = self.shares[-last_s:]
        return sum(one != other for one, other in pairwise(shares))
