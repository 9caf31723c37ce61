"""A guaranteed job that waits for memory, what it and the others declared, and one that nobody hears."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coda.sharing.config import GIB, SharingConfig
from coda.sharing.coordinator import UnitReport, UnitState, coordinate
from coda.sharing.memory_limits import MemoryControl, MemoryReport, MemoryState, MemoryUse, shifted
from coda.sharing.pace_control import PaceReport
from tests.core.sharing.test_memory_limits import CARD, CONFIG, report, reports, use

FRACTION, NONE = MemoryControl.FRACTION, MemoryControl.NONE
WAITS = use("g", 3, waits_bytes=20 * GIB)
HOLDERS = {
    "one without host memory": (use("o", 17, 5, device_bytes=17 * GIB, control=FRACTION), ("o",)),
    "one that nobody controls": (use("o", 17, device_bytes=17 * GIB, control=NONE), ("o",)),
    "one of which nobody knows what it has": (use("o", 0, control=NONE), ("o",)),
    "one that keeps all of it between its mini-batches": (use("o", 17, 17, device_bytes=17 * GIB), ("o",)),
    "one that can give it back": (use("o", 17, 5, device_bytes=17 * GIB), ()),
    "one that the driver sees with nothing": (use("o", 0, control=NONE, is_seen=True), ()),
    "one that has nothing yet": (use("o", 0), ()),
}


@pytest.mark.parametrize(("guest", "named"), HOLDERS.values(), ids=list(HOLDERS))
def test_whoever_cannot_give_back_what_a_guaranteed_job_waits_for_is_named_at_once(
    guest: MemoryUse, named: tuple[str, ...]
) -> None:
    before = shifted(MemoryState(), report(use("g", 3), guest), 0.0, CONFIG)
    assert before.to_move(0.0, CONFIG) == ()
    state = shifted(before, report(WAITS, guest), 1.0, CONFIG)
    assert state.to_move(1.0, CONFIG) == named
    assert shifted(state, report(use("g", 20), guest), 2.0, CONFIG).to_move(2.0, CONFIG) == ()


def test_whoever_can_give_it_back_has_ten_seconds_for_it() -> None:
    guest = use("o", 25, 5, device_bytes=25 * GIB)
    state = shifted(MemoryState(), report(use("g", 3), guest), 0.0, CONFIG)
    named = []
    for second in range(1, 20):
        state = shifted(state, report(WAITS, guest), float(second), CONFIG)
        assert (state.limit_of("o") or 0) < 7 * GIB
        named.append(bool(state.to_move(float(second), CONFIG)))
    assert named == [False] * 10 + [True] * 9


def test_whoever_can_give_it_back_is_not_named_while_another_one_leaves() -> None:
    can, cannot = use("o", 9, 1, device_bytes=9 * GIB), use("p", 9, 1, device_bytes=9 * GIB, control=FRACTION)
    state = MemoryState()
    for second in range(30):
        state = shifted(state, report(WAITS, can, cannot), float(second), CONFIG)
        assert state.ending == ("p",)


def test_one_that_is_to_be_stopped_does_not_stand_still() -> None:
    """It must hear that it is: its launches may be all that it does."""
    guest = use("o", 28, 5, device_bytes=28 * GIB, control=FRACTION)
    pace = PaceReport(guaranteed="g", opportunistic=("o",), steps=())
    shares = []
    for first in (use("g", 9), replace(WAITS, peak_bytes=9 * GIB)):
        unit = UnitReport(pace=pace, memory_by_gpu={"gpu": report(first, guest)})
        _, orders = coordinate(UnitState(), unit, 0.0, CONFIG)
        shares.append(next(order.share for order in orders if order.uid == "o"))
    assert shares == [0, CONFIG.floor_share]


def test_what_a_guaranteed_job_once_had_is_no_room_to_grow_into() -> None:
    guest = use("o", 4, 1, control=FRACTION)
    state = shifted(MemoryState(), report(use("g", 18)), 0.0, CONFIG)  # before anybody came
    for second in range(1, 200):
        state = shifted(state, report(use("g", 6), guest), float(second), CONFIG)
    assert (state.limit_of("o") or 0) <= CARD - 18 * GIB * CONFIG.peak_margin
    declares = use("g", 6, declared_bytes=24 * GIB)
    assert shifted(MemoryState(), report(declares, guest), 0.0, CONFIG).limit_of("o") == 8 * GIB


@given(st.lists(reports(), min_size=1, max_size=4), st.integers(0, 40))
@settings(max_examples=60, deadline=None)
def test_law_nobody_is_stopped_for_a_guaranteed_job_that_does_not_wait(events: list[MemoryReport], gib: int) -> None:
    state = MemoryState()
    for second, one in enumerate(events):
        state = shifted(state, one, float(second), SharingConfig())
        assert state.ending == ()
        if one.guaranteed is not None:
            waiting = replace(one, guaranteed=replace(one.guaranteed, waits_bytes=gib * GIB))
            ending = shifted(state, waiting, second + 0.5, SharingConfig()).ending
            assert set(ending) <= {guest.uid for guest in one.opportunistic}
            assert not ending or gib
