"""The operator's clock: jumps of the machine's own clock are not seen, the API server's time is."""

from __future__ import annotations

from email.utils import formatdate

import pytest

from coda_kube.api.steady_clock import SLEW, SteadyClock

REAL_S = 1_700_000_000.0


class Machine:
    """A machine's two clocks. `off_s`: by how much its wall clock is ahead of the API server."""

    def __init__(self, *, off_s: float = 0.0) -> None:
        self.up_s = 0.0
        self.paused_s = 0.0
        self.off_s = off_s
        self.clock = SteadyClock(wall=lambda: self.real_s + self.off_s, monotonic=lambda: self.up_s)

    @property
    def real_s(self) -> float:
        return REAL_S + self.up_s + self.paused_s

    def hear(self, *, ahead_s: float = 0.0) -> None:
        self.clock.observe(formatdate(int(self.real_s + ahead_s), usegmt=True))

    def pass_time(self, seconds: float) -> None:
        self.up_s += seconds

    def pause(self, seconds: float) -> None:
        """It stands still, and its wall clock is set right at the end."""
        self.paused_s += seconds


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


def test_a_machine_that_stood_still_is_not_behind_for_ten_times_as_long() -> None:
    machine = Machine()
    machine.hear()
    machine.pass_time(3600.0)
    machine.pause(300.0)
    for _ in range(6):
        machine.pass_time(10.0)
        machine.hear()
    assert abs(machine.clock() - machine.real_s) < 3.0


def test_a_short_pause_is_made_up_slowly() -> None:
    machine = Machine()
    machine.hear()
    machine.pause(20.0)
    for _ in range(6):
        machine.pass_time(10.0)
        machine.hear()
    assert machine.clock() - REAL_S == pytest.approx(60.0 * (1 + SLEW), abs=1.5)


def test_an_api_server_that_agrees_with_a_wrong_local_clock_now_and_then_is_not_followed_at_once() -> None:
    """Another API server answers in between, whose clock is ours."""
    machine = Machine()
    machine.hear()
    machine.off_s = 300.0
    for _ in range(20):
        machine.pass_time(5.0)
        machine.hear(ahead_s=300.0)
        machine.pass_time(5.0)
        machine.hear()
    assert machine.clock() - machine.real_s < 200.0 * SLEW + 1.0


def test_two_clocks_that_agree_on_an_earlier_time_do_not_set_ours_back() -> None:
    machine = Machine()
    machine.hear(ahead_s=3600.0)
    machine.off_s = 0.0
    before_s = machine.clock()
    for _ in range(12):
        machine.pass_time(10.0)
        machine.hear()
        assert before_s < machine.clock() <= before_s + 10.0
        before_s = machine.clock()


def test_the_time_never_goes_back_whatever_is_heard() -> None:
    machine = Machine()
    before_s = machine.clock()
    for number in range(300):
        machine.pass_time(4.0)
        machine.pause((0.0, 0.0, 400.0, 0.0, 0.0)[number % 5] if number < 100 else 0.0)
        machine.off_s = (0.0, -90.0, 700.0)[number // 20 % 3]
        machine.hear(ahead_s=(0.0, -90.0, 700.0)[number // 7 % 3])
        assert machine.clock() >= before_s
        before_s = machine.clock()


@pytest.mark.parametrize("date", [None, "", "yesterday"])
def test_what_no_server_should_say_is_ignored(date: str | None) -> None:
    machine = Machine()
    machine.clock.observe(date)
    assert machine.clock() == REAL_S


def test_a_wrong_step_of_the_clock_that_an_api_server_shares_is_not_believed_at_once() -> None:
    """On a cluster of one machine both clocks are one, and agree. Ours would be ahead for ten times the step."""
    machine = Machine()
    machine.hear()
    machine.off_s = 3600.0
    for _ in range(40):
        machine.pass_time(1.0)
        machine.hear(ahead_s=3600.0)
    machine.off_s = 0.0
    for _ in range(60):
        machine.pass_time(1.0)
        machine.hear()
    assert abs(machine.clock() - machine.real_s) <= 2.0
