"""How long a written placement may take: to bind after its release, and to wait for foreign pods in flight."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coda.model import JobId, PlacementState
from coda.model.decision import Start
from coda.placements import PlacementAction, PlacementReview, placement_from_start
from coda.placements.review import DropCause, adopted_placement, is_given_up, released_placement, with_volume_time
from coda.policy import PolicyConfig
from tests.builders import job, planned

COMMITTED = planned(job("gang", gpus=8), "n1")
CONFIG = PolicyConfig(bind_deadline_s=60.0, bind_deadline_per_rank_s=0.0)


@pytest.mark.parametrize(
    ("now_s", "deadline_s"),
    [
        pytest.param(110.0, 160.0, id="soon after the commit: its deadline stands"),
        pytest.param(130.0, 160.0, id="half of the time is left"),
        pytest.param(150.0, 180.0, id="late: half of the time from now on"),
    ],
)
def test_a_released_placement_has_half_of_the_bind_deadline_at_least(now_s: float, deadline_s: float) -> None:
    assert COMMITTED.placement is not None
    placement = replace(COMMITTED.placement, committed_s=100.0, bind_deadline_s=160.0)
    released = released_placement(placement, epoch=3, now_s=now_s, config=CONFIG)
    assert released == replace(
        placement, epoch=3, state=PlacementState.RELEASED, committed_s=100.0, bind_deadline_s=deadline_s
    )


@pytest.mark.parametrize(("ranks", "time_s"), [(1, 60.05), (512, 85.6), (4096, 264.8)])
def test_a_larger_gang_has_more_time_to_bind(ranks: int, time_s: float) -> None:
    start = Start(job=JobId("a/b"), attempt=1, generation=1, nodes=("n1",) * ranks, cpus_per_replica=1)
    placement = placement_from_start(start, plan_id="p", epoch=1, now_s=0.0, config=PolicyConfig())
    assert placement.bind_deadline_s == pytest.approx(time_s)
    released = released_placement(placement, epoch=1, now_s=1000.0, config=PolicyConfig())
    assert released.bind_deadline_s == pytest.approx(1000.0 + time_s / 2)


def test_pods_that_bring_volumes_have_ten_minutes_more_and_half_of_that_once_released() -> None:
    scratch = replace(job("gang", gpus=8), brings_volumes=True)
    start = Start(job=scratch.id, attempt=1, generation=1, nodes=("n1",), cpus_per_replica=1)
    config = with_volume_time(CONFIG, scratch)
    placement = placement_from_start(start, plan_id="p", epoch=1, now_s=0.0, config=config)
    assert placement.bind_deadline_s == 660.0
    assert released_placement(placement, epoch=1, now_s=1000.0, config=config).bind_deadline_s == 1330.0
    assert with_volume_time(CONFIG, job("gang", gpus=8)) is CONFIG


@pytest.mark.parametrize(
    ("late_binds", "more_s"),
    [(0, 600.0), (1, 300.0), (2, 150.0), (3, 75.0), (4, 60.0), (7, 60.0), (8, 600.0), (9, 300.0), (100, 60.0)],
)
def test_volumes_that_are_never_made_get_less_time_but_now_and_then(late_binds: int, more_s: float) -> None:
    """A job whose disks take minutes is still to start after a long outage of whatever makes them."""
    scratch = replace(job("gang", gpus=8), brings_volumes=True, late_binds=late_binds)
    assert with_volume_time(CONFIG, scratch).bind_deadline_s == CONFIG.bind_deadline_s + more_s


def test_an_adopted_placement_changes_its_epoch_alone() -> None:
    assert COMMITTED.placement is not None
    assert adopted_placement(COMMITTED.placement, epoch=7) == replace(COMMITTED.placement, epoch=7)


@pytest.mark.parametrize(
    ("waited_s", "limit_s", "drops"),
    [
        pytest.param(9.9, 10.0, False, id="within the limit"),
        pytest.param(10.0, 10.0, True, id="at the limit"),
        pytest.param(0.0, 0.0, True, id="a limit of zero: at once"),
    ],
)
def test_a_placement_waits_for_pods_in_flight_up_to_a_limit(waited_s: float, limit_s: float, drops: bool) -> None:
    review = PlacementReview(job=COMMITTED, action=PlacementAction.WAIT)
    assert is_given_up(review, waited_s=waited_s, limit_s=limit_s) is drops


@pytest.mark.parametrize(
    "review",
    [
        pytest.param(
            PlacementReview(job=COMMITTED, action=PlacementAction.WAIT, awaits_stops=True), id="stopped jobs must go"
        ),
        pytest.param(PlacementReview(job=COMMITTED, action=PlacementAction.RELEASE), id="it fits"),
        pytest.param(PlacementReview(job=COMMITTED, action=PlacementAction.ADOPT), id="another leader's"),
        pytest.param(
            PlacementReview(job=COMMITTED, action=PlacementAction.DROP, defect=DropCause.LATE),
            id="dropped for another reason",
        ),
    ],
)
def test_no_other_wait_has_this_limit(review: PlacementReview) -> None:
    assert not review.awaits_in_flight
    assert not is_given_up(review, waited_s=1e9, limit_s=10.0)
