"""A job of class Auto that leaves its seats for GPUs of its own."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coda.cycle import CycleCache, CycleResult, CycleSnapshot, run_cycle
from coda.model import Job, Phase, World
from coda.model.capacity import free_by_node
from coda.model.decision import Decision, Stop, StopCause, WaitCode
from coda.model.job import LocalityStep, SharingWish, WriteTrouble
from coda.model.world import VirtualCluster
from coda.placements.review import awaits_decision
from coda.policy import PolicyConfig
from tests.builders import job, opportunistic, quota, running, seat_node, seated, world
from tests.core.cycle.seats.test_seat_laws import shared_worlds

NOW_S = 1000.0
ON = PolicyConfig(shares_gpus=True, policy="coda", auto_wait_s=100.0)


def cycle(of: World, config: PolicyConfig = ON, now_s: float = NOW_S) -> CycleResult:
    return run_cycle(CycleSnapshot(world=of, epoch=1, now_s=now_s), config, CycleCache())


def auto(name: str = "auto", *, since_s: float = 0.0, resumable: bool = True, place: str = "n1") -> Job:
    asked = opportunistic(job(name, resumable=resumable), gpu_gib=10, wish=SharingWish.AUTO)
    return seated(asked, (place, 0), since_s=since_s)


def upgrade(of: Job) -> Stop:
    return Stop(job=of.id, attempt=1, cause=StopCause.UPGRADE, by=of.id)


def test_the_one_that_has_waited_longest_on_its_seats_stops_alone() -> None:
    old, young = auto("old", since_s=1.0), auto("young", since_s=2.0)
    assert cycle(world([seat_node("n1"), seat_node("n2")], [young, old])).decision.stops == (upgrade(old),)


def test_one_that_may_have_no_gpus_keeps_nobody_else_on_its_seats() -> None:
    """They take turns: who was tried in vain comes after all others, until it is on its seats anew."""
    poor = [replace(auto(f"poor{number}", since_s=float(number)), virtual_cluster="poor") for number in (1, 2)]
    tenants = [VirtualCluster(name="poor", gpus=0, may_borrow=False)]
    young = auto("young", since_s=3.0)
    there = world([seat_node("n1"), seat_node("n2")], [*poor, young], virtual_clusters=tenants)
    cache = CycleCache()
    stops = [
        run_cycle(CycleSnapshot(world=there, epoch=1, now_s=NOW_S + second), ON, cache).decision.stops
        for second in range(3)
    ]
    assert stops == [(), (), (upgrade(young),)]
    rich = replace(there, virtual_clusters=(VirtualCluster(name="poor", gpus=1),), jobs=tuple(poor))
    assert run_cycle(CycleSnapshot(world=rich, epoch=1, now_s=NOW_S + 9), ON, cache).decision.stops == (
        upgrade(poor[0]),
    )


def test_then_it_starts_on_a_gpu_of_its_own() -> None:
    left = replace(auto(), phase=Phase.QUEUED, attempt=2, bound=frozenset(), returned=True)
    waits = replace(left, request=replace(left.request, gpus=1))
    (start,) = cycle(world([seat_node("n1")], [waits])).decision.starts
    assert (start.job, start.gpus) == (waits.id, ())


WHOLE = [running(job("whole"), "n2")]
STAYS = {
    "it would lose its work": ([auto(resumable=False)], {}),
    "it has just started": ([auto(since_s=NOW_S - 99)], {}),
    "no GPU is free": ([auto(), running(job("whole"), "n1")], {}),
    "somebody else waits for GPUs": ([auto(), job("large", replicas=2), *WHOLE], {}),
    "somebody else starts": ([auto(), job("starts", gpus=0)], {}),
    "its class is another": ([replace(auto(), sharing=SharingWish.OPPORTUNISTIC)], {}),
    "a ResourceQuota has no GPU left": ([auto()], {"quotas": [quota(hard={"requests.nvidia.com/gpu": 0})]}),
    "its tenant may have none": (
        [replace(auto(), virtual_cluster="poor")],
        {"virtual_clusters": [VirtualCluster(name="poor", gpus=0, may_borrow=False)]},
    ),
}


@pytest.mark.parametrize(("jobs", "more"), STAYS.values(), ids=list(STAYS))
def test_stays_where_it_is(jobs: list[Job], more: dict[str, list[VirtualCluster]]) -> None:
    nodes = [seat_node("n1"), *(seat_node("n2") for one in jobs if one in WHOLE)]
    assert cycle(world(nodes, jobs, **more)).decision.stops == ()  # type: ignore[arg-type]  # one of two


@pytest.mark.parametrize(
    ("waits", "code"),
    [
        pytest.param(job("typo", gpus=16), WaitCode.NEVER_FITS, id="it is larger than the cluster"),
        pytest.param(
            replace(job("poor"), virtual_cluster="poor"), WaitCode.VIRTUAL_CLUSTER_FULL, id="its tenant may have none"
        ),
        pytest.param(
            job("full", namespace="others", quota={"requests.nvidia.com/gpu": 1000}),
            WaitCode.QUOTA_EXCEEDED,
            id="a ResourceQuota of its namespace is full",
        ),
    ],
)
def test_who_waits_for_something_else_keeps_nobody_on_seats(waits: Job, code: WaitCode) -> None:
    """One such job, of anybody, kept every job of class Auto on its seats for ever."""
    sits, tenants = auto(), [VirtualCluster(name="poor", gpus=0, may_borrow=False)]
    full = [quota(hard={"requests.nvidia.com/gpu": 0}, namespace="others")]
    nodes = [seat_node("n1"), seat_node("n2")]
    found = cycle(world(nodes, [sits, waits], virtual_clusters=tenants, quotas=full)).decision
    assert [one.code for one in found.refusals] == [code]
    assert found.stops == (upgrade(sits),)


SOON = {
    "slow": (replace(job("first"), unwritable=WriteTrouble.SLOW), WaitCode.STATUS_WRITE_SLOW),
    "refused": (replace(job("first"), unwritable=WriteTrouble.REFUSED), WaitCode.STATUS_UNWRITABLE),
    "unanswered": (replace(job("first"), unwritable=WriteTrouble.UNANSWERED), WaitCode.STATUS_UNWRITABLE),
    "overtaken": (replace(job("first"), unwritable=WriteTrouble.OVERTAKEN), WaitCode.CHANGED_MEANWHILE),
    "edited": (replace(job("first"), edited=True), WaitCode.EDITED),
    "rolling back": (replace(job("first"), leftovers=True), WaitCode.ROLLING_BACK),
}


@pytest.mark.parametrize(("first", "code"), SOON.values(), ids=list(SOON))
def test_who_starts_in_seconds_is_not_overtaken_and_keeps_nobody_for_ever(first: Job, code: WaitCode) -> None:
    """The wait of a job that asks again and again is one wait, also while its placement is being written."""
    sits, cache = auto(), CycleCache()
    nodes, planner = [seat_node("n1"), seat_node("n2")], PolicyConfig(shares_gpus=True, policy="coda", auto_wait_s=100)
    fill, writing = running(job("fill"), "n1"), running(job("first"), "n2")

    def at(now_s: float, *others: Job) -> Decision:
        return run_cycle(
            CycleSnapshot(world=world(nodes, [sits, fill, *others]), epoch=1, now_s=now_s), planner, cache
        ).decision

    began = at(NOW_S, first)
    assert ([one.code for one in began.refusals], began.stops, began.wake_s) == ([code], (), NOW_S + 100)
    assert at(NOW_S + 50, writing).stops == ()  # no other GPU is free
    assert at(NOW_S + 99, first).stops == ()
    late = at(NOW_S + 100, first)
    assert ([one.code for one in late.refusals], late.stops) == ([code], (upgrade(sits),))


def test_who_waited_for_capacity_in_between_starts_a_new_wait() -> None:
    sits, cache, first = auto(), CycleCache(), SOON["slow"][0]
    fill = running(job("fill"), "n1")
    nodes = [seat_node("n1"), seat_node("n2")]

    def at(now_s: float, *others: Job) -> Decision:
        return run_cycle(
            CycleSnapshot(world=world(nodes, [sits, fill, *others]), epoch=1, now_s=now_s), ON, cache
        ).decision

    assert at(NOW_S, first).stops == ()
    (lacks,) = at(NOW_S + 50, job("first"), running(job("whole"), "n2")).refusals
    assert lacks.code is WaitCode.INSUFFICIENT_GPUS
    assert at(NOW_S + 149, first).stops == ()
    assert at(NOW_S + 249, first).stops == (upgrade(sits),)


@pytest.mark.parametrize("first", [opportunistic(job("first"), gpu_gib=10), job("first", gpus=0)], ids=["seat", "cpu"])
def test_who_asks_for_no_gpu_of_its_own_overtakes_nobody(first: Job) -> None:
    sits, slow = auto(), replace(first, unwritable=WriteTrouble.SLOW)
    assert cycle(world([seat_node("n1"), seat_node("n2")], [sits, slow])).decision.stops == (upgrade(sits),)


RACK = "topology.coda.scheduler/rack"


@pytest.mark.parametrize(("racks", "leaves"), [(("r1", "r2"), False), (("r1", "r1"), True)])
def test_it_leaves_for_the_level_that_it_prefers_and_would_wait_for(racks: tuple[str, str], leaves: bool) -> None:
    """It prefers one rack for longer than it waits for GPUs: stopped for two, it would come back to its seats.

    Each rack would have two GPUs, if one of them were free that somebody has."""
    free = [replace(seat_node(f"free{number}"), labels={RACK: rack}) for number, rack in enumerate(racks)]
    full = [replace(seat_node(f"full{number}"), labels={RACK: rack}) for number, rack in enumerate(("r1", "r2"))]
    asked = replace(
        opportunistic(job("auto", replicas=2, resumable=True), gpu_gib=10, wish=SharingWish.AUTO),
        prefers=(LocalityStep("rack", 300.0),),
    )
    sits = seated(asked, ("free0", 0), ("free1", 0))
    jobs = [sits, *(running(job(f"of-{node.name}"), node.name) for node in full)]
    assert cycle(world([*free, *full], jobs)).decision.stops == ((upgrade(sits),) if leaves else ())


def test_switched_off_it_stays() -> None:
    assert cycle(world([seat_node("n1")], [auto()]), replace(ON, shares_gpus=False)).decision.stops == ()


def test_a_cycle_is_due_when_it_may_leave() -> None:
    sits = auto(since_s=NOW_S - 90)
    assert awaits_decision(sits, epoch=1)
    assert cycle(world([seat_node("n1")], [sits])).wake_s == pytest.approx(NOW_S + 10)


@settings(max_examples=50)
@given(shared_worlds(), st.booleans())
def test_nobody_leaves_seats_for_gpus_that_are_not_free(there: World, resumes: bool) -> None:
    jobs = tuple(replace(one, resumable=resumes) for one in there.jobs)
    decision = cycle(replace(there, jobs=jobs)).decision
    for stop in decision.stops:
        if stop.cause is not StopCause.UPGRADE:
            continue
        (leaves,) = [one for one in jobs if one.id == stop.job]
        assert resumes
        assert (leaves.sharing, len(decision.stops), decision.starts) == (SharingWish.AUTO, 1, ())
        assert sum(max(0, free.gpus) for free in free_by_node(there).values()) >= leaves.replicas
