"""Whoever is stopped for a guaranteed job leaves its room to that one, never to one on seats."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from coda.cycle import CycleCache, CycleResult, CycleSnapshot, run_cycle
from coda.model import Job, WaitCode, World
from coda.model.decision import Decision, Start, StopCause
from coda.model.job import JobId, Wish
from coda.model.resources import NOTHING, Resources
from coda.model.seats import is_sharer, request_of_rank
from coda.policy import ArraysConfig, PolicyConfig
from tests.builders import job, node, opportunistic, resources, running, seat_node, stopping, with_starts, world
from tests.core.cycle.seats.test_seat_laws import launched, sharers

NOW_S = 1000.0
SHORTEST_FIRST = PolicyConfig(
    shares_gpus=True, policy="srtf", levels=(), arrays=ArraysConfig(reserve_cores_per_gpu=0, large_share=0.0)
)


def cycle(of: World, config: PolicyConfig = SHORTEST_FIRST) -> CycleResult:
    return run_cycle(CycleSnapshot(world=of, epoch=1, now_s=NOW_S), config, CycleCache())


def timed(name: str, left_s: float, *, gpus: int = 1, cores: int = 4, replicas: int = 1) -> Job:
    """A job that goes on where it was after a stop, and is known to last so long."""
    asked = job(name, gpus=gpus, cores=cores, replicas=replicas, resumable=True, memory_gib=0, queued_s=NOW_S)
    return replace(asked, remaining_s=left_s, served_s=0.0, as_of_s=0.0)


def rider(name: str, cores: float = 1) -> Job:
    return opportunistic(job(name, cores=cores), gpu_gib=10)


def after(there: World, decision: Decision) -> World:
    """The world a moment later: starts are committed, and who was stopped still has its pods."""
    cause_by_job = {stop.job: stop for stop in decision.stops}
    leaving: dict[str, Resources] = dict(there.leaving)
    jobs: list[Job] = []
    for one in with_starts(there, decision.starts, SHORTEST_FIRST, NOW_S).jobs:
        stop = cause_by_job.get(one.id)
        if stop is not None:
            assert one.placement is not None
            for rank, node in enumerate(one.placement.nodes):
                leaving[node] = leaving.get(node, NOTHING) + request_of_rank(one, one.placement, rank)
            one = stopping(one, cause=stop.cause, by=stop.by)
        jobs.append(one)
    return replace(there, jobs=tuple(jobs), leaving=leaving)


def starts_of_others(result: CycleResult) -> tuple[Start, ...]:
    return tuple([start for start in result.decision.starts if not start.gpus])


def test_a_seat_takes_nothing_that_a_gang_waits_for_beside_what_others_leave() -> None:
    """The gang needs all cores of n1, where nobody stops, and of n2, where one does."""
    long, gang = running(timed("long", 99_999.0), "n2"), timed("gang", 10.0, cores=8, replicas=2)
    nodes = [seat_node("n1", cores=8), seat_node("n2", cores=8)]
    there = world(nodes, [long, gang, rider("rides", cores=4)])
    first = cycle(there)
    assert [(stop.job, stop.cause) for stop in first.decision.stops] == [(long.id, StopCause.PREEMPT)]
    assert first.decision.starts == ()
    assert {refusal.job: refusal.code for refusal in first.decision.refusals}[
        JobId("team/rides")
    ] is WaitCode.HELD_BY_POLICY
    (start,) = cycle(after(there, first.decision)).decision.starts
    assert (start.job, start.nodes) == (gang.id, ("n1", "n2"))


def test_a_seat_takes_nothing_that_a_cpu_job_waits_for_beside_cores_that_come_back() -> None:
    """The job needs cores of n1, which a GPU job gives back, and of n2, where they are free."""
    arrays = ArraysConfig(reserve_cores_per_gpu=4, takes_back=True)
    config = PolicyConfig(shares_gpus=True, policy="coda", levels=(), arrays=arrays)
    trains = replace(running(job("trains", gpus=4, cores=26, memory_gib=0), "n1"), tunable=True)
    serves = replace(job("serves", gpus=0, cores=6, replicas=2, memory_gib=0), may_borrow=False)
    there = world([node("n1", gpus=4, cores=28), seat_node("n2", cores=10)], [trains, serves, rider("rides", cores=4)])
    decision = cycle(there, config).decision
    assert [grant.job for grant in decision.returns] == [trains.id]
    assert decision.starts == ()
    assert {refusal.job: refusal.code for refusal in decision.refusals}[JobId("team/rides")] is WaitCode.HELD_BY_POLICY


def test_a_seat_takes_no_cores_that_a_wish_waits_for() -> None:
    """The foreign pod in flight, which may land on either node, lands on the other one."""
    wish = Wish(sequence=1, cores=8, since_s=NOW_S, deadline_s=NOW_S + 60)
    tuned = replace(running(job("tuned", gpus=0, cores=4), "n1"), tunable=True, wish=wish)
    there = world([seat_node("n1", cores=8), node("n2")], [tuned, rider("rides", cores=3)])
    may_land = {name: resources(cores=1, pods=1) for name in ("n1", "n2")}
    first = cycle(replace(there, in_flight=may_land)).decision
    assert (first.postponed, first.starts) == ((tuned.id,), ())
    landed = replace(there, used={**there.used, "n2": resources(cores=1, pods=1)})
    then = cycle(after(landed, first)).decision
    assert [grant.job for grant in then.grants] == [tuned.id]


@st.composite
def preempting_worlds(draw: st.DrawFn) -> World:
    """Long jobs run, short ones wait, and some ask for seats."""
    nodes = [
        seat_node(f"n{number}", gpus=draw(st.integers(1, 2)), cores=8) for number in range(draw(st.integers(1, 3)))
    ]
    early = world(nodes, [draw(sharers(f"early{number}")) for number in range(draw(st.integers(0, 2)))])
    sitting = launched(early, cycle(early))
    long = [
        running(timed(f"long{number}", 99_999.0, gpus=draw(st.integers(0, 1)), cores=4), node.name)
        for number, node in enumerate(nodes)
        if draw(st.booleans())
    ]
    short = [
        timed(
            f"short{number}",
            10.0 + number,
            gpus=draw(st.integers(0, 1)),
            cores=draw(st.sampled_from((2, 4, 8))),
            replicas=draw(st.integers(1, 2)),
        )
        for number in range(draw(st.integers(1, 2)))
    ]
    late = [draw(sharers(f"late{number}")) for number in range(draw(st.integers(1, 3)))]
    return world(nodes, [*sitting, *long, *short, *late])


@settings(max_examples=100)
@given(preempting_worlds())
def test_in_the_next_cycle_too_others_start_where_they_would_alone(there: World) -> None:
    first, alone_first = cycle(there), cycle(alone := without(there))
    assert starts_of_others(first) == starts_of_others(alone_first)
    then, alone_then = cycle(after(there, first.decision)), cycle(after(alone, alone_first.decision))
    assert starts_of_others(then) == starts_of_others(alone_then)


def without(there: World) -> World:
    return world(there.nodes, [one for one in there.jobs if not is_sharer(one)])
