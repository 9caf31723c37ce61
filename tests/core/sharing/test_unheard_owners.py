"""A guaranteed job that nobody hears, and the memory of those beside it."""

from __future__ import annotations

import pytest

from coda.sharing.config import GIB
from coda.sharing.coordinator import UnitReport, UnitState, coordinate
from coda.sharing.memory_limits import MemoryState, shifted
from coda.sharing.pace_control import PacePhase, PaceReport
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
