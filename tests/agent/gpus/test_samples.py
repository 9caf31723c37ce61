"""Which samples of the driver count, where the node's clock and the API server's differ, and where one jumps."""

from __future__ import annotations

from email.utils import formatdate

import pytest

from coda_agent.gpus.samples import Moment, fresh_samples, seen_until
from coda_kube.api.steady_clock import SteadyClock

PERIODS = 6  # of the driver, in a second
KEPT = 120  # samples in its buffer


class Clocks:
    """A node whose own clock is wrong, and the API server's as the agent follows it. Rounds of 1 s."""

    def __init__(self, node_is_ahead_s: float) -> None:
        self.node_is_ahead_s = node_is_ahead_s
        self.passed_s = 0.0
        self.stood_s = 0.0  # time that this machine did not see pass
        self.stamps: list[int] = []
        self.last_us: int | None = None
        self.api = SteadyClock(wall=lambda: self.node_s, monotonic=lambda: self.passed_s)

    @property
    def true_s(self) -> float:
        return 1_700_000_000.0 + self.passed_s + self.stood_s

    @property
    def node_s(self) -> float:
        return self.true_s + self.node_is_ahead_s

    def round(self) -> list[float]:
        """How old the fresh samples are, in seconds."""
        self.passed_s += 1
        periods = (self.node_s - 1 + number / PERIODS for number in range(1, PERIODS + 1))
        self.stamps = [*self.stamps, *(int(at_s * 1e6) for at_s in periods)][-KEPT:]
        self.api.observe(formatdate(int(self.true_s), usegmt=True))
        now = Moment(monotonic_s=self.passed_s, wall_s=self.api(), node_wall_s=self.node_s)
        self.last_us = seen_until(int(now.node_wall_s * 1e6) if self.last_us is None else self.last_us, now)
        entries = [(at_us, 90.0) for at_us in self.stamps if at_us > self.last_us]
        samples, self.last_us = fresh_samples(entries, self.last_us, now)
        return [now.monotonic_s - sample.at_s for sample in samples]

    def blind_rounds(self, rounds: int) -> int:
        return sum(not self.round() for _ in range(rounds))


@pytest.mark.parametrize("ahead_s", [0, 5, 30, 3600, -5, -30, -600])
def test_a_node_whose_clock_is_wrong_is_measured_in_every_round(ahead_s: float) -> None:
    """By the API server's clock a node that is 5 s ahead was never measured, and one that is behind seemed late."""
    clocks = Clocks(ahead_s)
    assert clocks.blind_rounds(1) == 1  # the first one begins to look
    ages = [age_s for _ in range(60) for age_s in clocks.round()]
    assert len(ages) == 60 * PERIODS
    assert max(ages) < 1.0


@pytest.mark.parametrize("stood_s", [30, 60, 300])
def test_a_machine_that_stood_still_is_measured_at_once(stood_s: float) -> None:
    """Its clock is set right at once; the API server's, as the agent follows it, takes ten times as long."""
    clocks = Clocks(0)
    clocks.blind_rounds(100)
    clocks.stood_s += stood_s
    assert clocks.blind_rounds(100) == 0


@pytest.mark.parametrize("by_s", [-3600, -60, 60, 3600])
def test_a_node_whose_clock_is_set_loses_no_more_than_a_round(by_s: float) -> None:
    clocks = Clocks(0)
    clocks.blind_rounds(100)
    clocks.node_is_ahead_s += by_s
    assert clocks.blind_rounds(100) <= 1
