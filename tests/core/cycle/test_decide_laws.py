from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from operator import attrgetter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coda.cache.job_facts import facts_of
from coda.cache.queue import waiting_jobs
from coda.cycle import decide
from coda.model import Decision, Job, Node, Resources, WaitCode, World
from coda.model.capacity import free_by_node
from coda.model.consistency import check
from coda.model.decision import Refusal
from coda.model.live_placement import is_waiting
from coda.nodes import accepts, exclusion
from coda.policy import Level, PolicyConfig
from tests.builders import HOST_LABEL, RACK_LABEL, with_starts
from tests.strategies import NOW_S, ZONE_LABEL, worlds

pytestmark = pytest.mark.heavy

CONFIG = PolicyConfig(levels=(Level("zone", ZONE_LABEL), Level("rack", RACK_LABEL), Level("node", HOST_LABEL)))
SHORT: Mapping[WaitCode, Callable[[Resources], Resources]] = {
    WaitCode.INSUFFICIENT_GPUS: lambda request: replace(request, gpus=0),
    WaitCode.INSUFFICIENT_CPU: lambda request: replace(request, cpu_m=0),
    WaitCode.INSUFFICIENT_MEMORY: lambda request: replace(request, memory_bytes=0),
    WaitCode.INSUFFICIENT_PODS: lambda request: replace(request, pods=0),
}
NO_ROOM = {*SHORT, WaitCode.NO_USABLE_NODE, WaitCode.INSUFFICIENT_RESOURCES, WaitCode.NO_DOMAIN_FITS}

law = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def copies_that_fit(request: Resources, free: Resources, most: int) -> int:
    """Counted one by one, as the slow and obvious opposite of dividing."""
    count = 0
    while count < most and request.fits_in(free):
        free, count = free - request, count + 1
    return count


def fits_somewhere(job: Job, world: World, free: dict[str, Resources]) -> bool:
    """Try every domain the job allows, node by node."""
    usable = [node for node in world.nodes if accepts(job.constraints, node) and node.name not in job.avoid]
    if job.within is None:
        return holds(job, usable, free)
    labels = [level.label for level in CONFIG.levels if level.name == job.within]
    domains = {node.labels[label] for label in labels for node in usable if label in node.labels}
    return any(
        holds(job, [node for node in usable if node.labels.get(labels[0]) == domain], free) for domain in domains
    )


def holds(job: Job, nodes: list[Node], free: dict[str, Resources]) -> bool:
    return sum(copies_that_fit(job.request, free[node.name], job.replicas) for node in nodes) >= job.replicas


def could_start(job: Job, world: World, free: dict[str, Resources]) -> bool:
    held_back = job.not_before_s > NOW_S or job.bound or job.unbound
    quotas_leave = quota_leaves(job, world) and tenant_leaves(job, world)
    return not held_back and quotas_leave and fits_somewhere(job, world, free)


def quota_leaves(job: Job, world: World) -> bool:
    """Judged by adding up every planned rank without a pod."""
    for quota in world.quotas:
        for key, hard in quota.hard.items():
            planned = sum(
                other.quota.get(key, 0) * (other.replicas - len({*other.bound, *other.unbound}))
                for other in world.jobs
                if other.namespace == quota.namespace and is_planned(other)
            )
            needed = job.quota.get(key, 0) * job.replicas
            if quota.namespace == job.namespace and needed > hard - quota.used.get(key, 0) - planned:
                return False
    return True


def tenant_leaves(job: Job, world: World) -> bool:
    """Judged by adding up what every job of its virtual cluster holds: GPUs, or cores of jobs without GPUs."""
    for tenant in world.virtual_clusters:
        if tenant.name == job.virtual_cluster and not tenant.may_borrow:
            amount = attrgetter("gpus" if job.request.gpus else "cpu_m")
            alike = [one for one in world.jobs if one.virtual_cluster == tenant.name and _same_kind(one, job)]
            held = sum(amount(one.request) * len(facts_of(one).nodes) for one in alike)
            quota = tenant.gpus if job.request.gpus else tenant.cpu_m
            needed = amount(job.request) * job.replicas
            if quota is not None and needed and held + needed > quota:
                return False
    return True


def _same_kind(job: Job, other: Job) -> bool:
    return bool(job.request.gpus) == bool(other.request.gpus)


def is_planned(job: Job) -> bool:
    placed = job.placement is not None and job.placement.generation == job.generation
    return job.phase.value == "Queued" and placed and job.placement is not None and job.placement.attempt == job.attempt


def decided(world: World) -> tuple[Decision, World]:
    plan = decide(world, CONFIG, NOW_S)
    return plan, with_starts(world, plan.starts, CONFIG, NOW_S)


@law
@given(worlds())
def test_every_waiting_job_is_started_or_refused_exactly_once(world: World) -> None:
    plan, _ = decided(world)
    answered = sorted([start.job for start in plan.starts] + [refusal.job for refusal in plan.refusals])
    assert answered == sorted(job.id for job in world.jobs if is_waiting(job))


@law
@given(worlds())
def test_a_gang_starts_whole_and_as_it_was_asked_for(world: World) -> None:
    plan, after = decided(world)
    check(after)
    job_by_id = {job.id: job for job in world.jobs}
    for start in plan.starts:
        job = job_by_id[start.job]
        assert len(start.nodes) == job.replicas
        asked = (job.attempt, job.generation, job.cpus_per_replica)
        assert (start.attempt, start.generation, start.cpus_per_replica) == asked


@law
@given(worlds())
def test_starts_never_take_more_than_is_free(world: World) -> None:
    plan, after = decided(world)
    job_by_id = {job.id: job for job in world.jobs}
    free = free_by_node(world)
    for start in plan.starts:
        request = job_by_id[start.job].request
        for name in start.nodes:
            assert request.fits_in(free[name])
            free[name] = free[name] - request
    assert free == free_by_node(after)


@law
@given(worlds())
def test_starts_only_use_nodes_that_accept_the_job(world: World) -> None:
    plan, _ = decided(world)
    job_by_id = {job.id: job for job in world.jobs}
    node_by_name = {node.name: node for node in world.nodes}
    for start in plan.starts:
        job = job_by_id[start.job]
        for name in start.nodes:
            assert accepts(job.constraints, node_by_name[name])
            assert node_by_name[name].schedulable
            assert name not in job.avoid


@law
@given(worlds(preferring=True))
def test_a_required_level_keeps_all_ranks_in_one_domain(world: World) -> None:
    plan, _ = decided(world)
    job_by_id = {job.id: job for job in world.jobs}
    labels_by_name = {node.name: node.labels for node in world.nodes}
    label_by_level = dict(CONFIG.levels)
    for start in plan.starts:
        level = job_by_id[start.job].within
        if level is not None:
            domains = {labels_by_name[name].get(label_by_level[level]) for name in start.nodes}
            assert len(domains) == 1
            assert None not in domains


@law
@given(worlds())
def test_started_gangs_never_exceed_a_quota(world: World) -> None:
    plan, _ = decided(world)
    started = {start.job for start in plan.starts}
    for quota in world.quotas:
        for key, hard in quota.hard.items():
            gangs = [job for job in world.jobs if job.id in started and job.namespace == quota.namespace]
            needed = sum(job.quota.get(key, 0) * job.replicas for job in gangs)
            assert not needed or quota.used.get(key, 0) + needed <= hard


@law
@given(worlds(), st.data())
def test_the_order_of_the_input_does_not_matter(world: World, data: st.DataObject) -> None:
    shuffled = replace(
        world,
        nodes=tuple(data.draw(st.permutations(world.nodes))),
        jobs=tuple(data.draw(st.permutations(world.jobs))),
        quotas=tuple(data.draw(st.permutations(world.quotas))),
    )
    assert decide(shuffled, CONFIG, NOW_S) == decide(world, CONFIG, NOW_S)


@law
@given(worlds(preferring=True))
def test_deciding_again_starts_nothing_and_says_the_same(world: World) -> None:
    plan, after = decided(world)
    again = decide(after, CONFIG, NOW_S)
    assert replace(again, wake_s=None) == Decision(refusals=plan.refusals)


@law
@given(worlds())
def test_no_job_is_refused_that_could_start(world: World) -> None:
    plan, after = decided(world)
    free = free_by_node(after)
    job_by_id = {job.id: job for job in after.jobs}
    for refusal in plan.refusals:
        assert not could_start(job_by_id[refusal.job], after, free)


@law
@given(worlds())
def test_the_first_in_order_that_can_start_starts_first(world: World) -> None:
    plan, _ = decided(world)
    free = free_by_node(world)
    able = [job.id for job in waiting_jobs(world) if could_start(job, world, free)]
    assert [start.job for start in plan.starts[:1]] == able[:1]


@law
@given(worlds())
def test_the_first_start_is_as_close_together_as_can_be(world: World) -> None:
    plan, _ = decided(world)
    free = free_by_node(world)
    for start in plan.starts[:1]:
        job = next(job for job in world.jobs if job.id == start.job)
        required = {level.label for level in CONFIG.levels if level.name == job.within}
        usable = [
            node
            for node in world.nodes
            if accepts(job.constraints, node) and node.name not in job.avoid and required <= node.labels.keys()
        ]
        if job.within is None and any(holds(job, [node], free) for node in usable):
            assert len(set(start.nodes)) == 1
        chosen = [node for node in world.nodes if node.name in start.nodes]
        for level in reversed(CONFIG.levels):
            domains = {node.labels.get(level.label) for node in usable} - {None}
            if len(chosen) > 1 and any(holds_in(job, usable, free, level, domain) for domain in domains):
                assert len({node.labels.get(level.label) for node in chosen}) == 1
                break


def holds_in(job: Job, usable: list[Node], free: dict[str, Resources], level: Level, domain: str | None) -> bool:
    return holds(job, [node for node in usable if node.labels.get(level.label) == domain], free)


@law
@given(worlds())
def test_the_code_of_a_refusal_is_true(world: World) -> None:
    plan, after = decided(world)
    job_by_id = {job.id: job for job in after.jobs}
    for refusal in plan.refusals:
        assert_true(refusal, job_by_id[refusal.job], after)


def assert_true(refusal: Refusal, job: Job, world: World) -> None:
    free = free_by_node(world)
    matching = [node for node in world.nodes if exclusion(job.constraints, node) is None]
    anywhere = replace(job, within=None)
    assert (refusal.code is WaitCode.NO_MATCHING_NODE) == (not matching)
    if refusal.code is WaitCode.NEVER_FITS:
        assert not could_ever_start(job, world)
    elif refusal.code is WaitCode.QUOTA_EXCEEDED:
        assert not quota_leaves(job, world)
    elif refusal.code is WaitCode.BACKING_OFF:
        assert job.not_before_s > NOW_S
    elif refusal.code is WaitCode.ROLLING_BACK:
        assert job.unbound
    elif refusal.code is WaitCode.UNKNOWN_LEVEL:
        assert job.within == "moon"
    elif refusal.code is WaitCode.NO_DOMAIN_FITS:
        assert fits_somewhere(anywhere, world, free)
    elif refusal.code is WaitCode.NO_USABLE_NODE:
        assert not any(accepts(job.constraints, node) and node.name not in job.avoid for node in world.nodes)
    elif refusal.code in SHORT:
        relaxed = replace(anywhere, request=SHORT[refusal.code](job.request))
        assert not fits_somewhere(anywhere, world, free)
        assert fits_somewhere(relaxed, world, free)
    if refusal.code in NO_ROOM:
        assert could_ever_start(job, world)
        assert quota_leaves(job, world)


def could_ever_start(job: Job, world: World) -> bool:
    """On the same nodes, all empty, untainted by passing conditions and schedulable."""
    nodes = tuple(
        replace(
            node,
            schedulable=True,
            taints=tuple(taint for taint in node.taints if not taint.key.startswith("node.kubernetes.io/")),
        )
        for node in world.nodes
    )
    alone = World(nodes=nodes, jobs=(replace(job, avoid=frozenset()),))
    return fits_somewhere(alone.jobs[0], alone, free_by_node(alone))


@law
@given(worlds())
def test_holders_are_jobs_with_a_plan_or_pods_and_at_most_as_many_as_configured(world: World) -> None:
    config = replace(CONFIG, refusal_holders=2)
    plan = decide(world, config, NOW_S)
    started = {start.job for start in plan.starts}
    holding = {job.id for job in world.jobs if job.placement is not None or job.unbound} | started
    for refusal in plan.refusals:
        assert len(refusal.reason.holders) <= 2
        assert set(refusal.reason.holders) <= holding
