"""The differential law for jobs that stay where they are and change: wishes, other cores, times, phases and saves."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coda.cache import PlannerCache
from coda.cache.gang_class import GangClass
from coda.cache.inadmissible import InadmissibleClasses
from coda.cache.queue import Queue
from coda.cycle import decide
from coda.model import Decision, Job, Phase, Resources, World
from coda.model.job import Wish
from coda.nodes import FreeCapacity, NodeSearch
from coda.policy import ArraysConfig, Level, PolicyConfig
from coda.policy.arrays import Array
from coda.promises import PromiseBook
from tests.builders import RACK_LABEL, job, node, resources, running, with_starts, world
from tests.strategies import NOW_S, worlds

pytestmark = pytest.mark.heavy

law = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
LEVELS = (Level("rack", RACK_LABEL),)


def with_wish(data: st.DataObject, one: Job) -> Job:
    cores = data.draw(st.integers(1, 4))
    return replace(one, wish=Wish(sequence=data.draw(st.integers(1, 2)), cores=cores, since_s=0.0, deadline_s=NOW_S))


def with_other_cores(data: st.DataObject, one: Job) -> Job:
    cores = data.draw(st.integers(1, 4))
    request = one.request.with_cpu(cores * 1000)
    return replace(one, request=request, cpus_per_replica=cores, wish=None)


def with_search(data: st.DataObject, one: Job) -> Job:
    return replace(one, searching=True, held_cores=data.draw(st.integers(0, 4)))


def with_other_times(data: st.DataObject, one: Job) -> Job:
    seconds = st.sampled_from((0.0, 600.0, 9000.0))
    return replace(one, served_s=data.draw(seconds), remaining_s=data.draw(seconds), as_of_s=NOW_S)


def with_other_phase(data: st.DataObject, one: Job) -> Job:
    phase = data.draw(st.sampled_from((Phase.LAUNCHED, Phase.STARTING, Phase.RUNNING, Phase.SUCCEEDED)))
    return replace(one, phase=phase, bound=frozenset(range(one.replicas)), unbound={})


def with_other_placement(data: st.DataObject, one: Job) -> Job:
    assert one.placement is not None
    committed_s = data.draw(st.sampled_from((0.0, NOW_S)))
    return replace(
        one, placement=replace(one.placement, borrows=data.draw(st.booleans()), committed_s=committed_s, stop=None)
    )


def with_another_save(data: st.DataObject, one: Job) -> Job:
    return replace(one, resumable=True, saved_s=data.draw(st.sampled_from((0.0, NOW_S - 50.0, NOW_S, inf))))


def with_other_pods(data: st.DataObject, one: Job) -> Job:
    """Only some of its pods are seen; what they use stays as it is."""
    return replace(one, bound=data.draw(st.frozensets(st.integers(0, one.replicas - 1))), unbound={})


CHANGES = (
    with_wish,
    with_other_cores,
    with_search,
    with_other_times,
    with_other_phase,
    with_other_placement,
    with_another_save,
    with_other_pods,
)


def changed(data: st.DataObject, now: World, plan: Decision, config: PolicyConfig) -> World:
    commits: bool = data.draw(st.booleans())
    if plan.starts and commits:
        return with_starts(now, data.draw(st.lists(st.sampled_from(plan.starts), unique=True)), config, NOW_S)
    placed = [one for one in now.jobs if one.placement is not None]
    if not placed:
        return now
    before = data.draw(st.sampled_from(placed))
    after = data.draw(st.sampled_from(CHANGES))(data, before)
    return replace(now, jobs=tuple(after if one is before else one for one in now.jobs))


@pytest.mark.parametrize("policy", ["arrival", "coda", "drf-multi", "srtf", "tiresias-las", "yarn-cs-preempt"])
@pytest.mark.parametrize("limit_s", [None, 1.0])
@law
@given(worlds(preferring=True), st.data())
def test_jobs_that_change_where_they_are_change_decisions_only_as_they_would_at_first_sight(
    policy: str, limit_s: float | None, now: World, data: st.DataObject
) -> None:
    """With one book for all cycles, as every planner has one: without it, what is kept would not be asked again."""
    config = PolicyConfig(policy=policy, levels=LEVELS, promise_patience_s=limit_s)
    cache, book, now_s = PlannerCache(), PromiseBook(), NOW_S
    for _ in range(data.draw(st.integers(2, 7))):
        at_first_sight = decide(now, config, now_s, book=book.copied())
        plan = decide(now, config, now_s, cache, book=book)
        assert plan == at_first_sight
        now = changed(data, now, plan, config)
        now_s += data.draw(st.sampled_from((0.0, 1.0)))


@law
@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from((0.0, 1.0, 2.0, 3.0, inf))), min_size=1, max_size=6))
def test_a_save_counts_from_the_next_decision_on(saves: list[tuple[int, float]]) -> None:
    """Nothing else changes of three jobs whose turn is over. Who loses least makes room for the fourth."""
    config, now_s = PolicyConfig(policy="coda", levels=()), 5 * 3600.0
    nodes = [node(f"n{number}") for number in range(3)]
    held = [running(job(f"j{number}", gpus=8, resumable=True), f"n{number}") for number in range(3)]
    new, cache, book = job("new", gpus=8, resumable=True), PlannerCache(), PromiseBook()
    decide(world(nodes, held), config, now_s, cache, book=book)
    for number, saved_h in saves:
        held[number] = replace(held[number], saved_s=saved_h * 3600.0)
        (stop,) = decide(world(nodes, [*held, new]), config, now_s, cache, book=book).stops
        assert stop in decide(world(nodes, [*held, new]), config, now_s, book=book.copied()).stops
        assert max(one.saved_s for one in held) == next(one.saved_s for one in held if one.id == stop.job)


def test_starts_that_never_reach_the_world_are_decided_again_when_they_take_a_named_resource() -> None:
    """The loss of a named resource in one cycle once hid its return in the next, and both jobs waited without end."""
    other = {"rdma": 1}
    jobs = [job(name, gpus=3, cores=3, other=other) for name in ("j0", "j1")]
    nodes = [node("n0", gpus=2, other=other), node("n1", gpus=3, other=other)]
    now, config, cache = world(nodes, jobs), PolicyConfig(policy="coda", levels=()), PlannerCache()
    for _ in range(4):
        assert decide(now, config, NOW_S, cache) == decide(now, config, NOW_S)


def test_the_loss_of_a_named_resource_is_no_gain() -> None:
    capacity = FreeCapacity([node("n", other={"rdma": 2})], ())
    whole = capacity.free(0)
    capacity.subtract(0, resources(rdma=1))
    assert not capacity.pop_gained()
    capacity.set_free(0, whole)
    assert list(capacity.pop_gained()) == [0]


def asleep() -> tuple[FreeCapacity, InadmissibleClasses]:
    """A shape that found no room for its two GPUs on the one node, where one is free; all four were once."""
    capacity, queue, sleepers = FreeCapacity([node("n", gpus=4)], ()), Queue(), InadmissibleClasses()
    for gpus in (3, 4, 1):
        capacity.set_free(0, free(gpus))
    queue.change((), [job("j", gpus=2)])
    (gang_class,) = queue.pop_new_classes()
    sleepers.admit([gang_class])
    sleepers.wake(are_protected=False)
    assert to_try(sleepers) == [gang_class]
    sleepers.park(gang_class, [NodeSearch(capacity, PolicyConfig(levels=())).rank_class(gang_class.job)])
    return capacity, sleepers


def free(gpus: int) -> Resources:
    return resources(gpus=gpus, cores=8, memory_gib=8, pods=9)


def to_try(sleepers: InadmissibleClasses) -> list[GangClass]:
    return [gang_class for array in Array for gang_class in sleepers.to_try(array)]


def test_room_that_came_and_went_between_two_rounds_wakes_nobody() -> None:
    capacity, sleepers = asleep()
    capacity.set_free(0, free(3))
    capacity.set_free(0, free(1))
    sleepers.wake(are_protected=False)
    assert to_try(sleepers) == []


@pytest.mark.parametrize("puts", [(2,), (3,), (0, 2), (4, 0, 3)])
def test_room_that_was_not_there_when_it_was_refused_wakes(puts: tuple[int, ...]) -> None:
    capacity, sleepers = asleep()
    for gpus in puts:
        capacity.set_free(0, free(gpus))
    sleepers.wake(are_protected=False)
    assert len(to_try(sleepers)) == 1


def test_everybody_is_asked_again_when_nodes_are_kept_or_no_more() -> None:
    _, sleepers = asleep()
    sleepers.wake(are_protected=True)
    assert len(to_try(sleepers)) == 1


def test_the_cores_of_the_cpu_array_are_counted_anew_once_nothing_is_withheld_for_a_search() -> None:
    """With 8 of 40 reserved cores withheld no CPU job needs to borrow; once they are free, who takes them does."""
    config = PolicyConfig(policy="coda", levels=(), arrays=ArraysConfig(reserve_cores_per_gpu=10, large_share=0.0))
    whole = running(job("whole", gpus=4, cores=40), "n1")
    tries = replace(whole, request=whole.request.with_cpu(32_000), cpus_per_replica=32, searching=True)
    here, cache, book = [node("n1", gpus=4, cores=48)], PlannerCache(), PromiseBook()
    two = [job(f"cpu{number}", gpus=0, cores=8) for number in range(2)]
    found = []
    for held in (40, 0):
        now = world(here, [replace(tries, held_cores=held), *two])
        plan = decide(now, config, NOW_S, cache, book=book)
        assert plan == decide(now, config, NOW_S, book=book.copied())
        found.append([start.borrows for start in plan.starts])
    assert found == [[False], [False, True]]
