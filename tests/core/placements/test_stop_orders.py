"""The order that a stop becomes, and how long the job that it is for waits."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coda.model import JobId, Phase, PlacementState, Resources
from coda.model.decision import Stop
from coda.model.job import StopCause, StopOrder
from coda.placements import PlacementAction, review_placements
from coda.placements.lingering_use import LEAVES_WITHIN_S, is_leaving
from coda.placements.stop_orders import order_from_stop
from coda.policy import PolicyConfig
from tests.builders import job, node, planned, world

STOP = Stop(job=JobId("team/guest"), attempt=1, cause=StopCause.MIGRATE, by=JobId("other/large"))


def test_one_whose_memory_a_guaranteed_job_waits_for_gets_no_notice() -> None:
    victim = replace(job("guest"), phase=Phase.RUNNING, stop_notice_s=70.0, awaited=True)
    assert order_from_stop(STOP, victim, 100.0, PolicyConfig()).notice_s == 0.0


@given(st.floats(0, 3600), st.floats(0, 3600), st.sampled_from([*Phase]))
def test_a_running_job_gets_the_notice_that_it_asks_for_up_to_the_platforms(
    asked_s: float, limit_s: float, phase: Phase
) -> None:
    victim = replace(job("guest"), phase=phase, stop_notice_s=asked_s)
    order = order_from_stop(STOP, victim, 100.0, PolicyConfig(stop_notice_limit_s=limit_s))
    assert order.notice_s == (min(asked_s, limit_s) if phase is Phase.RUNNING else 0.0)
    assert (order.since_s, order.by, order.cause) == (100.0, "other/*", StopCause.MIGRATE)


@pytest.mark.parametrize("notice_s", [0.0, 90.0])
def test_what_is_being_left_counts_for_as_long_as_the_notice_lasts_and_a_while(notice_s: float) -> None:
    end_s = 50.0 + notice_s + LEAVES_WITHIN_S
    for now_s, counts in ((end_s - 0.1, True), (end_s, False)):
        assert is_leaving(now_s, ordered_s=50.0, deleted_s=None, grace_s=30.0, notice_s=notice_s) is counts


def test_a_placement_waits_for_stopped_jobs_as_much_longer_as_they_have_notice() -> None:
    order = StopOrder(cause=StopCause.MIGRATE, by=JobId("team/large"), since_s=0.0, notice_s=200.0)
    guest = planned(replace(job("guest", gpus=8), phase=Phase.RUNNING), "n1")
    assert guest.placement is not None
    guest = replace(guest, bound=frozenset({0}), placement=replace(guest.placement, stop=order))
    large = planned(job("large", gpus=8), "n1")
    assert large.placement is not None
    committed = replace(large.placement, state=PlacementState.COMMITTED, committed_s=0.0, bind_deadline_s=60.0)
    large = replace(large, placement=committed)
    held = {"n1": guest.request}
    busy = world([node("n1", gpus=8)], [guest, large], leaving=held)
    epoch = committed.epoch

    def action(now_s: float, *, still_held: bool = True) -> PlacementAction:
        seen = busy if still_held else replace(busy, used={"n1": Resources()}, leaving={})
        (review,) = review_placements(seen, epoch=epoch, now_s=now_s)
        return review.action

    assert action(61.0) is PlacementAction.WAIT
    assert action(259.9) is PlacementAction.WAIT
    assert action(260.0) is PlacementAction.DROP
    assert action(59.0, still_held=False) is PlacementAction.RELEASE
    (review,) = review_placements(busy, epoch=epoch, now_s=61.0)
    assert review.late_s == 260.0  # the planner looks again then, and not before
