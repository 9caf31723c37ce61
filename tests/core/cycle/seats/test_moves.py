"""An opportunistic job that stands still, since its GPU has no room for it any more, goes on elsewhere."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coda.cycle import CycleCache, CycleResult, CycleSnapshot, run_cycle
from coda.model import Job, Phase, World
from coda.model.decision import Stop, StopCause
from coda.model.job import JobId, WriteTrouble
from coda.model.world import GpuUse
from coda.placements.review import awaits_decision
from coda.policy import PolicyConfig
from tests.builders import job, opportunistic, running, seat_node, seated, world
from tests.core.cycle.seats.test_seat_laws import shared_worlds

NOW_S = 1000.0
ON = PolicyConfig(shares_gpus=True, policy="coda")
OWNED = {"n1": (GpuUse(index=0, is_taken=True, job=JobId("default/owner"), attempt=1, rank=0),)}


def cycle(of: World, config: PolicyConfig = ON) -> CycleResult:
    return run_cycle(CycleSnapshot(world=of, epoch=1, now_s=NOW_S), config, CycleCache())


def guest(name: str = "guest", *, resumable: bool = True, crowded: bool = True) -> Job:
    one = seated(opportunistic(job(name, resumable=resumable), gpu_gib=10), ("n1", 0))
    return replace(one, crowded=frozenset({0} if crowded else ()))


def beside_owner(*jobs: Job) -> World:
    nodes = [seat_node("n1"), seat_node("n2")]
    return replace(world(nodes, [running(job("owner"), "n1"), *jobs]), gpu_uses=OWNED)


def moved(of: Job, by: str = "default/owner") -> Stop:
    return Stop(job=of.id, attempt=1, cause=StopCause.PREEMPT, by=JobId(by))


@pytest.mark.parametrize("config", [ON, PolicyConfig(policy="coda")])
def test_it_stops_for_the_job_that_has_the_gpu_whole_though_nobody_waits(config: PolicyConfig) -> None:
    crowded = guest()
    assert cycle(beside_owner(crowded, guest("fits", crowded=False)), config).decision.stops == (moved(crowded),)
    assert awaits_decision(crowded, epoch=1)


def test_beside_a_pod_that_is_no_training_job_it_makes_room_for_itself() -> None:
    crowded = guest()
    foreign = replace(beside_owner(crowded), gpu_uses={"n1": (GpuUse(index=0, is_taken=True),)})
    assert cycle(foreign).decision.stops == (moved(crowded, by=crowded.id),)


def test_a_gang_stops_though_it_does_not_resume() -> None:
    """Its other rank waits for the one that stands still, and fails after a while."""
    gang = seated(opportunistic(job("gang", replicas=2), gpu_gib=10), ("n1", 0), ("n2", 0))
    assert cycle(beside_owner(replace(gang, crowded=frozenset({0})))).decision.stops == (moved(gang),)


def test_one_that_a_guaranteed_job_waits_for_stops_though_its_work_is_lost() -> None:
    lost = guest(resumable=False)
    assert cycle(beside_owner(lost)).decision.stops == ()
    assert cycle(beside_owner(replace(lost, awaited=True))).decision.stops == (moved(lost),)


def test_then_it_gets_a_seat_on_another_gpu() -> None:
    waits = replace(guest(crowded=False), phase=Phase.QUEUED, attempt=2, bound=frozenset())
    (start,) = cycle(beside_owner(waits)).decision.starts
    assert (start.nodes, start.gpus) == (("n2",), (0,))


def test_others_start_in_the_same_cycle() -> None:
    decision = cycle(beside_owner(guest(), opportunistic(job("new"), gpu_gib=10))).decision
    assert [start.nodes for start in decision.starts] == [("n2",)]
    assert len(decision.stops) == 1


STAYS = {
    "it would lose its work": guest(resumable=False),
    "its status cannot be written": replace(guest(), unwritable=WriteTrouble.REFUSED),
    "it is not on a seat": replace(running(job("whole", resumable=True), "n2"), crowded=frozenset({0})),
    "it has stopped": replace(guest(), phase=Phase.RESTARTING),
}


@pytest.mark.parametrize("one", STAYS.values(), ids=list(STAYS))
def test_stays_where_it_is(one: Job) -> None:
    assert cycle(beside_owner(one)).decision.stops == ()


@given(shared_worlds(), st.data())
@settings(deadline=None)
def test_law_who_is_not_crowded_or_would_lose_its_work_is_decided_about_as_before(
    drawn: World, data: st.DataObject
) -> None:
    """Only stops come on top, each of a crowded job that resumes or is a gang; and where nobody waits for a decision,
    none comes."""
    found = replace(drawn, jobs=tuple(replace(one, resumable=data.draw(st.booleans())) for one in drawn.jobs))
    crowded = {one.id for one in found.jobs if data.draw(st.booleans())}
    told = replace(
        found, jobs=tuple(replace(one, crowded=one.bound) if one.id in crowded else one for one in found.jobs)
    )
    before, after = cycle(found).decision, cycle(told).decision
    assert after.starts == before.starts
    more = [stop for stop in after.stops if stop not in before.stops]
    job_by_id = {one.id: one for one in told.jobs}
    moved = [job_by_id[stop.job] for stop in more]
    assert all(one.crowded and (one.resumable or one.replicas > 1) for one in moved)
    if not any(awaits_decision(one, epoch=1, now_s=NOW_S) for one in told.jobs):
        assert not after.stops
