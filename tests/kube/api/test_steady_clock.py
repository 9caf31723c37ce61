"""The operator's clock: jumps of the machine's own clock are not seen, the API server's time is."""

from __future__ import annotations

from email.utils import formatdate

import pytest

from coda_kube.api.steady_clock import SLEW, SteadyClock

REAL_S = 1_700_000_000.0


class Machine:
    """A machine's two clocks."""

    def __init__(self, *, off_s: float = 0.0) -> None:
        self.up_s = 0.0
        self.off_s = off_s
        self.clock = SteadyClock(wall=lambda: REAL_S + self.up_s + self.off_s, monotonic=lambda: self.up_s)

    def hear(self) -> None:
        self.clock.observe(formatdate(int(REAL_S + self.up_s), usegmt=True))

    def pass_time(self, seconds: float) -> None:
        self.up_s += seconds


@pytest.mark.parametrize("jump_s", [-3600.0, 3600.0, 1e8])
def test_a_jump_of_the_local_clock_is_not_seen(jump_s: float) -> None:
    machine = Machine()
    machine.hear()
    machine.off_s = jump_s
    for _ in range(30):
        machine.pass_time(10.0)
        machine.hear()
        assert abs(machine.clock() - (REAL_S + machine.up_s)) <= 1.0


@pytest.mark.parametrize("off_s", [-3600.0, -61.0, 0.0, 61.0, 3600.0])
def test_replicas_on_machines_with_different_clocks_agree(off_s: float) -> None:
    machine = Machine(off_s=off_s)
    machine.hear()
    assert abs(machine.clock() - REAL_S) <= 1.0


def test_a_jump_of_the_api_server_is_followed_slowly_and_never_backwards() -> None:
    machine = Machine()
    machine.hear()
    machine.clock.observe(formatdate(int(REAL_S + 3600), usegmt=True))
    machine.pass_time(100.0)
    assert machine.clock() == pytest.approx(REAL_S + 100.0 * (1 + SLEW), abs=1.0)
    before_s = machine.clock()
    machine.clock.observe(formatdate(int(REAL_S - 3600), usegmt=True))
    machine.pass_time(1.0)
    assert before_s < machine.clock() < before_s + 1.0


@pytest.mark.parametrize("date", [None, "", "yesterday"])
def test_what_no_server_should_say_is_ignored(date: str | None) -> None:
    machine = Machine()
    machine.clock.observe(date)
    assert machine.clock() == REAL_S
