"""The coordinator's orders: what each job of a unit may have, and that the guaranteed job is never limited."""

from __future__ import annotations

from itertools import count

from hypothesis import given, settings
from hypothesis import strategies as st

from coda.sharing.config import FULL_SHARE, GIB, SharingConfig
from coda.sharing.coordinator import SharingOrder, UnitReport, UnitState, coordinate
from coda.sharing.memory_limits import MemoryReport, MemoryUse
from coda.sharing.pace_control import PacePhase, PaceReport

CONFIG = SharingConfig()


def unit_report(guaranteed: MemoryUse | None, *others: MemoryUse, steps: tuple[float, ...] = ()) -> UnitReport:
    memory = MemoryReport(total_bytes=32 * GIB, guaranteed=guaranteed, opportunistic=others)
    names = tuple(use.uid for use in others)
    pace = PaceReport(guaranteed=guaranteed.uid if guaranteed else None, opportunistic=names, steps=steps)
    return UnitReport(pace=pace, memory_by_gpu={"gpu-0": memory})


def use(uid: str, peak: int, device: int = 0, host: int = 0) -> MemoryUse:
    return MemoryUse(
        uid=uid, peak_bytes=peak * GIB, floor_bytes=min(peak, 1) * GIB, device_bytes=device * GIB, host_bytes=host * GIB
    )


def test_a_guaranteed_job_arrives_beside_an_opportunistic_one_and_leaves_again() -> None:
    state, orders = coordinate(UnitState(), unit_report(None, use("o", 20, device=20)), 0.0, CONFIG)
    assert orders == (SharingOrder(gpu="gpu-0", uid="o", alone=True),)
    report = unit_report(use("g", 0), use("o", 20, device=20))
    state, orders = coordinate(state, report, 1.0, CONFIG)
    assert state.pace.phase is PacePhase.ARRIVING
    # It runs to the end of its mini-batch, where it gives its memory back; then it has the floor.
    assert orders[1] == SharingOrder(gpu="gpu-0", uid="o", share=FULL_SHARE, device_bytes=GIB, hurried=True)
    state, orders = coordinate(state, unit_report(use("g", 0), use("o", 20, 1, 4)), 2.0, CONFIG)
    assert orders[1].share == CONFIG.floor_share
    now_s = 2.0
    while not (orders[1].share == FULL_SHARE and orders[1].device_bytes):
        now_s += 1
        report = unit_report(use("g", 8, 8), use("o", 20, 1, 4), steps=(0.1,) * 10)
        state, orders = coordinate(state, report, now_s, CONFIG)
        assert now_s < 120
    state, orders = coordinate(state, unit_report(None, use("o", 20, device=20)), now_s + 1, CONFIG)
    assert orders == (SharingOrder(gpu="gpu-0", uid="o", alone=True),)


def test_a_job_for_which_the_card_is_too_small_stands_still() -> None:
    report = unit_report(use("g", 31), use("o", 20), use("p", 2))
    _, orders = coordinate(UnitState(), report, 0.0, CONFIG)
    assert {order.uid: order.share for order in orders if order.uid != "g"} == {"o": 0, "p": 0}


def test_those_on_one_gpu_divide_the_share_and_those_on_other_gpus_of_the_unit_do_not() -> None:
    state, clock = UnitState(), count()

    def run(seconds: int, step_s: float) -> dict[str, int]:
        nonlocal state
        for _ in range(seconds):
            memory = {
                gpu: MemoryReport(
                    total_bytes=32 * GIB,
                    guaranteed=use("g", 8, 8),
                    opportunistic=tuple(use(uid, 2, 2) for uid in uids),
                )
                for gpu, uids in (("gpu-0", "o"), ("gpu-1", "pq"))
            }
            pace = PaceReport(guaranteed="g", opportunistic=("o", "p", "q"), steps=(step_s,) * 10)
            report = UnitReport(pace=pace, memory_by_gpu=memory)
            state, orders = coordinate(state, report, float(next(clock)), CONFIG)
        return {order.uid: order.share for order in orders if order.uid != "g"}

    assert run(100, 0.1) == {"o": FULL_SHARE, "p": FULL_SHARE // 2, "q": FULL_SHARE // 2}
    hurt = run(5, 0.2)
    assert hurt == {"o": hurt["o"], "p": hurt["o"] // 2, "q": hurt["o"] // 2}
    assert hurt["o"] < FULL_SHARE // 4


@given(
    st.lists(
        st.tuples(
            st.one_of(st.none(), st.builds(use, st.sampled_from("gh"), *[st.integers(1, 20)] * 3)),
            st.lists(
                st.builds(use, st.sampled_from("opq"), *[st.integers(1, 20)] * 3),
                max_size=3,
                unique_by=lambda one: one.uid,
            ),
            st.lists(st.floats(0.01, 2), max_size=25).map(tuple),
        ),
        max_size=10,
    )
)
@settings(max_examples=60, deadline=None)
def test_law_nothing_limits_a_guaranteed_job_and_orders_name_everybody_once(
    rounds: list[tuple[MemoryUse | None, list[MemoryUse], tuple[float, ...]]],
) -> None:
    state = UnitState()
    for second, (guaranteed, others, steps) in enumerate(rounds):
        report = unit_report(guaranteed, *others, steps=steps)
        before = state
        state, orders = coordinate(state, report, float(second), CONFIG)
        assert coordinate(before, report, float(second), CONFIG) == (state, orders)
        assert [order.uid for order in orders] == sorted(
            [*(one.uid for one in others), *([guaranteed.uid] if guaranteed else [])]
        )
        for order in orders:
            assert 0 <= order.share <= FULL_SHARE
            if guaranteed and order.uid == guaranteed.uid:
                assert (order.share, order.device_bytes) == (FULL_SHARE, None)
