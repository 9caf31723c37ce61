"""The arrays: what belongs to whom, who may borrow it, and that it is given back."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coda.cycle import decide
from coda.model import Job, JobId, Node, Phase, WaitCode, World
from coda.model.capacity import free_by_node
from coda.model.decision import StopCause
from coda.model.world import ArrayQuota
from coda.policy import ArraysConfig, Component, Level, PolicyConfig
from coda.policy.arrays import Array, array_of, large_nodes, reserved_cpu_m
from tests.builders import RACK_LABEL, job, node, resources, running, world
from tests.core.play import Play

pytestmark = pytest.mark.heavy

CODA = PolicyConfig(policy="coda", levels=(), arrays=ArraysConfig(reserve_cores_per_gpu=3, large_share=0.5))
NODES = (node("big", gpus=8, cores=32), node("one", gpus=4, cores=16), node("two", gpus=4, cores=16))
"""The large sub-array is `big`; 24, 12 and 12 cores are reserved."""


def ran(built: Job, *nodes: str, at_s: float = 0.0, borrows: bool = False) -> Job:
    placed = running(built, *nodes)
    assert placed.placement is not None
    return replace(placed, placement=replace(placed.placement, committed_s=at_s, borrows=borrows))


def cpu(name: str, cores: float) -> Job:
    return job(name, gpus=0, cores=cores, memory_gib=0)


def gpu(name: str, gpus: int, cores: float = 1, replicas: int = 1, *, resumable: bool = True) -> Job:
    return job(name, gpus=gpus, cores=cores, memory_gib=0, replicas=replicas, resumable=resumable)


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (cpu("a", 4), Array.CPU),
        (gpu("a", 3), Array.SMALL),
        (gpu("a", 4), Array.LARGE),
        (gpu("a", 1, replicas=4), Array.LARGE),
        (gpu("a", 1, replicas=3), Array.SMALL),
    ],
)
def test_a_job_enters_the_array_of_its_request(asked: Job, expected: Array) -> None:
    assert array_of(asked) is expected


@pytest.mark.parametrize(
    ("gpus", "expected"), [(0, set()), (1, {"big"}), (8, {"big"}), (9, {"big", "one"}), (99, {"big", "one", "two"})]
)
def test_the_large_sub_array_is_the_fewest_nodes_with_its_gpus(gpus: int, expected: set[str]) -> None:
    assert large_nodes((*NODES[::-1], node("cpu", gpus=0)), gpus) == expected


def test_the_reserve_is_whole_cores_and_at_most_the_node() -> None:
    assert reserved_cpu_m(resources(gpus=3, cores=28), 2.5) == 7000
    assert reserved_cpu_m(resources(gpus=8, cores=28), 5) == 28000


@pytest.mark.parametrize(
    ("without", "jobs", "expected"),
    [
        pytest.param((), [cpu("a", 8)], {"a": ("big", False)}, id="a CPU job on its own cores"),
        pytest.param((), [cpu("a", 12)], {"a": ("one", True)}, id="a CPU job borrows what no GPU job uses"),
        pytest.param((Component.BORROWING,), [cpu("a", 12)], {}, id="without borrowing it waits"),
        pytest.param(
            (Component.ARRAYS,), [cpu("a", 12)], {"a": ("one", False)}, id="without arrays all cores are everybody's"
        ),
        pytest.param(
            (),
            [cpu("a", 12), gpu("never now", 8, cores=33)],
            {"a": ("one", True)},
            id="a CPU job borrows also while a GPU job waits for other things",
        ),
        pytest.param((), [gpu("a", 4)], {"a": ("big", False)}, id="a large job on its own nodes"),
        pytest.param((), [gpu("a", 1)], {"a": ("one", False)}, id="a small job on its own nodes"),
        pytest.param((), [gpu("a", 4, cores=14)], {"a": ("big", False)}, id="a GPU job takes idle cores of CPU jobs"),
        pytest.param(
            (Component.BORROWING,), [gpu("a", 4, cores=25)], {}, id="without borrowing it keeps to the reserve"
        ),
        pytest.param(
            (),
            [ran(gpu("x", 8), "big"), gpu("a", 4)],
            {"a": ("one", False)},
            id="a large job overflows to the small nodes",
        ),
        pytest.param(
            (),
            [ran(gpu("x", 4), "one"), ran(gpu("y", 4), "two"), gpu("a", 1)],
            {"a": ("big", True)},
            id="a small job is a guest on the large nodes",
        ),
        pytest.param(
            (Component.MIGRATION,),
            [ran(gpu("x", 4), "one"), ran(gpu("y", 4), "two"), ran(gpu("z", 1), "big"), gpu("a", 1), gpu("b", 8)],
            {},
            id="without migration not while a large job waits",
        ),
    ],
)
def test_who_starts_where_and_borrows(
    without: tuple[Component, ...], jobs: list[Job], expected: dict[str, tuple[str, bool]]
) -> None:
    plan = decide(world(NODES, jobs), replace(CODA, without=frozenset(without)), 0.0)
    assert {start.job.split("/")[1]: (start.nodes[0], start.borrows) for start in plan.starts} == expected
    assert not plan.stops


def test_a_gang_too_large_for_either_sub_array_takes_nodes_of_both() -> None:
    plan = decide(world(NODES, [gpu("wide", 4, replicas=4)]), CODA, 0.0)
    assert sorted(plan.starts[0].nodes) == ["big", "big", "one", "two"]


def stops(*jobs: Job, config: PolicyConfig = CODA) -> list[tuple[str, StopCause, str]]:
    plan = decide(world(NODES, jobs), config, 100.0)
    return [(stop.job.split("/")[1], stop.cause, stop.by.split("/")[1]) for stop in plan.stops]


def lent(name: str, cores: float, on: str, at_s: float) -> Job:
    return ran(cpu(name, cores), on, at_s=at_s, borrows=True)


FULL = (ran(gpu("f", 4), "one"), ran(gpu("g", 4), "two"))
"""Nothing but `big` is left."""


def test_the_newest_borrower_is_aborted_for_a_gpu_job() -> None:
    assert stops(*FULL, lent("old", 16, "big", 1), lent("new", 16, "big", 2), gpu("a", 8, cores=10)) == [
        ("new", StopCause.RECLAIM, "a")
    ]


def test_only_as_many_are_aborted_as_are_needed() -> None:
    """The newest frees too little; with the next one it would not have been needed."""
    borrowers = (lent("old", 16, "big", 1), lent("large", 12, "big", 2), lent("newest", 4, "big", 3))
    assert stops(*FULL, *borrowers, gpu("a", 8, cores=10)) == [("large", StopCause.RECLAIM, "a")]


def test_a_cpu_job_on_its_own_cores_is_never_aborted() -> None:
    assert stops(*FULL, ran(cpu("own", 30), "big"), gpu("a", 8, cores=10)) == []


def test_the_node_where_least_is_freed_is_chosen() -> None:
    small = (lent("x", 16, "one", 1), lent("y", 8, "two", 1), lent("z", 8, "two", 2), ran(gpu("f", 8, cores=32), "big"))
    assert stops(*small, gpu("a", 1, cores=8)) == [("z", StopCause.RECLAIM, "a")]


ONE_LEFT = (ran(gpu("f", 4), "one"), ran(gpu("g", 3), "two"))
"""Nothing but `big` is left, and one GPU of `two`."""
GUESTS = (ran(gpu("old", 1), "big", at_s=1), ran(gpu("new", 1), "big", at_s=2))


def test_a_gang_goes_where_fewest_must_give_back_not_where_it_would_be_tightest() -> None:
    """A rank fits on `two` without anybody's end. With all borrowers gone, `one` and `big` would be tighter."""
    own = [ran(cpu("own-big", 1), "big"), ran(cpu("own-one", 2), "one")]
    gangs = [ran(gpu("small", 1, cores=3), "big"), ran(gpu("large", 4, cores=12), "big")]
    lent = [ran(cpu("on-big", 11), "big", borrows=True), ran(cpu("on-one", 6), "one", borrows=True)]
    assert stops(*own, *gangs, *lent, gpu("a", 1, cores=9, replicas=2)) == [("on-one", StopCause.RECLAIM, "a")]


def test_a_guest_is_migrated_when_a_large_job_wants_the_place() -> None:
    assert stops(*ONE_LEFT, *GUESTS, gpu("a", 7)) == [("new", StopCause.MIGRATE, "a")]


def test_a_guest_that_does_not_resume_stays() -> None:
    guests = [replace(guest, resumable=False) for guest in GUESTS]
    assert stops(*ONE_LEFT, *guests, gpu("a", 7)) == []


def test_a_job_that_does_not_resume_may_be_a_guest_while_a_large_one_waits() -> None:
    jobs = [*FULL, ran(gpu("on", 1), "big"), gpu("large", 8), gpu("small", 1, resumable=False)]
    assert [start.job for start in decide(world(NODES, jobs), CODA, 100.0).starts] == ["team/small"]


def test_a_guest_that_fits_nowhere_else_stays() -> None:
    assert stops(*FULL, *GUESTS, gpu("a", 7)) == []


def test_guests_that_do_not_all_fit_elsewhere_stay() -> None:
    assert stops(*ONE_LEFT, *GUESTS, gpu("a", 8)) == []


def test_a_gang_that_fits_elsewhere_only_in_part_stays() -> None:
    assert stops(*ONE_LEFT, ran(gpu("pair", 1, replicas=2), "big", "big"), gpu("a", 8)) == []


def test_guests_of_one_node_move_for_a_gang_too() -> None:
    assert stops(*ONE_LEFT, GUESTS[0], gpu("a", 4, replicas=2)) == [("old", StopCause.MIGRATE, "a")]


@pytest.mark.parametrize(("within", "moves"), [(None, ["pair"]), ("rack", [])])
def test_a_gang_that_needs_one_domain_moves_only_to_one_node(within: str | None, moves: list[str]) -> None:
    nodes = [replace(one, labels={**one.labels, RACK_LABEL: one.name}) for one in NODES]
    pair = ran(job("pair", gpus=1, memory_gib=0, replicas=2, within=within, resumable=True), "big", "big")
    jobs = [ran(gpu("f", 3), "one"), ran(gpu("g", 3), "two"), pair, gpu("a", 8)]
    plan = decide(world(nodes, jobs), replace(CODA, levels=(Level("rack", RACK_LABEL),)), 100.0)
    assert [stop.job for stop in plan.stops] == [f"team/{name}" for name in moves]


def test_a_guest_may_take_the_place_of_cpu_jobs_that_borrowed_it() -> None:
    assert stops(*ONE_LEFT, lent("borrower", 15, "two", 1), *GUESTS, gpu("a", 7)) == [("new", StopCause.MIGRATE, "a")]


def test_cpu_jobs_are_stopped_rather_than_guests_moved() -> None:
    full = (ran(gpu("f", 4), "one"), ran(gpu("g", 4), "big"), lent("borrower", 16, "two", 1))
    assert stops(*full, *GUESTS, gpu("a", 4)) == [("borrower", StopCause.RECLAIM, "a")]


def test_without_migration_a_guest_stays() -> None:
    config = replace(CODA, without=frozenset({Component.MIGRATION}))
    assert stops(*FULL, ran(gpu("guest", 1), "big"), gpu("a", 8), config=config) == []


def test_a_small_job_moves_nobody_on_from_its_gpus() -> None:
    assert stops(*FULL, ran(gpu("guest", 8, cores=1), "big"), gpu("a", 1)) == []


def test_a_small_job_at_home_is_not_migrated() -> None:
    assert stops(ran(gpu("f", 8), "big"), ran(gpu("s", 1), "one"), ran(gpu("t", 1), "two"), gpu("a", 4)) == []


def test_the_round_ends_with_a_stop_and_the_job_starts_in_the_next() -> None:
    play = Play(CODA, NODES)
    play.submit(cpu("c", 30))
    assert all(start.borrows for start in play.decide().starts)
    play.now_s = 10.0
    play.submit(gpu("train", 8, cores=20), cpu("later", 1))
    first, second = play.decide(), play.decide()
    assert [stop.job for stop in first.stops] == ["team/c"]
    assert [start.job for start in second.starts][:1] == ["team/train"]
    assert play.job_by_id[JobId("team/c")].returned


def test_a_job_kept_waiting_for_others_cores_is_told_so() -> None:
    config = replace(CODA, without=frozenset({Component.BORROWING}))
    plan = decide(world(NODES, [cpu("a", 12), gpu("b", 8, cores=33)]), config, 0.0)
    codes = {refusal.job: refusal.code for refusal in plan.refusals}
    assert codes == {"team/a": WaitCode.HELD_BY_POLICY, "team/b": WaitCode.NEVER_FITS}


JOBS = st.builds(
    lambda gpus, cores, replicas, user: job(
        "x", gpus=gpus, cores=cores, replicas=replicas if gpus else 1, user=user, memory_gib=0, resumable=True
    ),
    st.sampled_from((0, 0, 0, 1, 1, 2, 4, 8)),
    st.integers(1, 14),
    st.sampled_from((1, 1, 1, 2)),
    st.sampled_from(("ann", "bob")),
)
VARIANTS = st.sampled_from(
    [
        replace(CODA, without=frozenset(parts))
        for parts in ((), (Component.BORROWING,), (Component.MIGRATION,), (Component.ARRAYS,))
    ]
)


def played(data: st.DataObject, config: PolicyConfig, steps: int = 12) -> Play:
    play = Play(config, NODES)
    for step in range(steps):
        play.now_s += 1.0
        for number in range(data.draw(st.integers(0, 3))):
            play.submit(replace(data.draw(JOBS), id=JobId(f"team/j{step}-{number}"), uid=f"{step}-{number}"))
        for ended in (
            data.draw(st.lists(st.sampled_from(play.running()), max_size=2, unique=True)) if play.running() else ()
        ):
            play.end(ended)
        play.settle()
    return play


law = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


@law
@given(st.data(), VARIANTS)
def test_no_core_is_lent_twice_and_whoever_asks_first_gets_what_was_stopped_for_it(
    data: st.DataObject, config: PolicyConfig
) -> None:
    """And every plan with a memory equals the one without: `Play` compares them."""
    play = played(data, config)
    for (now, plan), (_, following) in zip(play.plans, play.plans[1:], strict=False):
        for name, free in free_by_node(now).items():
            assert resources().fits_in(free), name
            assert free.gpus >= 0
            assert free.cpu_m >= 0
        assert {stop.by for stop in plan.stops} <= {start.job for start in following.starts}
        assert all(stop.job in {job.id for job in now.jobs} for stop in plan.stops)


@law
@given(st.data())
def test_the_reserve_is_free_or_can_be_taken_back(data: st.DataObject) -> None:
    play = played(data, CODA)
    now = play.world()
    free = free_by_node(now)
    for one in NODES:
        on_node = [job for job in now.jobs if job.placement is not None and one.name in job.placement.nodes]
        used = sum(_ranks(job, one) * job.request.cpu_m for job in on_node if job.request.gpus)
        back = sum(_ranks(job, one) * job.request.cpu_m for job in on_node if job.placement and job.placement.borrows)
        assert free[one.name].cpu_m + back >= reserved_cpu_m(one.allocatable, 3) - used


def _ranks(job: Job, on: Node) -> int:
    return job.placement.nodes.count(on.name) if job.placement is not None else 0


@law
@given(st.data())
def test_without_borrowing_each_array_keeps_to_its_own_cores(data: st.DataObject) -> None:
    now = played(data, replace(CODA, without=frozenset({Component.BORROWING}))).world()
    for one in NODES:
        reserve = reserved_cpu_m(one.allocatable, 3)
        by_gpu_jobs = sum(_ranks(job, one) * job.request.cpu_m for job in now.jobs if job.request.gpus)
        by_others = sum(_ranks(job, one) * job.request.cpu_m for job in now.jobs if not job.request.gpus)
        assert by_gpu_jobs <= reserve
        assert by_others <= one.allocatable.cpu_m - reserve


@law
@given(st.data())
def test_a_gpu_job_waits_only_where_no_stop_would_help(data: st.DataObject) -> None:
    """Work conserving but for the reserve: who waits fits nowhere, not even with the borrowers gone."""
    play = played(data, CODA)
    now = play.world()
    room = free_by_node(_without_borrowers(now))
    for waiting in now.jobs:
        if waiting.phase is Phase.QUEUED and waiting.request.gpus:
            assert sum(waiting.request.times_in(room[one.name]) for one in NODES) < waiting.replicas


def _without_borrowers(now: World) -> World:
    return world(
        now.nodes,
        [
            job
            for job in now.jobs
            if job.phase is Phase.QUEUED or job.request.gpus or not (job.placement and job.placement.borrows)
        ],
    )


def test_a_cpu_job_goes_to_the_fullest_node_without_free_gpus() -> None:
    nodes = (node("a", gpus=4, cores=28), node("b", gpus=4, cores=28), node("c", gpus=4, cores=28))
    full = [ran(gpu(f"full-{name}", 4, cores=8), name) for name in ("b", "c")]
    jobs = [*full, ran(cpu("other", 4), "c"), cpu("new", 2)]
    (start,) = decide(world(nodes, jobs), CODA, now_s=0).starts
    assert start.nodes == ("c",)


def test_a_cpu_job_that_waited_too_long_borrows_only_where_the_reserve_is_given_back() -> None:
    """GPU jobs own every core of `a`: an overdue CPU job can be stopped there. 16 cores of `b` are its array's."""
    thin, wide = node("a", gpus=8, cores=24), node("b", gpus=4, cores=28)
    hours_s = 24 * 3600.0
    (start,) = decide(world([thin], [cpu("late", 8)]), CODA, now_s=hours_s).starts
    assert start.borrows
    (start,) = decide(world([thin, wide], [cpu("late", 8)]), CODA, now_s=hours_s).starts
    assert (start.nodes, start.borrows) == (("b",), False)


def test_overdue_cpu_jobs_own_no_more_than_their_array_has() -> None:
    """12 cores of the node are the CPU array's. The second job of 8 borrows, however long it waited."""
    jobs = [cpu("first", 8), cpu("second", 8)]
    starts = decide(world([node("a", gpus=4, cores=28)], jobs), replace(CODA, arrays=ArraysConfig()), now_s=1e5).starts
    assert [start.borrows for start in starts] == [False, True]


def test_a_quota_decides_who_borrows_and_may_change_while_jobs_run() -> None:
    """A node of 16 cores and 4 GPUs: all belongs to CPU jobs, then nothing. Who runs goes on, who comes borrows."""
    play = Play(CODA, NODES[1:2], array_quotas=(ArrayQuota(name="q", reserve_cores_per_gpu=0),))
    play.submit(cpu("early", 6))
    assert [start.borrows for start in play.decide().starts] == [False]
    play.parts = {"array_quotas": (ArrayQuota(name="q", reserve_cores_per_gpu=4),)}
    play.submit(cpu("late", 6))
    assert [start.borrows for start in play.decide().starts] == [True]
    play.submit(gpu("training", 2, cores=8))
    assert [stop.job for stop in play.decide().stops] == [cpu("late", 6).id]
    assert cpu("early", 6).id in play.running()


def test_a_quota_says_which_nodes_are_for_large_jobs() -> None:
    quotas = (ArrayQuota(name="q", selector={"gpu": "old"}, large_share=1.0), ArrayQuota(name="rest", large_gpus=0))
    nodes = (*NODES[:2], replace(NODES[2], labels={"gpu": "old"}))
    plan = decide(world(nodes, [gpu("large", 4), gpu("small", 1)], array_quotas=quotas), CODA, 0.0)
    assert {start.job.split("/")[1]: start.nodes[0] for start in plan.starts} == {"large": "two", "small": "one"}
