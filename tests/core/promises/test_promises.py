"""A job that has waited too long is promised a start: what is kept for it, who may use it, and what it may cost."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest

from coda.cache.queue import waits_since_s
from coda.cycle import decide
from coda.errors import InvalidInput
from coda.history import FinishedRun
from coda.history.run_times import RunTimes
from coda.model import Decision, Job, JobId, Node, WaitCode
from coda.model.decision import StopCause
from coda.policy import POLICIES, ArraysConfig, Component, PolicyConfig
from coda.promises import PromiseBook
from coda.promises.expected_ends import ExpectedEnds
from coda.promises.promise_book import Promise
from tests.builders import job, node, quota, rack, running, world
from tests.core.play import Play

PATIENCE_S = 100.0
NOW_S = 1_000_000.0
ARRIVAL = PolicyConfig(promise_patience_s=PATIENCE_S, promise_price=1.0, levels=())
CODA = replace(ARRIVAL, policy="coda", arrays=ArraysConfig(reserve_cores_per_gpu=2, large_share=0.5))
NODES = (node("a", gpus=4, cores=12), node("b", gpus=4, cores=12))
LONG_S = 86_400.0


def gpu(name: str, gpus: int, *, waits_s: float = 0.0, cores: int = 1, replicas: int = 1, priority: int = 0) -> Job:
    return job(
        name,
        gpus=gpus,
        cores=cores,
        memory_gib=0,
        replicas=replicas,
        priority=priority,
        queued_s=NOW_S - waits_s,
    )


def ran(built: Job, *nodes: str, for_s: float, limit_s: float | None = None) -> Job:
    placed = running(built, *nodes)
    assert placed.placement is not None
    began = replace(placed.placement, committed_s=NOW_S - for_s)
    return replace(placed, placement=began, run_limit_s=limit_s)


def decided(
    *jobs: Job, config: PolicyConfig = ARRIVAL, nodes: tuple[Node, ...] = NODES, book: PromiseBook | None = None
) -> Decision:
    return decide(world(nodes, jobs), config, NOW_S, book=book)


def started(plan: Decision) -> dict[str, tuple[str, ...]]:
    return {start.job.split("/")[1]: start.nodes for start in plan.starts}


HALF = (ran(gpu("x", 2, replicas=2), "a", "b", for_s=500), ran(gpu("y", 1), "b", for_s=500))
"""Two GPUs are free on `a`, one on `b`. Nobody could be moved for a large job: `x` is one, `y` is at home."""


@pytest.mark.parametrize("config", [ARRIVAL, CODA], ids=["arrival", "coda"])
@pytest.mark.parametrize(
    ("waits_s", "expected"),
    [
        pytest.param(99, {"small", "smaller"}, id="everybody may overtake a job that has not waited long"),
        pytest.param(2000, {"smaller"}, id="after that the node where it can start first is kept, and another is not"),
    ],
)
def test_a_large_job_is_overtaken_for_a_while(config: PolicyConfig, waits_s: float, expected: set[str]) -> None:
    jobs = (gpu("large", 4, waits_s=waits_s), gpu("small", 2, waits_s=9), gpu("smaller", 1, waits_s=8))
    assert set(started(decided(*HALF, *jobs, config=config))) == expected


def test_others_start_beside_what_is_kept() -> None:
    """Three of the four GPUs of `a` are kept: one of the two that are free is left; cores are short for nobody."""
    plan = decided(*HALF, gpu("large", 3, waits_s=2000), gpu("one", 1), gpu("two", 1), gpu("three", 1))
    assert set(started(plan)) == {"one", "three"}
    assert set(started(plan).values()) == {("a",), ("b",)}


def test_nothing_is_kept_for_a_pod_whose_price_is_nothing() -> None:
    held = ran(job("x", gpus=0, cores=1, memory_gib=200), "a", for_s=500)
    cache = job("cache", gpus=0, cores=0, memory_gib=300, queued_s=NOW_S - 2000)
    train = job("train", cores=1, memory_gib=100, queued_s=NOW_S)
    assert set(started(decided(held, cache, train, config=CODA, nodes=(node("a", gpus=4),)))) == {"train"}


def test_who_is_kept_back_is_told_for_whom_and_the_promised_job_when_it_starts() -> None:
    plan = decided(*HALF, gpu("large", 4, waits_s=2000), gpu("small", 2))
    large, small = plan.refusals
    assert (large.code, small.code) == (WaitCode.INSUFFICIENT_GPUS, WaitCode.HELD_BY_POLICY)
    assert small.reason.holders == ("team/large",)
    assert "its start is promised, expected by 1970-01-12" in large.message
    assert large.message.endswith("some jobs in its way have no deadline, so not for certain")


def test_where_all_have_a_deadline_the_latest_start_is_told() -> None:
    limited = ran(gpu("x", 3), "a", for_s=500, limit_s=1000), ran(gpu("y", 2), "b", for_s=500, limit_s=5000)
    plan = decided(*limited, gpu("large", 4, waits_s=2000), gpu("small", 2))
    assert plan.refusals[0].message.endswith("the jobs in its way end by 1970-01-12 14:00 UTC at the latest")


def test_the_node_that_is_free_first_is_kept_by_deadlines_and_by_what_jobs_alike_have_run() -> None:
    """`x` has more of its node and ends first."""
    soon, late = ran(gpu("x", 3), "a", for_s=500, limit_s=600), ran(gpu("y", 2), "b", for_s=500)
    jobs = (gpu("large", 4, waits_s=900), gpu("two", 2))
    assert started(decided(soon, late, *jobs)) == {"two": ("b",)}
    book = PromiseBook()
    for _ in range(30):
        book.run_times.add(FinishedRun("", "", 3, 1000.0))
        book.run_times.add(FinishedRun("", "", 2, 100_000.0))
    alike = replace(soon, run_limit_s=None)
    assert started(decided(alike, late, *jobs, book=book)) == {"two": ("b",)}


def test_who_ends_in_time_may_use_what_is_kept() -> None:
    """`short` says that it ends within 50 s; `a` is expected to be free 500 s from now."""
    short, long = replace(gpu("short", 2), run_limit_s=50.0), gpu("long", 2)
    assert started(decided(*HALF, gpu("large", 4, waits_s=2000), long, short)) == {"short": ("a",)}


def test_what_a_job_ran_before_is_taken_from_what_it_may_run() -> None:
    """So it ends sooner, wherever it waits or runs: the operator counts the time of all attempts."""
    resumes = replace(gpu("resumes", 2), run_limit_s=900.0, served_s=850.0)
    assert started(decided(*HALF, gpu("large", 4, waits_s=2000), gpu("long", 2), resumes)) == {"resumes": ("a",)}
    first, second = ran(gpu("x", 3), "a", for_s=500, limit_s=1000), ran(gpu("y", 2), "b", for_s=500, limit_s=5000)
    again = replace(second, run_limit_s=5200.0, served_s=4500.0)
    plan = decided(first, again, gpu("large", 4, waits_s=2000), gpu("small", 2))
    assert plan.refusals[0].message.endswith("the jobs in its way end by 1970-01-12 13:50 UTC at the latest")


def test_the_first_of_those_that_waited_too_long_has_the_nodes() -> None:
    equals = (gpu("first", 4, waits_s=3000), gpu("second", 3, waits_s=2000), gpu("two", 2), gpu("one", 1))
    assert started(decided(*HALF, *equals)) == {"one": ("b",)}
    jobs = (gpu("low", 3, waits_s=3000), gpu("high", 4, waits_s=2000, priority=1), gpu("two", 2), gpu("one", 1))
    assert started(decided(*HALF, *jobs)) == {"one": ("b",)}


def test_nothing_is_kept_for_a_job_that_never_fits() -> None:
    assert set(started(decided(*HALF, gpu("huge", 5, waits_s=9000), gpu("small", 2)))) == {"small"}


def test_nothing_is_kept_for_a_job_that_its_quota_stops() -> None:
    """Nodes were once kept for a job that could not have started on them."""
    large = replace(gpu("large", 4, waits_s=9000), quota={"requests.nvidia.com/gpu": 4000})
    full = quota(hard={"requests.nvidia.com/gpu": 5000}, used={"requests.nvidia.com/gpu": 5000})
    other = replace(gpu("small", 2), id=JobId("other/small"), uid="small")
    book = PromiseBook()
    free = decide(world(NODES, (*HALF, large, other)), ARRIVAL, NOW_S, book=book)
    assert not free.starts
    assert book.promise_by_job[large.id].idle
    stopped = decide(world(NODES, (*HALF, large, other), quotas=(full,)), ARRIVAL, NOW_S, book=book)
    assert set(started(stopped)) == {"small"}
    assert not book.promise_by_job[large.id].idle


def test_a_gang_that_must_stay_in_one_rack_has_one_kept() -> None:
    cluster = (*rack("r", 2, gpus=4), *rack("s", 2, gpus=4))
    held = [("r-0", 600.0), ("r-1", 600.0), ("s-0", 50.0)]
    busy = [ran(gpu(f"x{number}", 2), name, for_s=for_s) for number, (name, for_s) in enumerate(held)]
    gang = replace(gpu("gang", 4, waits_s=9000, replicas=2), within="rack")
    config = replace(ARRIVAL, levels=PolicyConfig().levels)
    plan = decided(*busy, gang, *(gpu(f"new{number}", 2) for number in range(3)), nodes=cluster, config=config)
    assert {name for nodes in started(plan).values() for name in nodes} == {"r-0", "r-1"}


def test_no_policy_that_is_defined_otherwise_keeps_nodes() -> None:
    jobs = (*HALF, gpu("large", 4, waits_s=9000), gpu("small", 2))
    unlimited = {name for name, policy in POLICIES.items() if not policy.limits_overtaking}
    assert set(POLICIES) - unlimited == {"arrival", "coda"}
    assert {name for name in unlimited if POLICIES[name].reserves_for_first} == {"fifo-skip-easy"}
    for name in ("fifo-skip", "drf", "k8s-default", "best-fit"):
        assert set(started(decided(*jobs, config=replace(ARRIVAL, policy=name)))) == {"small"}
    for never in (replace(ARRIVAL, promise_patience_s=None), replace(ARRIVAL, promise_price=0.0)):
        assert set(started(decided(*jobs, config=never))) == {"small"}


def test_easy_keeps_nodes_at_once_for_the_first_that_does_not_fit_and_for_no_other() -> None:
    """`short` ends before `a` is expected to be free; `second` has no nodes of its own while `first` waits."""
    config = replace(ARRIVAL, policy="fifo-skip-easy", promise_price=0.0, promise_patience_s=None)
    first, second = gpu("first", 4, waits_s=0.0), gpu("second", 3, waits_s=0.0)
    plan = decided(*HALF, first, second, gpu("two", 2), gpu("one", 1), config=config)
    assert started(plan) == {"one": ("b",)}
    short, long = replace(gpu("short", 2), run_limit_s=50.0), replace(gpu("long", 2), run_limit_s=600.0)
    assert started(decided(*HALF, first, long, short, config=config)) == {"short": ("a",)}


def test_without_borrowing_nothing_is_kept() -> None:
    """A job may then be too large for its array for ever: it would block the nodes for nothing."""
    config = replace(CODA, without=frozenset({Component.BORROWING}))
    jobs = (gpu("large", 4, waits_s=9000, cores=9), gpu("small", 2))
    assert set(started(decided(*jobs, config=config))) == {"small"}


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"promise_patience_s": 0.0}, "promise_patience_s must be above 0, got 0"),
        ({"promise_price": 1.1}, "promise_price must be 0 to 1, got 1.1"),
    ],
)
def test_settings_out_of_range_are_refused(values: dict[str, float], sentence: str) -> None:
    with pytest.raises(InvalidInput, match=sentence):
        PolicyConfig(**values)  # type: ignore[arg-type]


def test_nobody_is_stopped_on_nodes_that_are_kept() -> None:
    """`small` would get cores of `lent` on `a`; these are kept for `large`, which still waits for `own`."""
    lent = ran(gpu("lent", 0, cores=8), "a", for_s=500)
    assert lent.placement is not None
    lent = replace(lent, placement=replace(lent.placement, borrows=True))
    own = ran(gpu("own", 1, replicas=4), "a", "b", "b", "b", for_s=500)
    full = ran(gpu("full", 1, cores=9), "b", for_s=50_000)
    small = gpu("small", 1, cores=4)
    assert {stop.job for stop in decided(lent, own, full, small, config=CODA).stops} == {"team/lent"}
    large = gpu("large", 4, waits_s=5000, cores=4)
    assert not decided(lent, own, full, small, large, config=CODA).stops


def test_nothing_is_kept_before_the_price_covers_what_is_idle_until_the_start() -> None:
    """Two GPUs of `a` would be idle for about 500 s; the price is a tenth of four GPUs times the wait."""
    config = replace(ARRIVAL, promise_price=0.1)
    small = gpu("small", 2)
    assert set(started(decided(*HALF, gpu("large", 4, waits_s=1000), small, config=config))) == {"small"}
    assert not started(decided(*HALF, gpu("large", 4, waits_s=10_000), small, config=config))


def test_once_the_price_is_used_up_others_start_there_and_the_cycle_comes_in_time() -> None:
    config = replace(ARRIVAL, promise_price=0.1)
    book, jobs = PromiseBook(), (*HALF, gpu("large", 4, waits_s=10_000), gpu("small", 2))
    first = decide(world(NODES, jobs), config, NOW_S, book=book)
    promise = book.promise_by_job[JobId("team/large")]
    assert (started(first), promise.idle) == ({}, 2.0)
    # Two GPUs are idle, and the price of 4000 GPU-s grows by 0.4 a second.
    assert first.wake_s == pytest.approx(NOW_S + 4000 / 1.6)
    assert first.wake_s is not None
    again = decide(world(NODES, jobs), config, first.wake_s, book=book)
    assert set(started(again)) == {"small"}
    assert promise.spent <= promise.price(first.wake_s) * (1 + 1e-9)


def test_to_decide_twice_at_one_time_costs_the_promise_nothing_more() -> None:
    book, jobs = PromiseBook(), (*HALF, gpu("large", 4, waits_s=2000), gpu("small", 2))
    decided(*jobs, book=book)
    decide(world(NODES, jobs), ARRIVAL, NOW_S + 10, book=book)
    spent = book.promise_by_job[JobId("team/large")].spent
    assert spent == 20.0
    assert decide(world(NODES, jobs), ARRIVAL, NOW_S + 10, book=book) == decided(*jobs, book=book)
    assert book.promise_by_job[JobId("team/large")].spent == spent


RUN = ran(gpu("train", 4), "a", for_s=190 * 3600.0)


@pytest.mark.parametrize(
    "after",
    [
        pytest.param(ran(replace(RUN, uid="another"), "a", for_s=-60), id="submitted again by the same name"),
        pytest.param(ran(replace(RUN, attempt=2), "a", for_s=-60), id="another attempt"),
        pytest.param(ran(RUN, "a", for_s=-60), id="placed again in the same attempt"),
        pytest.param(replace(RUN, run_limit_s=200 * 3600.0), id="with a limit"),
    ],
)
def test_an_expected_end_does_not_outlive_the_run_that_it_was_worked_out_for(after: Job) -> None:
    """The run is 190 h old when it is asked for, so the answer would count for 38 h."""
    run_times = RunTimes()
    for hours in range(2, 402, 4):
        run_times.add(FinishedRun("", "", 4, hours * 3600.0))
    ends = ExpectedEnds(run_times)
    before_s = ends.end_s(RUN, NOW_S)
    assert before_s != ends.end_s(after, NOW_S + 120) == ExpectedEnds(run_times).end_s(after, NOW_S + 120)


def resumable(built: Job) -> Job:
    return replace(built, resumable=True)


FULL = (
    resumable(ran(gpu("old", 2), "a", for_s=50_000)),
    resumable(ran(gpu("new", 2), "a", for_s=500)),
    ran(gpu("stays", 3), "b", for_s=100),
    resumable(ran(gpu("newest", 1), "b", for_s=10)),
)


def test_if_its_price_is_too_low_the_newest_small_jobs_that_resume_stop_for_it() -> None:
    config = replace(ARRIVAL, promise_price=0.0)
    assert not decided(*FULL, gpu("large", 4, waits_s=99), config=config).stops
    plan = decided(*FULL, gpu("two", 2, waits_s=2000), config=config)
    assert [(stop.job, stop.cause, stop.by) for stop in plan.stops] == []  # nobody on `a` is smaller than `two`
    plan = decided(*FULL, gpu("large", 4, waits_s=2000), config=config)
    assert {(stop.job, stop.cause) for stop in plan.stops} == {
        ("team/new", StopCause.PREEMPT),
        ("team/old", StopCause.PREEMPT),
    }  # `newest` would be stopped in vain
    assert not plan.starts
    plain = [replace(one, resumable=False) for one in FULL]
    assert not decided(*plain, gpu("large", 4, waits_s=2000), config=config).stops
    high = [replace(one, priority=1) for one in FULL]
    assert not decided(*high, gpu("large", 4, waits_s=2000), config=config).stops


def test_easy_stops_nobody_where_no_end_can_be_expected() -> None:
    """Jobs so old that no estimate reaches beyond: `arrival` stops those that resume, EASY has its reservation only."""
    old = [resumable(ran(gpu(f"old{number}", 2), "a", for_s=1e8)) for number in range(2)]
    whole = ran(gpu("whole", 4), "b", for_s=1e8)
    large = gpu("large", 4, waits_s=2000)
    assert len(decided(*old, whole, large).stops) == 2
    assert not decided(*old, whole, large, config=replace(ARRIVAL, policy="fifo-skip-easy")).stops


def test_a_promise_at_any_price_has_no_moment_when_it_is_used_up() -> None:
    """Of a job without GPUs and cores the price would be infinity times nothing."""
    promise = Promise(JobId("team/none"), inf, 0.0, NOW_S, NOW_S)
    promise.keep({"a": 1}, NOW_S + 1, None)
    assert promise.used_up_s(NOW_S) is None


def test_the_job_that_others_stopped_for_starts_next_and_they_wait_anew() -> None:
    play = Play(replace(ARRIVAL, promise_price=0.0), NODES[:1])
    play.submit(resumable(gpu("one", 1)))
    play.settle()
    play.now_s = 10.0
    play.submit(gpu("large", 4))
    play.settle()
    play.now_s = 10.0 + PATIENCE_S
    play.settle()
    assert play.running() == ["team/large"]
    assert waits_since_s(play.job_by_id[JobId("team/one")]) == play.now_s


def test_a_job_whose_attempt_ended_a_moment_ago_has_not_waited_since_it_was_submitted() -> None:
    crashed = replace(gpu("crashed", 4, replicas=2, waits_s=7 * LONG_S), waiting_s=NOW_S - 1)
    assert set(started(decided(*HALF, crashed, gpu("small", 1)))) == {"small"}
    assert waits_since_s(crashed) == NOW_S - 1


def test_one_job_that_does_not_end_idles_no_more_than_the_price_for_another() -> None:
    """Twenty nodes, and the one job in the way may go on for another week: nothing is kept for 160 GPUs."""
    nodes = tuple(node(f"n{number:02}", gpus=8, cores=48) for number in range(20))
    endless = ran(gpu("endless", 8), "n00", for_s=7 * LONG_S)
    whole = gpu("whole", 8, replicas=20, waits_s=PATIENCE_S)
    others = [gpu(f"small-{number:03}", 1) for number in range(200)]
    assert len(decided(endless, whole, *others, nodes=nodes).starts) == 19 * 8


@pytest.mark.parametrize(("cores", "borrows"), [(4, False), (5, True)])
def test_cores_that_a_cpu_job_got_after_so_long_a_wait_are_its_own_if_its_array_owns_them(
    cores: int, borrows: bool
) -> None:
    """Else the GPU job that waits beside it would have it stopped at the same moment. 4 of 12 are the CPU array's."""
    cpu = gpu("cpu", 0, cores=cores, waits_s=100)
    plan = decided(cpu, gpu("train", 4, cores=12, waits_s=2), gpu("other", 4, cores=12, waits_s=1), config=CODA)
    assert [(start.job, start.borrows) for start in plan.starts] == [("team/cpu", borrows), ("team/train", False)]
    assert not plan.stops
