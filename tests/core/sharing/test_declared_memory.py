"""What jobs declare to need of a GPU, and the limits that they get."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from coda.sharing.config import GIB
from coda.sharing.memory_limits import MemoryControl, MemoryReport, MemoryState, MemoryUse, shifted
from tests.core.sharing.test_memory_limits import CONFIG, report, use

FRACTION = MemoryControl.FRACTION
DECLARED = st.lists(st.integers(1, 30), min_size=2, max_size=4)


@given(DECLARED, st.data())
@settings(max_examples=80, deadline=None)
def test_law_no_limit_is_below_what_was_declared_while_all_of_that_fits(gib: list[int], data: st.DataObject) -> None:
    guests = [
        MemoryUse(
            uid=f"o{number}",
            peak_bytes=data.draw(st.integers(0, most)) * GIB,
            declared_bytes=most * GIB,
            refusals=data.draw(st.sampled_from([0, 3])),
            control=data.draw(st.sampled_from([MemoryControl.FULL, FRACTION])),
        )
        for number, most in enumerate(gib)
    ]
    card = sum(gib) * GIB + data.draw(st.integers(0, 9)) * GIB
    state = MemoryState()
    for second in range(3):
        told = MemoryReport(total_bytes=card, guaranteed=None, opportunistic=tuple(guests))
        state = shifted(state, told, float(second), CONFIG)
        for guest in guests:
            assert (state.limit_of(guest.uid) or 0) >= guest.declared_bytes


def test_who_has_more_than_it_declared_takes_nothing_that_others_declared() -> None:
    greedy = use("a", 30, 2, device_bytes=20 * GIB, host_bytes=10 * GIB, declared_bytes=8 * GIB, speed=0.1)
    honest = use("b", 3, 1, declared_bytes=15 * GIB, control=FRACTION, speed=1.0)
    state = MemoryState()
    for second in range(2000):
        state = shifted(state, report(None, greedy, honest), float(second), CONFIG)
        assert (state.limit_of("b") or 0) >= 15 * GIB
