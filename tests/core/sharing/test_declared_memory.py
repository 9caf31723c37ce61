"""What jobs declare to need of a GPU, and the limits that they get."""

from __future__ import annotations

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from coda.sharing.config import GIB
from coda.sharing.memory_limits import MemoryControl, MemoryReport, MemoryState, MemoryUse, shifted
from tests.core.sharing.test_memory_limits import CARD, CONFIG, report, use

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


@given(st.integers(0, 30), st.integers(0, 40), DECLARED)
@settings(max_examples=80, deadline=None)
def test_law_declared_memory_is_not_given_out_while_somebody_uncontrolled_has_it(
    owner_gib: int, held_gib: int, gib: list[int]
) -> None:
    """It declared less than it has, or nothing: its limit is a word to nobody."""
    wild = MemoryUse(uid="a", peak_bytes=held_gib * GIB, control=MemoryControl.NONE, declared_bytes=GIB)
    guests = [
        MemoryUse(uid=f"o{at}", peak_bytes=0, declared_bytes=one * GIB, control=FRACTION) for at, one in enumerate(gib)
    ]
    owner = MemoryUse(uid="g", peak_bytes=owner_gib * GIB, device_bytes=owner_gib * GIB)
    state = MemoryState()
    for second in range(70):
        state = shifted(state, report(owner, wild, *guests), float(second), CONFIG)
        given_out = sum(state.limit_of(guest.uid) or 0 for guest in guests)
        kept = math.ceil(CONFIG.peak_margin * owner.peak_bytes)
        assert given_out == 0 or given_out + wild.peak_bytes + kept <= CARD
