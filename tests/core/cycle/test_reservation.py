"""How long a job can be overtaken: then nodes are kept for it, and it starts once they are free."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coda.cache.queue import waits_since_s
from coda.cycle import decide
from coda.errors import InvalidInput
from coda.model import Decision, Job, JobId, Node, WaitCode, World
from coda.model.capacity import free_by_node
from coda.policy import POLICIES, ArraysConfig, Component, PolicyConfig
from tests.builders import job, node, rack, running, with_starts, world
from tests.core.cycle.test_decide_laws import CONFIG, could_start
from tests.core.play import Play
from tests.strategies import NOW_S as WORLDS_S
from tests.strategies import worlds

LIMIT_S = 100.0
NOW_S = 1000.0
ARRIVAL = PolicyConfig(overtaking_limit_s=LIMIT_S, levels=())
CODA = replace(ARRIVAL, policy="coda", arrays=ArraysConfig(reserve_cores_per_gpu=2, large_share=0.5))
NODES = (node("a", gpus=4, cores=12), node("b", gpus=4, cores=12))


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


def ran(built: Job, *nodes: str, for_s: float) -> Job:
    placed = running(built, *nodes)
    assert placed.placement is not None
    return replace(placed, placement=replace(placed.placement, committed_s=NOW_S - for_s))


def decided(*jobs: Job, config: PolicyConfig = ARRIVAL, nodes: tuple[Node, ...] = NODES) -> Decision:
    return decide(world(nodes, jobs), config, NOW_S)


def started(plan: Decision) -> dict[str, tuple[str, ...]]:
    return {start.job.split("/")[1]: start.nodes for start in plan.starts}


HALF = (ran(gpu("x", 2, replicas=2), "a", "b", for_s=500), ran(gpu("y", 1), "b", for_s=500))
"""Two GPUs are free on `a`, one on `b`. Nobody could be moved for a large job: `x` is one, `y` is at home."""


@pytest.mark.parametrize("config", [ARRIVAL, CODA], ids=["arrival", "coda"])
@pytest.mark.parametrize(
    ("waits_s", "expected"),
    [
        pytest.param(99, {"small", "smaller"}, id="everybody may overtake a job that has not waited long"),
        pytest.param(100, {"smaller"}, id="after that the node with least to end is kept, and another is not"),
    ],
)
def test_a_large_job_is_overtaken_for_a_while(config: PolicyConfig, waits_s: float, expected: set[str]) -> None:
    jobs = (gpu("large", 4, waits_s=waits_s), gpu("small", 2, waits_s=9), gpu("smaller", 1, waits_s=8))
    assert set(started(decided(*HALF, *jobs, config=config))) == expected


def test_others_start_beside_what_is_kept() -> None:
    """Three of the four GPUs of `a` are kept: one of the two that are free is left; cores are short for nobody."""
    plan = decided(*HALF, gpu("large", 3, waits_s=100), gpu("one", 1), gpu("two", 1), gpu("three", 1))
    assert started(plan) == {"one": ("a",), "three": ("b",)} or started(plan) == {"one": ("b",), "three": ("a",)}


def test_who_is_kept_back_is_told_for_whom() -> None:
    plan = decided(*HALF, gpu("large", 4, waits_s=100), gpu("small", 2))
    assert {refusal.job: refusal.code for refusal in plan.refusals} == {
        "team/large": WaitCode.INSUFFICIENT_GPUS,
        "team/small": WaitCode.HELD_BY_POLICY,
    }
    assert plan.refusals[1].reason.holders == ("team/large",)


def test_the_first_of_those_that_waited_too_long_has_the_nodes() -> None:
    equals = (gpu("first", 4, waits_s=200), gpu("second", 3, waits_s=150), gpu("two", 2), gpu("one", 1))
    assert started(decided(*HALF, *equals)) == {"one": ("b",)}
    jobs = (gpu("low", 3, waits_s=200), gpu("high", 4, waits_s=150, priority=1), gpu("two", 2), gpu("one", 1))
    assert started(decided(*HALF, *jobs)) == {"one": ("b",)}


def test_nothing_is_kept_for_a_job_that_never_fits() -> None:
    assert set(started(decided(*HALF, gpu("huge", 5, waits_s=900), gpu("small", 2)))) == {"small"}


def test_jobs_that_never_fit_hide_none_that_does() -> None:
    huge = [gpu(f"huge{number}", 5, waits_s=900 + number) for number in range(3)]
    foreign = {"b": running(gpu("foreign", 2), "b").request}
    waiting = (*huge, gpu("large", 4, waits_s=100), gpu("small", 2))
    now = world(NODES, (*HALF, *waiting), foreign=foreign)
    assert not decide(now, ARRIVAL, NOW_S).starts
    never_here = (*huge, gpu("gang", 4, waits_s=100, replicas=2), gpu("small", 2))
    assert set(started(decide(world(NODES, (*HALF, *never_here), foreign=foreign), ARRIVAL, NOW_S))) == {"small"}


def test_a_gang_has_as_many_nodes_kept_as_it_needs() -> None:
    nodes = (*NODES, node("c", gpus=4, cores=12))
    busy = (*HALF, ran(gpu("w", 4), "c", for_s=500))
    jobs = (gpu("gang", 4, waits_s=100, replicas=2), gpu("one", 1), gpu("two", 1))
    assert not started(decided(*busy, *jobs, nodes=nodes))
    assert started(decided(*busy, *jobs[1:], nodes=nodes)).keys() == {"one", "two"}


def test_a_gang_that_must_stay_in_one_rack_has_one_kept() -> None:
    cluster = (*rack("r", 2, gpus=4), *rack("s", 2, gpus=4))
    busy = [ran(gpu(f"x{number}", 2), name, for_s=500) for number, name in enumerate(("r-0", "r-1", "s-0"))]
    gang = replace(gpu("gang", 4, waits_s=100, replicas=2), within="rack")
    config = PolicyConfig(overtaking_limit_s=LIMIT_S)
    plan = decided(*busy, gang, *(gpu(f"new{number}", 2) for number in range(3)), nodes=cluster, config=config)
    assert {name for nodes in started(plan).values() for name in nodes} == {"r-0", "r-1"}


def test_where_new_jobs_are_everywhere_whole_nodes_are_kept_always_the_same() -> None:
    """Jobs that started after the job was overdue hold both nodes: `a` is kept, whatever is free where."""
    late = (ran(gpu("x", 3), "a", for_s=50), ran(gpu("y", 2), "b", for_s=50))
    plan = decided(*late, gpu("large", 4, waits_s=200), gpu("one", 1), gpu("two", 2))
    assert started(plan) == {"one": ("b",)}


def test_no_policy_that_is_defined_otherwise_keeps_nodes() -> None:
    jobs = (*HALF, gpu("large", 4, waits_s=900), gpu("small", 2))
    unlimited = {name for name, policy in POLICIES.items() if not policy.limits_overtaking}
    assert set(POLICIES) - unlimited == {"arrival", "coda"}
    for name in ("fifo-skip", "drf", "k8s-default", "best-fit"):
        assert set(started(decided(*jobs, config=replace(ARRIVAL, policy=name)))) == {"small"}
    assert set(started(decided(*jobs, config=replace(ARRIVAL, overtaking_limit_s=None)))) == {"small"}


def test_without_borrowing_nothing_is_kept() -> None:
    """A job may then be too large for its array for ever: it would block the nodes for nothing."""
    config = replace(CODA, without=frozenset({Component.BORROWING}))
    jobs = (gpu("large", 4, waits_s=900, cores=9), gpu("small", 2))
    assert set(started(decided(*jobs, config=config))) == {"small"}


def test_a_limit_of_nothing_is_refused() -> None:
    with pytest.raises(InvalidInput, match="overtaking_limit_s must be above 0, got 0"):
        PolicyConfig(overtaking_limit_s=0)


def test_nobody_is_stopped_on_nodes_that_are_kept() -> None:
    """`small` would get cores of `lent` on `a`; these are kept for `large`, which still waits for `own`."""
    lent = ran(gpu("lent", 0, cores=8), "a", for_s=500)
    assert lent.placement is not None
    lent = replace(lent, placement=replace(lent.placement, borrows=True))
    own = ran(gpu("own", 1, replicas=4), "a", "b", "b", "b", for_s=500)
    full = ran(gpu("full", 1, cores=9), "b", for_s=500)
    small = gpu("small", 1, cores=4)
    assert {stop.job for stop in decided(lent, own, full, small, config=CODA).stops} == {"team/lent"}
    large = gpu("large", 4, waits_s=100, cores=4)
    assert not decided(lent, own, full, small, large, config=CODA).stops


@pytest.mark.parametrize(("limit_s", "expected_s"), [(None, 1000.0), (LIMIT_S, 130.0)])
def test_a_stream_of_small_jobs_holds_a_large_one_up_for_so_long(limit_s: float | None, expected_s: float) -> None:
    """Two-GPU jobs of 30 s come every 20 s until 960 s, on four GPUs: W + R is 130 s, and without a limit it is theirs
    until the last has ended."""
    play = Play(replace(ARRIVAL, overtaking_limit_s=limit_s), NODES[:1])
    play.submit(gpu("early", 2))
    play.settle()
    while play.now_s < 20.0 or play.job_by_id[JobId("team/large")].placement is None:
        play.now_s += 10.0
        for one in list(play.job_by_id.values()):
            if one.placement is not None and play.now_s - one.as_of_s >= 30.0:
                play.end(one.id)
        if play.now_s == 10.0:
            play.submit(gpu("large", 4))
        if play.now_s <= 960.0 and play.now_s % 20.0 == 0.0:
            play.submit(gpu(f"small-{play.now_s}", 2))
        play.settle()
    assert play.now_s - 10.0 <= expected_s
    assert limit_s is not None or play.now_s > 960.0


def test_cores_that_a_job_got_after_so_long_a_wait_are_its_own() -> None:
    """Else the GPU job that waits beside it would have it stopped at the same moment."""
    cpu = gpu("cpu", 0, cores=10, waits_s=100)
    plan = decided(cpu, gpu("train", 4, cores=12, waits_s=2), gpu("other", 4, cores=12, waits_s=1), config=CODA)
    assert [(start.job, start.borrows) for start in plan.starts] == [("team/cpu", False), ("team/train", False)]
    assert not plan.stops


RUN_S = 50.0
SHAPES = st.builds(
    lambda gpus, cores, replicas, user: job(
        "x", gpus=gpus, cores=cores, replicas=replicas if gpus else 1, memory_gib=0, user=user
    ),
    st.sampled_from((0, 1, 1, 2, 2, 3, 4)),
    st.integers(1, 12),
    st.sampled_from((1, 1, 1, 2)),
    st.sampled_from(("ann", "bob")),
)


def crowded(data: st.DataObject, config: PolicyConfig) -> tuple[Play, dict[JobId, float]]:
    """More jobs come than there is room for, each runs for up to `RUN_S`; after a while nobody comes any more. And when
    each job started first."""
    play, start_s, end_s = Play(config, NODES), dict[JobId, float](), dict[JobId, float]()
    step = 0
    while step < 25 or play.job_by_id:
        play.now_s += 10.0
        for ended in [name for name in play.running() if end_s[name] <= play.now_s]:
            play.end(ended)
        for number in range(data.draw(st.integers(0, 3)) if step < 25 else 0):
            play.submit(replace(data.draw(SHAPES), id=JobId(f"team/j{step}-{number}"), uid=f"{step}-{number}"))
        play.settle()
        for name in play.running():
            if play.job_by_id[name].as_of_s == play.now_s:
                start_s.setdefault(name, play.now_s)
                end_s[name] = play.now_s + data.draw(st.sampled_from((10.0, RUN_S)))
        step += 1
        assert step < 2000
    return play, start_s


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data(), st.sampled_from([ARRIVAL, CODA]))
def test_every_job_that_fits_the_empty_cluster_starts_within_the_bound(
    data: st.DataObject, config: PolicyConfig
) -> None:
    """At most W + k * R after it came, where k - 1 that waited for longer still waited when it was overdue.

    Time goes in steps of 10 s. And every plan equals the one without a memory (`Play`), whatever was kept before."""
    play, start_s = crowded(data, config)
    came_s = {one.id: one.queued_s for now, _ in play.plans for one in now.jobs}
    assert came_s.keys() == start_s.keys()
    for name, came in came_s.items():
        ahead: set[JobId] = set()
        for (now, _), now_s in zip(play.plans, play.times_s, strict=True):
            if came + LIMIT_S <= now_s < start_s[name]:
                ahead |= {
                    one.id for one in now.jobs if not one.placement and (waits_since_s(one), one.id) < (came, name)
                }
        assert start_s[name] <= came + LIMIT_S + (len(ahead) + 1) * RUN_S


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(worlds())
def test_room_is_left_only_for_a_job_that_waited_too_long(now: World) -> None:
    """Work conserving but for that: whoever is kept from room is told for whom, and that job waits in vain so far."""
    limit_s = WORLDS_S - 1
    config = replace(CONFIG, overtaking_limit_s=limit_s)
    plan = decide(now, config, WORLDS_S)
    after = with_starts(now, plan.starts, config, WORLDS_S)
    free, job_by_id = free_by_node(after), {one.id: one for one in after.jobs}
    for refusal in plan.refusals:
        if could_start(job_by_id[refusal.job], after, free):
            (kept_for,) = refusal.reason.holders
            assert refusal.code is WaitCode.HELD_BY_POLICY
            assert job_by_id[kept_for].queued_s + limit_s <= WORLDS_S
            assert not could_start(job_by_id[kept_for], after, free)
