"""GPU jobs give back the CPU array's cores while they run: how many, who, and when nobody does."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coda.cache import PlannerCache
from coda.cycle import answer_from_return, decide
from coda.model import Decision, Job, Node, World
from coda.model.capacity import free_by_node
from coda.model.job import TAKEN_BACK, Wish, WriteTrouble
from coda.policy import ArraysConfig, PolicyConfig
from coda.policy.arrays import reserved_cpu_m
from coda.policy.core_loans import own_cores
from coda.promises import PromiseBook
from tests.builders import job, node, resources, running, with_starts, world

CODA = PolicyConfig(policy="coda", levels=(), arrays=ArraysConfig(reserve_cores_per_gpu=4, takes_back=True))
LEAVES = replace(CODA, arrays=replace(CODA.arrays, takes_back=False))
NODE = node("one", gpus=4, cores=28)
"""16 cores are the GPU array's, 12 the CPU array's."""

law = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


def tuned(name: str, *nodes: str, gpus: int = 1, cores: int) -> Job:
    placed = running(job(name, gpus=gpus, cores=cores, memory_gib=0, replicas=len(nodes) or 1), *nodes)
    return replace(placed, tunable=True)


def cpu(name: str, cores: int) -> Job:
    return replace(job(name, gpus=0, cores=cores, memory_gib=0), may_borrow=False)


def world_of(*jobs: Job, nodes: tuple[Node, ...] = (NODE,)) -> World:
    return world(nodes, jobs)


def given_back(now: World, config: PolicyConfig = CODA) -> dict[str, int]:
    return {grant.job.split("/")[1]: grant.cores for grant in decide(now, config, 0.0).returns}


def shrunk(now: World, plan: Decision, *, done: bool = True) -> World:
    """The world once the returns are written, and `done` by the nodes."""
    grants = {grant.job: grant for grant in plan.returns}

    def after(one: Job) -> Job:
        grant = grants.get(one.id)
        if grant is None or one.placement is None:
            return one
        told = replace(one, placement=replace(one.placement, answer=answer_from_return(grant, one, 0.0, CODA)))
        less = resources(cores=one.cpus_per_replica - grant.cores)
        if not done:
            return told
        return replace(told, request=one.request - less, cpus_per_replica=grant.cores, resized=grant.sequence)

    return world(now.nodes, [after(one) for one in now.jobs])


def started(now: World, plan: Decision) -> World:
    """The world once the starts run."""
    jobs = with_starts(now, plan.starts, CODA, 0.0).jobs
    return world(
        now.nodes, [running(one, *one.placement.nodes) if one.placement and not one.bound else one for one in jobs]
    )


def test_a_cpu_job_gets_its_arrays_cores_from_a_running_gpu_job() -> None:
    now = world_of(tuned("trains", "one", gpus=4, cores=26), cpu("serves", 6))
    assert given_back(now) == {"trains": 22}  # 2 were free
    after = shrunk(now, decide(now, CODA, 0.0))
    assert [start.job for start in decide(after, CODA, 0.0).starts] == ["team/serves"]
    assert given_back(now, LEAVES) == {}


def test_never_what_the_gpu_array_owns() -> None:
    assert given_back(world_of(tuned("trains", "one", gpus=4, cores=28), cpu("serves", 12))) == {"trains": 16}
    assert given_back(world_of(tuned("trains", "one", gpus=4, cores=28), cpu("serves", 13))) == {}


def test_whoever_has_most_beyond_its_part_gives_first() -> None:
    jobs = (tuned("much", "one", gpus=2, cores=18), tuned("some", "one", gpus=2, cores=10), cpu("serves", 8))
    assert given_back(world_of(*jobs)) == {"much": 10}
    assert given_back(world_of(*jobs[:2], cpu("serves", 12))) == {"much": 8, "some": 8}


@pytest.mark.parametrize(
    ("anyway", "wanted", "returned"),
    [
        (8, 8, {"much": 10}),
        (12, 8, {"much": 12, "some": 8}),
        (14, 6, {"much": 14, "some": 8}),
        (14, 7, {}),
        (18, 2, {"some": 8}),
        (19, 2, {"some": 8}),
        (18, 3, {}),
    ],
)
def test_nobody_is_asked_for_cores_that_its_pods_ask_for_anyway(
    anyway: int, wanted: int, returned: dict[str, int]
) -> None:
    """For an init container that ended long ago: the operator refuses such an order as a whole."""
    much = replace(tuned("much", "one", gpus=2, cores=18), asked_anyway=anyway)
    assert given_back(world_of(much, tuned("some", "one", gpus=2, cores=10), cpu("serves", wanted))) == returned


def test_what_its_pods_ask_for_anyway_may_be_seen_later_than_the_job() -> None:
    book, cache = PromiseBook(), PlannerCache()
    early = world_of(tuned("trains", "one", gpus=4, cores=26), cpu("serves", 6))
    late = replace(early, jobs=tuple(replace(one, asked_anyway=24 * one.tunable) for one in early.jobs))
    for now, expected in ((early, 1), (late, 0), (early, 1)):
        assert len(decide(now, CODA, 0.0, cache, book=book).returns) == expected


def test_a_job_of_one_node_gives_before_one_of_several() -> None:
    two = node("two", gpus=4, cores=28)
    wide, narrow = tuned("wide", "one", "two", gpus=2, cores=14), tuned("narrow", "one", gpus=2, cores=14)
    on_two = tuned("fixed", "two", gpus=2, cores=14)
    now = world_of(wide, narrow, replace(on_two, tunable=False), cpu("serves", 4), nodes=(NODE, two))
    assert given_back(now) == {"narrow": 10}


@pytest.mark.parametrize(
    "change",
    [
        {"tunable": False},
        {"unwritable": WriteTrouble.SLOW},
        {"unbound": {0: "one"}, "bound": frozenset()},
        {"wish": Wish(sequence=1, cores=30, since_s=0.0, deadline_s=9.0)},
    ],
    ids=["cores that its user chose", "a status that cannot be written", "a pod that waits", "a wish of its own"],
)
def test_who_is_not_asked(change: dict[str, object]) -> None:
    trains = replace(tuned("trains", "one", gpus=4, cores=28), **change)  # type: ignore[arg-type]
    now = world_of(trains, cpu("serves", 6))
    assert given_back(now) == {}


def test_nobody_is_asked_twice_while_a_node_takes_its_time_or_after_it_refused() -> None:
    now = world_of(tuned("trains", "one", gpus=4, cores=28), cpu("serves", 6))
    under_way = shrunk(now, decide(now, CODA, 0.0), done=False)
    assert given_back(under_way) == {}
    (trains, serves) = under_way.jobs
    assert trains.placement is not None
    assert trains.placement.answer is not None
    assert trains.placement.answer.code == TAKEN_BACK
    refused = replace(under_way, jobs=(replace(trains, resized=trains.placement.answer.sequence), serves))
    plan = decide(refused, CODA, 0.0)
    assert plan.returns == ()
    (refusal,) = plan.refusals
    assert "1 training job could not give back cores of the CPU array" in refusal.message


@pytest.mark.parametrize(("reserve_m", "expected"), [(16000, 4), (18000, 4), (0, 1), (28000, 7)], ids=str)
def test_a_job_keeps_its_gpus_part_of_the_reserve(reserve_m: int, expected: int) -> None:
    assert own_cores(tuned("a", "one", cores=9), [(NODE.allocatable, reserve_m)]) == expected


@law
@given(st.data())
def test_what_earlier_cycles_left_changes_no_decision(data: st.DataObject) -> None:
    """Orders, their ends and refusals, and wishes that come between, one small change after the other."""
    now, memory, book = data.draw(lent_worlds()), PlannerCache(), PromiseBook()
    for _ in range(6):
        fresh = decide(now, CODA, 0.0, book=book.copied())
        plan = decide(now, CODA, 0.0, memory, book=book)
        assert plan == fresh
        now = shrunk(now, plan, done=data.draw(st.booleans()))
        jobs = list(now.jobs)
        for number, one in enumerate(jobs):
            change = data.draw(st.sampled_from(("none", "ended", "wish", "no wish", "tuned", "fixed")))
            answer = one.placement.answer if one.placement is not None else None
            if change == "ended" and answer is not None:
                jobs[number] = replace(one, resized=answer.sequence)
            elif change == "wish" and one.tunable:
                wish = Wish(sequence=data.draw(st.integers(1, 4)), cores=9, since_s=0.0, deadline_s=9.0)
                jobs[number] = replace(one, wish=wish)
            elif change == "no wish":
                jobs[number] = replace(one, wish=None)
            elif one.request.gpus and change in ("tuned", "fixed"):
                jobs[number] = replace(one, tunable=change == "tuned")
        now = world(now.nodes, jobs)


@st.composite
def lent_worlds(draw: st.DrawFn) -> World:
    """One or two full nodes of tuned jobs, some of several ranks, and CPU jobs that wait."""
    names = draw(st.sampled_from((("one",), ("one", "two"))))
    nodes = tuple(node(name, gpus=4, cores=28) for name in names)
    free = dict.fromkeys(names, (4, 28))
    jobs: list[Job] = []
    for number in range(draw(st.integers(1, 6))):
        gpus, cores = draw(st.integers(1, 3)), draw(st.integers(4, 26))
        on = draw(st.sampled_from((*[(name,) for name in names], names)))
        if all(free[name][0] >= gpus and free[name][1] >= cores for name in on):
            for name in on:
                free[name] = (free[name][0] - gpus, free[name][1] - cores)
            one = tuned(f"gpu{number}", *on, gpus=gpus, cores=cores)
            jobs.append(replace(one, tunable=draw(st.integers(0, 4)) > 0))
    for number in range(draw(st.integers(0, 2))):
        cores, name = draw(st.integers(1, 8)), draw(st.sampled_from(names))
        if free[name][1] >= cores:
            free[name] = (free[name][0], free[name][1] - cores)
            jobs.append(running(cpu(f"cpu{number}", cores), name))
    jobs += [cpu(f"waits{number}", draw(st.integers(3, 12))) for number in range(draw(st.integers(1, 3)))]
    return world_of(*jobs, nodes=nodes)


def by_class(now: World, name: str) -> tuple[int, int]:
    """Millicores of GPU jobs and of CPU jobs on a node."""
    held = [0, 0]
    for one in now.jobs:
        for on in one.placement.nodes if one.placement is not None else ():
            held[not one.request.gpus] += one.request.cpu_m if on == name else 0
    return held[0], held[1]


@law
@given(lent_worlds())
def test_the_laws_of_giving_back(now: World) -> None:
    """In a few decisions every CPU job runs for which its array has cores that tuned jobs hold or nobody does; the GPU
    array keeps its own; no node is overcommitted; and it ends."""
    for _ in range(20):
        plan = decide(now, CODA, 0.0)
        assert not (plan.returns and plan.stops)
        job_by_id = {one.id: one for one in now.jobs}
        for grant in plan.returns:
            giver = job_by_id[grant.job]
            assert giver.tunable
            assert giver.request.gpus <= grant.cores < giver.cpus_per_replica
            assert grant.cores >= 4 * giver.request.gpus  # its GPUs' part of the reserve
        now = shrunk(started(now, plan), plan)
        assert all(free.cpu_m >= 0 for free in free_by_node(now).values())
        if not plan.starts and not plan.returns:
            break
    else:
        raise AssertionError("it never comes to rest")
    waiting = [one for one in now.jobs if one.placement is None]
    for one in now.nodes:
        reserve = reserved_cpu_m(one.allocatable, 4)
        by_gpu_jobs, by_cpu_jobs = by_class(now, one.name)
        stays = sum(
            max(each.request.cpu_m, 0) if not each.tunable else min(each.request.cpu_m, 4000 * each.request.gpus)
            for each in now.jobs
            if each.request.gpus and each.placement is not None
            for on in each.placement.nodes
            if on == one.name
        )
        could_have = one.allocatable.cpu_m - max(reserve, stays) - by_cpu_jobs
        assert all(each.request.cpu_m > could_have for each in waiting), (by_gpu_jobs, could_have)
