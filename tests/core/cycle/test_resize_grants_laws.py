"""Laws of wishes, over random worlds in which running jobs want other cores."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coda.cache import PlannerCache
from coda.cycle import answer_from_denial, answer_from_grant, decide
from coda.model import Decision, Job, Phase, World
from coda.model.capacity import free_by_node
from coda.model.consistency import check
from coda.model.job import Wish
from coda.model.live_placement import growth_by_node, open_wish
from coda.policy import PolicyConfig
from tests.builders import with_starts
from tests.strategies import NOW_S, worlds

pytestmark = pytest.mark.heavy

law = settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
POLICIES = st.sampled_from(("arrival", "drf", "coda"))


@st.composite
def wishes(draw: st.DrawFn) -> Wish:
    return Wish(
        sequence=draw(st.integers(1, 3)),
        cores=draw(st.integers(1, 5)),
        since_s=float(draw(st.integers(90, 93))),
        deadline_s=draw(st.sampled_from((NOW_S - 1, NOW_S + 10, NOW_S + 10))),
    )


@st.composite
def wishing_worlds(draw: st.DrawFn) -> World:
    """Every job that runs has a wish, mostly one that awaits its answer."""
    snapshot = draw(worlds())

    def wishing(job: Job) -> Job:
        if job.phase is not Phase.RUNNING or job.placement is None:
            return job
        borrows = draw(st.booleans()) and not job.request.gpus
        held = draw(st.sampled_from((0, 0, job.cpus_per_replica, 5)))
        return replace(job, wish=draw(wishes()), held_cores=held, placement=replace(job.placement, borrows=borrows))

    return replace(snapshot, jobs=tuple(wishing(job) for job in snapshot.jobs))


def decided(world: World, policy: str) -> Decision:
    return decide(world, PolicyConfig(policy=policy), NOW_S)


def carried_out(world: World, plan: Decision) -> World:
    """The world once starts, grants and denials are written."""
    config = PolicyConfig()
    answers = {grant.job: answer_from_grant(grant, NOW_S, config) for grant in plan.grants}
    answers |= {denial.job: answer_from_denial(denial, NOW_S) for denial in plan.denials}
    world = with_starts(world, plan.starts, config, NOW_S)

    def written(job: Job) -> Job:
        if job.placement is None or job.id not in answers:
            return job
        return replace(job, placement=replace(job.placement, answer=answers[job.id]))

    return replace(world, jobs=tuple(written(job) for job in world.jobs))


@law
@given(wishing_worlds(), POLICIES)
def test_every_open_wish_is_granted_refused_or_postponed_exactly_once(world: World, policy: str) -> None:
    plan = decided(world, policy)
    answered = [grant.job for grant in plan.grants] + [denial.job for denial in plan.denials] + [*plan.postponed]
    assert sorted(answered) == sorted(job.id for job in world.jobs if open_wish(job) is not None)


@law
@given(wishing_worlds(), POLICIES)
def test_what_is_granted_and_started_together_is_free(world: World, policy: str) -> None:
    plan = decided(world, policy)
    free, after = free_by_node(world), free_by_node(carried_out(world, plan))
    for name, rest in after.items():
        assert rest.cpu_m == free[name].cpu_m or rest.cpu_m >= 0, name


@law
@given(wishing_worlds(), POLICIES)
def test_a_shrink_is_granted_whatever_the_world_is_like(world: World, policy: str) -> None:
    shrinks = {
        job.id
        for job in world.jobs
        if (wish := open_wish(job)) is not None and wish.deadline_s > NOW_S and not growth_by_node(job, wish.cores)
    }
    assert shrinks <= {grant.job for grant in decided(world, policy).grants}


@law
@given(wishing_worlds(), POLICIES)
def test_deciding_again_gives_no_core_twice(world: World, policy: str) -> None:
    plan = decided(world, policy)
    after = carried_out(world, plan)
    check(after)
    again = decided(after, policy)
    assert (again.grants, again.denials) == ((), ()) or plan.stops


@law
@given(wishing_worlds(), POLICIES, st.randoms(use_true_random=False))
def test_the_order_of_jobs_and_nodes_does_not_matter(world: World, policy: str, rng: random.Random) -> None:
    jobs, nodes = list(world.jobs), list(world.nodes)
    rng.shuffle(jobs)
    rng.shuffle(nodes)
    assert decided(replace(world, jobs=tuple(jobs), nodes=tuple(nodes)), policy) == decided(world, policy)


@law
@given(st.lists(wishing_worlds(), min_size=2, max_size=4), POLICIES)
def test_a_memory_of_other_worlds_changes_no_answer(snapshots: list[World], policy: str) -> None:
    cache, config = PlannerCache(), PolicyConfig(policy=policy)
    for world in snapshots:
        plan = decide(world, config, NOW_S, cache)
        assert plan == decide(world, config, NOW_S)
        after = carried_out(world, plan)
        assert decide(after, config, NOW_S, cache) == decide(after, config, NOW_S)


@law
@given(wishing_worlds())
def test_a_refused_wish_could_have_had_what_the_refusal_says_and_no_more(world: World) -> None:
    """With the answers before it carried out, and nobody else who wants anything."""
    plan = decided(world, "arrival")
    granted = replace(plan, starts=(), denials=())
    for denial in plan.denials:
        alone = replace(
            carried_out(world, granted), jobs=tuple(_only(job, denial.job) for job in carried_out(world, granted).jobs)
        )
        wisher = next(job for job in alone.jobs if job.id == denial.job)
        assert wisher.wish is not None
        if denial.most_cores > wisher.cpus_per_replica:
            assert _is_granted(alone, wisher, denial.most_cores)
        if denial.most_cores < wisher.wish.cores:
            assert not _is_granted(alone, wisher, max(wisher.cpus_per_replica, denial.most_cores) + 1)


def _only(job: Job, wisher: str) -> Job:
    return job if job.id == wisher else replace(job, wish=None)


def _is_granted(world: World, wisher: Job, cores: int) -> bool:
    assert wisher.wish is not None
    wish = replace(wisher.wish, cores=cores, deadline_s=NOW_S + 10)
    trying = tuple(replace(job, wish=wish) if job.id == wisher.id else job for job in world.jobs)
    return any(grant.job == wisher.id for grant in decided(replace(world, jobs=trying), "arrival").grants)
