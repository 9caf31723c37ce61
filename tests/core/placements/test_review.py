from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coda.cycle import decide
from coda.model import Decision, Job, Phase, PlacementState, Resources, World
from coda.placements import PlacementAction, awaits_decision, review_placements
from coda.placements.review import DefectKind, DropCause
from coda.policy import PolicyConfig
from tests.builders import job, node, planned, resources, running, stopping, world
from tests.strategies import NOW_S, worlds

pytestmark = pytest.mark.heavy

RELEASED = PlacementState.RELEASED


def of_epoch(gang: Job, epoch: int, *, committed_s: float = 0.0) -> Job:
    assert gang.placement
    return replace(gang, placement=replace(gang.placement, epoch=epoch, committed_s=committed_s))


def fates(of: World, *, epoch: int = 1, now_s: float = 1.0) -> dict[str, PlacementAction]:
    return {ruling.job.id.split("/")[1]: ruling.action for ruling in review_placements(of, epoch=epoch, now_s=now_s)}


GANG = job("gang", gpus=8)
COMMITTED = planned(GANG, "n1")


@pytest.mark.parametrize(
    ("gang", "epoch", "expected"),
    [
        pytest.param(COMMITTED, 1, {"gang": PlacementAction.RELEASE}, id="committed and fits"),
        pytest.param(COMMITTED, 2, {"gang": PlacementAction.RELEASE}, id="committed by another leader and fits"),
        pytest.param(planned(GANG, "n1", state=RELEASED), 1, {}, id="released: the operator's"),
        pytest.param(
            planned(GANG, "n1", state=RELEASED), 2, {"gang": PlacementAction.ADOPT}, id="released by another leader"
        ),
        pytest.param(
            planned(GANG, "n1", state=RELEASED, phase=Phase.LAUNCHED),
            2,
            {"gang": PlacementAction.ADOPT},
            id="launched, unbound",
        ),
        pytest.param(running(GANG, "n1"), 2, {}, id="running: needs nobody"),
        pytest.param(planned(GANG, "gone"), 1, {"gang": PlacementAction.DROP}, id="its node is gone"),
        pytest.param(
            planned(GANG, "gone", state=RELEASED), 2, {"gang": PlacementAction.DROP}, id="another leader's, node gone"
        ),
        pytest.param(planned(GANG, "gone", state=RELEASED), 1, {}, id="released here: its deadline rolls it back"),
        pytest.param(replace(COMMITTED, attempt=2), 1, {}, id="of an attempt that is over"),
        pytest.param(GANG, 1, {}, id="no plan"),
    ],
)
def test_the_fate_of_one_plan(gang: Job, epoch: int, expected: dict[str, PlacementAction]) -> None:
    assert fates(world([node("n1")], [gang]), epoch=epoch) == expected


def test_waits_for_foreign_pods_in_flight_that_would_take_the_room() -> None:
    taken = {"n1": resources(gpus=1, pods=1)}
    assert fates(world([node("n1")], [COMMITTED], in_flight=taken)) == {"gang": PlacementAction.WAIT}


def test_does_not_wait_for_foreign_pods_in_flight_that_leave_enough() -> None:
    taken = {"n1": resources(cores=4, pods=1)}
    assert fates(world([node("n1")], [COMMITTED], in_flight=taken)) == {"gang": PlacementAction.RELEASE}


def test_another_leaders_plan_is_adopted_while_it_settles() -> None:
    taken = {"n1": resources(gpus=1, pods=1)}
    assert fates(world([node("n1")], [COMMITTED], in_flight=taken), epoch=2) == {"gang": PlacementAction.ADOPT}


def test_drops_a_committed_plan_whose_room_was_taken() -> None:
    rulings = review_placements(world([node("n1")], [COMMITTED], foreign={"n1": resources(gpus=1)}), epoch=1, now_s=1.0)
    assert [(ruling.action, str(ruling.defect)) for ruling in rulings] == [
        (PlacementAction.DROP, f"n1 {DefectKind.NO_CAPACITY.value}")
    ]


@pytest.mark.parametrize(("epoch", "in_flight"), [(2, {}), (1, {"n1": resources(gpus=1, pods=1)})])
def test_drops_a_committed_plan_after_its_deadline(epoch: int, in_flight: Mapping[str, Resources]) -> None:
    snapshot = world([node("n1")], [COMMITTED], in_flight=in_flight)
    (ruling,) = review_placements(snapshot, epoch=epoch, now_s=60.0)
    assert (ruling.action, ruling.defect) == (PlacementAction.DROP, DropCause.LATE)


def test_releases_what_comes_free_just_after_the_deadline() -> None:
    """Stopped jobs took all of their notice: a new decision would let them compete for what they were stopped for."""
    (ruling,) = review_placements(world([node("n1")], [COMMITTED]), epoch=1, now_s=60.0)
    assert (ruling.action, ruling.defect) == (PlacementAction.RELEASE, None)


def test_of_plans_for_the_same_room_only_the_last_is_dropped() -> None:
    first = of_epoch(planned(job("first", gpus=8), "n1", state=RELEASED, phase=Phase.LAUNCHED), 1, committed_s=1.0)
    second = of_epoch(planned(job("second", gpus=8), "n1", state=RELEASED, phase=Phase.LAUNCHED), 1, committed_s=2.0)
    assert fates(world([node("n1")], [second, first]), epoch=2) == {"second": PlacementAction.DROP}


def test_a_committed_plan_gives_way_to_an_older_released_one_whatever_its_age() -> None:
    committed = of_epoch(planned(job("committed", gpus=8), "n1"), 2, committed_s=1.0)
    released = of_epoch(planned(job("released", gpus=8), "n1", state=RELEASED), 1, committed_s=2.0)
    assert fates(world([node("n1")], [committed, released]), epoch=2) == {"committed": PlacementAction.DROP}


def test_rulings_come_oldest_first_whatever_the_order_of_jobs() -> None:
    jobs = [
        of_epoch(planned(job(name, gpus=1), "n1"), 1, committed_s=s) for name, s in (("b", 2.0), ("a", 2.0), ("c", 1.0))
    ]
    for order in (jobs, jobs[::-1]):
        assert list(fates(world([node("n1")], order))) == ["c", "a", "b"]


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(worlds(), st.integers(0, 2))
def test_a_round_that_no_job_awaits_decides_nothing(of: World, epoch: int) -> None:
    resting = replace(of, jobs=tuple(gang for gang in of.jobs if not awaits_decision(gang, epoch=epoch)))
    assert decide(resting, PolicyConfig(), NOW_S) == Decision(starts=(), refusals=())
    assert review_placements(resting, epoch=epoch, now_s=NOW_S) == ()


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(worlds())
def test_every_job_that_waits_awaits_a_decision(of: World) -> None:
    plan = decide(of, PolicyConfig(), NOW_S)
    told = {start.job for start in plan.starts} | {refusal.job for refusal in plan.refusals}
    ruled = {ruling.job.id for ruling in review_placements(of, epoch=1, now_s=NOW_S)}
    assert told | ruled <= {gang.id for gang in of.jobs if awaits_decision(gang, epoch=1)}


def test_a_plan_on_room_that_is_being_left_waits_until_it_is_and_is_then_released() -> None:
    leaver = stopping(running(job("leaver", gpus=4), "n1"))
    there = world([node("n1")], [COMMITTED, leaver], leaving={"n1": leaver.request})
    (ruling,) = review_placements(there, epoch=1, now_s=1.0)
    assert (ruling.job.id, ruling.action, ruling.awaits_stops) == (GANG.id, PlacementAction.WAIT, True)
    (ruling,) = review_placements(world([node("n1")], [COMMITTED]), epoch=1, now_s=1.0)
    assert (ruling.action, ruling.awaits_stops) == (PlacementAction.RELEASE, False)


def test_a_plan_that_does_not_fit_even_then_is_dropped() -> None:
    leaver, other = stopping(running(job("leaver", gpus=4), "n1")), running(job("other", gpus=1), "n1")
    there = world([node("n1")], [COMMITTED, leaver, other], leaving={"n1": leaver.request})
    assert fates(there) == {"gang": PlacementAction.DROP}


def test_what_was_stopped_counts_as_gone_for_whoever_it_was_stopped_for() -> None:
    leaver = stopping(running(job("leaver", gpus=4), "n1"))
    there = world([node("n1")], [GANG, leaver], leaving={"n1": leaver.request})
    plan = decide(there, PolicyConfig(), NOW_S)
    assert [start.job for start in plan.starts] == [GANG.id]
    assert plan.refusals == ()
