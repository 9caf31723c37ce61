"""What holds for seats in any cluster."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coda.cycle import CycleCache, CycleResult, CycleSnapshot, run_cycle
from coda.model import Job, Node, World
from coda.model.capacity import free_by_node
from coda.model.job import SharingWish
from coda.model.seats import as_sharer, is_sharer, placement_on_seats, seated_ranks, seats_offered
from coda.model.world import GpuUse
from coda.policy import PolicyConfig
from tests.builders import (
    GIB,
    gpu_of,
    gpu_of_nobody,
    job,
    joinable,
    opportunistic,
    running,
    seat_node,
    seated,
    with_starts,
    world,
)
from tests.strategies import NOW_S, worlds

pytestmark = pytest.mark.heavy

ON = PolicyConfig(shares_gpus=True, policy="coda", auto_wait_s=50.0)
OFF = PolicyConfig(policy="coda")

FEWER = settings(max_examples=50)  # each world is two or three cycles


def cycle(of: World, config: PolicyConfig = ON) -> CycleResult:
    return run_cycle(CycleSnapshot(world=of, epoch=1, now_s=NOW_S), config, CycleCache())


@st.composite
def seat_nodes(draw: st.DrawFn) -> list[Node]:
    return [
        seat_node(
            f"n{number}",
            gpus=draw(st.integers(1, 3)),
            seats=draw(st.integers(1, 4)),
            gpu_gib=draw(st.sampled_from((None, 20, 40))),
            cores=draw(st.integers(2, 8)),
        )
        for number in range(draw(st.integers(1, 3)))
    ]


@st.composite
def sharers(draw: st.DrawFn, name: str) -> Job:
    asked = job(
        name,
        replicas=draw(st.integers(1, 3)),
        cores=draw(st.integers(1, 2)),
        queued_s=float(draw(st.integers(0, 90))),
        priority=draw(st.integers(0, 1)),
        within=draw(st.sampled_from((None, None, None, "node", "rack"))),
    )
    wish = draw(st.sampled_from((SharingWish.OPPORTUNISTIC, SharingWish.OPPORTUNISTIC, SharingWish.AUTO)))
    return opportunistic(asked, gpu_gib=draw(st.sampled_from((0, 5, 10, 25))), wish=wish)


def launched(of: World, result: CycleResult, name: str = "") -> list[Job]:
    """The jobs of the world that started on seats, and run there now."""
    start_by_job = {start.job: start for start in result.decision.starts if start.gpus}
    return [
        seated(one, *zip(start_by_job[one.id].nodes, start_by_job[one.id].gpus, strict=True), since_s=float(number))
        for number, one in enumerate(of.jobs)
        if one.id in start_by_job
    ]


@st.composite
def owners(draw: st.DrawFn, nodes: list[Node]) -> tuple[list[Job], dict[str, tuple[GpuUse, ...]]]:
    """Jobs that have GPUs whole, and what the agents of some nodes say of that, which is true."""
    jobs: list[Job] = []
    uses: dict[str, tuple[GpuUse, ...]] = {}
    for on in nodes:
        rows = [gpu_of_nobody(gpu) for gpu in range(on.allocatable.gpus)]
        for gpu in range(draw(st.integers(0, on.allocatable.gpus))):
            if draw(st.booleans()):
                is_known, duty = draw(st.booleans()), draw(st.sampled_from((None, 0.1, 0.5, 0.9)))
                runs = (joinable if is_known else running)(job(f"ran-{on.name}-{gpu}", cores=0.5), on.name)
                rows[gpu] = gpu_of(runs, gpu, duty=duty, gib=draw(st.sampled_from((None, 5, 15))))
                jobs.append(runs)
        if draw(st.booleans()):
            uses[on.name] = tuple(rows)
    return jobs, uses


@st.composite
def shared_worlds(draw: st.DrawFn, *, waiting: bool = True) -> World:
    """Some opportunistic jobs run where an earlier cycle put them; then others came. `waiting`: and wait."""
    nodes = draw(seat_nodes())
    early = world(nodes, [draw(sharers(f"early{number}")) for number in range(draw(st.integers(0, 5)))])
    sitting = launched(early, cycle(early))
    others, uses = draw(owners(nodes))
    others += [
        job(
            f"new{number}",
            gpus=draw(st.integers(0, 2)),
            cores=draw(st.integers(1, 6)),
            replicas=draw(st.integers(1, 2)),
        )
        for number in range(draw(st.integers(0, 3)) if waiting else 0)
    ]
    late = [draw(sharers(f"late{number}")) for number in range(draw(st.integers(0, 4)) if waiting else 0)]
    return world(nodes, [*sitting, *others, *late], gpu_uses=uses)


@given(worlds())
def test_without_a_job_for_seats_nothing_changes(there: World) -> None:
    assert cycle(there, replace(ON, shares_gpus=True)) == cycle(there, replace(ON, shares_gpus=False))


@FEWER
@given(shared_worlds())
def test_switched_off_no_job_gets_a_seat(there: World) -> None:
    assert not any(start.gpus for start in cycle(there, OFF).decision.starts)


@FEWER
@given(shared_worlds())
def test_seats_memory_and_ownership_hold(there: World) -> None:
    result = cycle(there)
    after = with_starts(there, result.decision.starts, ON, NOW_S)
    node_by_name = {node.name: node for node in there.nodes}
    new = {start.job for start in result.decision.starts if start.gpus}
    sitting: dict[tuple[str, int], list[Job]] = {}
    for one in after.jobs:
        for _, node, gpu in seated_ranks(one):
            sitting.setdefault((node, gpu), []).append(one)
    whole = Counter(
        node
        for one in after.jobs
        if one.placement is not None and not one.placement.gpus
        for node in one.placement.nodes
        if one.request.gpus
    )
    told = {(name, use.index): use for name, uses in there.gpu_uses.items() for use in uses}
    for (name, gpu), members in sitting.items():
        assert len(members) <= seats_offered(node_by_name[name].allocatable)[gpu]
        memory = node_by_name[name].labels.get("nvidia.com/gpu.memory")
        if len(members) > 1:
            assert memory is not None
            assert all(one.gpu_bytes for one in members)
            assert sum(one.gpu_bytes for one in members) <= int(memory) * GIB // 1024
        use = told.get((name, gpu))
        if new & {one.id for one in members} and whole[name]:
            assert use is not None, "which GPU is whole for somebody is not known"
        if new & {one.id for one in members} and use is not None and use.is_taken:
            assert use.peak_bytes is not None
            assert memory is not None
            assert use.duty is not None
            assert use.duty < 0.8
            assert use.peak_bytes + sum(one.gpu_bytes for one in members) <= int(memory) * GIB // 1024
        assert len({one.id for one in members}) == len(members), "ranks of one job have different GPUs"


@FEWER
@given(shared_worlds())
def test_no_node_is_given_twice(there: World) -> None:
    """What starts fits, once those are gone who are stopped for it."""
    result = cycle(there)
    stopped = {stop.job for stop in result.decision.stops}
    started = {start.job for start in result.decision.starts if start.gpus}
    after = with_starts(there, result.decision.starts, ON, NOW_S)
    left = [one if one.id not in started else as_sharer(one) for one in after.jobs if one.id not in stopped]
    free = free_by_node(world(there.nodes, left))
    before = {name: min(0, amount.cpu_m) for name, amount in free_by_node(there).items()}  # some ran beside the planner
    assert all(amount.cpu_m >= before[name] for name, amount in free.items())
    assert all(amount.gpus >= 0 and amount.memory_bytes >= 0 for amount in free.values())


@FEWER
@given(shared_worlds(waiting=False))
def test_the_others_get_what_they_would_get_alone(there: World) -> None:
    alone = world(there.nodes, [one for one in there.jobs if not is_sharer(one)])
    mine, theirs = cycle(there).decision, cycle(alone).decision
    assert (mine.starts, mine.refusals, mine.grants) == (theirs.starts, theirs.refusals, theirs.grants)


@FEWER
@given(shared_worlds())
def test_every_waiting_job_starts_or_has_one_reason(there: World) -> None:
    decision = cycle(there).decision
    answered = Counter([*(start.job for start in decision.starts), *(one.job for one in decision.refusals)])
    assert answered == Counter(one.id for one in there.jobs if one.placement is None)


@FEWER
@given(shared_worlds())
def test_whoever_stops_holds_something_that_is_needed_there(there: World) -> None:
    decision = cycle(there).decision
    start_by_job = {start.job: start for start in decision.starts}
    for stop in decision.stops:
        (victim,) = [one for one in there.jobs if one.id == stop.job]
        placement = placement_on_seats(victim)
        assert placement is not None
        assert set(placement.nodes) & {
            node for start in start_by_job.values() if not start.gpus for node in start.nodes
        }


@FEWER
@given(shared_worlds())
def test_once_committed_the_same_decision_gives_nothing_more(there: World) -> None:
    first = cycle(there)
    after = with_starts(there, first.decision.starts, ON, NOW_S)
    started = {start.job for start in first.decision.starts if start.gpus}
    again = cycle(replace(after, jobs=tuple(as_sharer(one) if one.id in started else one for one in after.jobs)))
    assert again.decision.starts == ()
    assert {one.job for one in again.decision.refusals} == {one.job for one in first.decision.refusals}
    assert again.decision.stops == first.decision.stops


@FEWER
@given(shared_worlds(), st.randoms(use_true_random=False))
def test_the_order_of_jobs_and_nodes_does_not_matter(there: World, shuffle: object) -> None:
    jobs, nodes = list(there.jobs), list(there.nodes)
    shuffle.shuffle(jobs)  # type: ignore[attr-defined]  # a random.Random
    shuffle.shuffle(nodes)  # type: ignore[attr-defined]
    mixed = replace(there, jobs=tuple(jobs), nodes=tuple(nodes))
    one, other = cycle(there).decision, cycle(mixed).decision
    assert (set(one.starts), set(one.stops)) == (set(other.starts), set(other.stops))
    assert {each.job: each.reason for each in one.refusals} == {each.job: each.reason for each in other.refusals}


@FEWER
@given(shared_worlds(waiting=False), sharers("asks"))
def test_a_free_node_more_never_hurts_who_asks_for_a_seat(there: World, asks: Job) -> None:
    """Where no guaranteed job waits: else a node more may be all that one of them lacked, also on the others."""
    asks = replace(asks, sharing=SharingWish.OPPORTUNISTIC)
    asked = replace(there, jobs=(*there.jobs, asks))
    larger = replace(asked, nodes=(*there.nodes, replace(seat_node("z9", gpus=3, gpu_gib=40), labels={})))
    before = {start.job: start for start in cycle(asked).decision.starts if start.gpus}
    after = {start.job: start for start in cycle(larger).decision.starts if start.gpus}
    if asks.id in before:
        assert after[asks.id].speed >= before[asks.id].speed
