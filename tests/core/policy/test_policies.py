"""Laws that every policy keeps, whatever it composes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from coda.cache import PlannerCache
from coda.cache.queue import waits_since_s
from coda.cycle import decide
from coda.errors import InvalidInput
from coda.model import Job, WaitCode, World
from coda.model.capacity import free_by_node
from coda.model.world import VirtualCluster
from coda.policy import POLICIES, PolicyConfig
from tests.builders import job, node, running, with_starts, world
from tests.core.cache.test_world_index_laws import changed
from tests.core.cycle.test_decide_laws import CONFIG, could_start
from tests.strategies import NOW_S, worlds

pytestmark = pytest.mark.heavy

law = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
configs = st.sampled_from(
    [
        *(replace(CONFIG, policy=name) for name in POLICIES),
        *(replace(CONFIG, policy=name, promise_patience_s=NOW_S - 1) for name in ("arrival", "coda")),
    ]
)
skipping = st.sampled_from(
    [
        replace(CONFIG, policy=name)
        for name, policy in POLICIES.items()
        if not policy.may_hold_back and not policy.reserves_for_first
    ]
)


def started(config: PolicyConfig, *parts: object) -> list[str]:
    nodes, jobs = parts
    plan = decide(world(nodes, jobs), config, NOW_S)  # type: ignore[arg-type]  # parts of a world
    return [start.job.split("/")[1] for start in plan.starts]


def test_an_unknown_policy_is_refused_by_name_with_all_that_are_known() -> None:
    with pytest.raises(InvalidInput, match="'lottery' is no policy: choose one of arrival, fifo-skip"):
        PolicyConfig(policy="lottery")


@law
@given(worlds(), configs, st.data())
def test_what_was_decided_before_changes_no_decision(world: World, config: PolicyConfig, data: st.DataObject) -> None:
    memory, now_s = PlannerCache(), NOW_S
    for step in range(data.draw(st.integers(2, 6))):
        plan = decide(world, config, now_s, memory)
        assert plan == decide(world, config, now_s)
        world = changed(data, world, plan, step)
        now_s += data.draw(st.sampled_from((0.0, 1.0)))


@law
@given(worlds(), configs, st.data())
def test_the_order_of_the_input_does_not_matter(world: World, config: PolicyConfig, data: st.DataObject) -> None:
    shuffled = replace(
        world, nodes=tuple(data.draw(st.permutations(world.nodes))), jobs=tuple(data.draw(st.permutations(world.jobs)))
    )
    assert decide(shuffled, config, NOW_S) == decide(world, config, NOW_S)


@law
@given(worlds(), configs)
def test_nothing_is_lent_twice(world: World, config: PolicyConfig) -> None:
    plan = decide(world, config, NOW_S)
    after = free_by_node(with_starts(world, plan.starts, config, NOW_S))
    job_by_id = {job.id: job for job in world.jobs}
    for start in plan.starts:
        for name in start.nodes:
            request = job_by_id[start.job].request
            assert request.fits_in(after[name] + request)


@law
@given(worlds(), configs)
def test_each_waiting_job_starts_or_is_told_why_not(world: World, config: PolicyConfig) -> None:
    plan = decide(world, config, NOW_S)
    waiting = [job.id for job in world.jobs if job.phase.value == "Queued" and not _has_plan(job)]
    assert sorted([*(start.job for start in plan.starts), *(refusal.job for refusal in plan.refusals)]) == sorted(
        waiting
    )


def _has_plan(job: Job) -> bool:
    placed = job.placement
    return placed is not None and (placed.attempt, placed.generation) == (job.attempt, job.generation)


@law
@given(worlds(), skipping)
def test_no_room_is_left_that_a_waiting_job_could_use(world: World, config: PolicyConfig) -> None:
    """In a round without stops: one ends with its first, and whoever comes later is asked in the next."""
    plan = decide(world, config, NOW_S)
    assume(not plan.stops)
    after = with_starts(world, plan.starts, config, NOW_S)
    free, job_by_id = free_by_node(after), {job.id: job for job in after.jobs}
    assert not any(could_start(job_by_id[refusal.job], after, free) for refusal in plan.refusals)


@law
@given(worlds(), configs)
def test_only_a_policy_that_withholds_or_an_overdue_job_leaves_capacity_free(
    world: World, config: PolicyConfig
) -> None:
    """A reason with a holder names the job that nodes are kept for. That job is overdue, and is refused itself."""
    plan = decide(world, config, NOW_S)
    after = with_starts(world, plan.starts, config, NOW_S)
    free, job_by_id = free_by_node(after), {job.id: job for job in after.jobs}
    refused = {refusal.job for refusal in plan.refusals}
    for refusal in plan.refusals:
        if refusal.code is not WaitCode.HELD_BY_POLICY:
            continue
        assert could_start(job_by_id[refusal.job], after, free)
        if not refusal.reason.holders:
            assert POLICIES[config.policy].may_hold_back
            continue
        (kept_for,) = refusal.reason.holders
        if not POLICIES[config.policy].reserves_for_first:
            assert POLICIES[config.policy].limits_overtaking
            assert config.promise_patience_s is not None
            assert waits_since_s(job_by_id[kept_for]) + config.promise_patience_s <= NOW_S
        assert kept_for in refused


HEAD_TOO_LARGE = [
    job("large", gpus=8, queued_s=1),
    job("cpu", gpus=0, cores=1, queued_s=2),
    job("small", gpus=1, queued_s=3),
]


@pytest.mark.parametrize(
    ("policy", "expected"),
    [("fifo-strict", []), ("fifo-class", ["cpu"]), ("fifo-skip", ["cpu", "small"]), ("arrival", ["cpu", "small"])],
)
def test_who_overtakes_a_job_that_does_not_fit(policy: str, expected: list[str]) -> None:
    busy = [node("n"), node("m")], [running(job("a", gpus=2), "n"), running(job("b", gpus=2), "m"), *HEAD_TOO_LARGE]
    assert started(PolicyConfig(policy=policy), *busy) == expected


def test_a_job_that_was_stopped_for_another_goes_first() -> None:
    jobs = [job("early", gpus=8, queued_s=1), job("back", gpus=8, queued_s=2, returned=True)]
    assert started(PolicyConfig(policy="fifo-skip"), [node("n")], jobs) == ["back"]


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        pytest.param("arrival", "tight", id="the fullest node for one GPU"),
        pytest.param("fifo-skip", "tight", id="the fewest free GPUs"),
        pytest.param("k8s-default", "wide", id="the most cores left"),
        pytest.param("best-fit", "tight", id="the least left over"),
        pytest.param("dot-product", "wide", id="most of what it asks for"),
    ],
)
def test_where_a_job_of_one_gpu_goes(policy: str, expected: str) -> None:
    nodes = [node("tight", gpus=8, cores=48), node("wide", gpus=8, cores=48)]
    busy = running(job("busy", gpus=6, cores=30, memory_gib=100), "tight")
    plan = decide(world(nodes, [busy, job("new", gpus=1, cores=2)]), PolicyConfig(policy=policy), NOW_S)
    assert [start.nodes for start in plan.starts] == [(expected,)]


def test_the_tenant_that_uses_least_of_its_quota_goes_first_and_the_rest_is_lent() -> None:
    tenants = [VirtualCluster(name="lab", gpus=8), VirtualCluster(name="firm", gpus=2)]
    busy = [
        running(job("a", gpus=2, virtual_cluster="lab"), "n"),
        running(job("b", gpus=1, virtual_cluster="firm"), "n"),
    ]
    waiting = [
        job("nobody", gpus=1, virtual_cluster="guest", queued_s=1),
        job("firm", gpus=1, virtual_cluster="firm", queued_s=2),
        job("lab", gpus=1, virtual_cluster="lab", queued_s=3),
    ]
    now = world([node("n", gpus=8)], [*busy, *waiting], virtual_clusters=tenants)
    plan = decide(now, PolicyConfig(policy="yarn-cs"), NOW_S)
    assert [start.job for start in plan.starts] == ["team/lab", "team/firm", "team/nobody"]


def test_the_shortest_job_goes_first_and_unknown_ones_last() -> None:
    waiting = [
        job("unknown", queued_s=0),
        replace(job("long", queued_s=1), remaining_s=9.0),
        replace(job("short", queued_s=2), remaining_s=1.0),
    ]
    assert started(PolicyConfig(policy="sjf"), [node("n")], waiting) == ["short", "long", "unknown"]
