"""A guaranteed job that nobody hears, and the memory of those beside it."""

from __future__ import annotations

import pytest

from coda.sharing.config import GIB
from coda.sharing.coordinator import UnitReport, UnitState, coordinate
from coda.sharing.memory_limits import MemoryState, shifted
from coda.sharing.pace_control import PacePhase, PaceReport, PaceState, control, is_heard
from tests.core.sharing.test_memory_limits import CONFIG, report, use


def test_beside_a_guaranteed_job_that_is_never_heard_the_rest_of_the_card_is_used() -> None:
    """It is inference, or no torch: its memory shows that it has come, though no mini-batch ever does."""
    pace, state, limits = PaceReport(guaranteed="g", opportunistic=("o",), steps=()), UnitState(), []
    for second in range(300):
        memory = report(use("g", 11, device_bytes=11 * GIB), use("o", 7, 3, host_bytes=4 * GIB))
        state, _ = coordinate(state, UnitReport(pace=pace, memory_by_gpu={"gpu": memory}), float(second), CONFIG)
        assert state.pace.phase is PacePhase.ARRIVING
        limits.append(state.memory_by_gpu["gpu"].limit_of("o") or 0)
    assert limits[:60] == [3 * GIB] * 60
    assert limits[60] > 7 * GIB


@pytest.mark.parametrize(("more", "squeezed"), [(1.03, False), (1.5, True)])
def test_one_that_is_never_heard_arrives_again_when_it_grows(more: float, squeezed: bool) -> None:
    state, guest = MemoryState(), use("o", 7, 3)
    for second in range(100):
        state = shifted(state, report(use("g", 11), guest, arriving=True), float(second), CONFIG)
    state = shifted(state, report(use("g", 11 * more), guest, arriving=True), 100.0, CONFIG)
    assert (state.limit_of("o") == 3 * GIB) is squeezed


def test_a_guaranteed_job_is_heard_while_it_ends_mini_batches() -> None:
    """With or without neighbours. The longer its mini-batches are, the longer it may be silent."""
    state, heard = PaceState(), {}
    for second in range(2000):
        steps = (60.0,) if 100 <= second <= 400 and second % 60 == 0 else ()
        neighbours = ("o",) if second >= 200 else ()
        state = control(state, PaceReport(guaranteed="g", opportunistic=neighbours, steps=steps), second, CONFIG)
        heard[second] = is_heard(state, second, CONFIG)
    assert [second for second, one in heard.items() if one] == list(range(120, 361 + int(CONFIG.unheard_s)))
    slow = control(state, PaceReport(guaranteed="g", opportunistic=(), steps=(200.0,) * 50), 2000.0, CONFIG)
    assert is_heard(slow, 3000.0, CONFIG)
    assert not is_heard(slow, 3001.0, CONFIG)
    assert not is_heard(control(slow, PaceReport(guaranteed="h", opportunistic=()), 2001.0, CONFIG), 2001.0, CONFIG)
