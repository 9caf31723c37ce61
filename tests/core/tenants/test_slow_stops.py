"""Stopped gangs need time to end. Until they are gone, nobody else takes what they leave: not its nodes, nor the place
within a limit."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from coda.cache import PlannerCache
from coda.cycle import decide
from coda.model import Decision, Job, JobId, Node, Phase, WaitCode
from coda.model.job import StopCause
from coda.model.resources import NOTHING, Resources
from coda.model.world import VirtualCluster, World
from coda.placements.stop_orders import order_from_stop
from coda.policy import PolicyConfig
from coda.promises import PromiseBook
from coda.tenants import TenantTree
from tests.builders import job, running, stopping, world
from tests.core.tenants.test_lent_gpus import nodes, of, runs
from tests.core.tenants.test_tenant_laws import CODA, GANGS, NODES, NOW_S, PLAIN, TREES, held, jobs_of

FULL_ORG = (
    VirtualCluster(name="org", gpus=16, may_borrow=False),
    VirtualCluster(name="red", gpus=8, parent="org"),
    VirtualCluster(name="blue", gpus=8, parent="org"),
    VirtualCluster(name="firm", gpus=16),
)
STEP_S = 10.0

FULL_TREES = st.tuples(
    st.sampled_from((4, 8, 12)), st.integers(0, 8), st.booleans(), st.sampled_from((None, 4, 8))
).map(
    lambda drawn: (
        VirtualCluster(name="org", gpus=drawn[0], may_borrow=False),
        VirtualCluster(name="red", gpus=drawn[1], parent="org", may_borrow=drawn[2]),
        VirtualCluster(name="blue", gpus=4, parent="org"),
        VirtualCluster(name="firm", gpus=drawn[3]),
    )
)
LATER = st.lists(st.tuples(st.sampled_from(("red", "blue", "blue", "firm")), st.sampled_from((1, 2, 4))), max_size=8)
"""Jobs that come later, one in each step."""


def world_now(jobs: list[Job], tenants: tuple[VirtualCluster, ...], on: tuple[Node, ...]) -> World:
    leaving = dict.fromkeys((one.name for one in on), NOTHING)
    for one in jobs:
        if one.placement is not None and one.placement.stop is not None:
            for name in one.placement.nodes:
                leaving[name] += one.request
    return world(on, jobs, leaving=leaving, virtual_clusters=tenants)


def carried_out(jobs: list[Job], plan: Decision, config: PolicyConfig, now_s: float) -> list[Job]:
    """Whoever starts is committed, and runs once its nodes are free; whoever stops goes on until its order is over."""
    starts, stops = {one.job: one for one in plan.starts}, {one.job: one for one in plan.stops}
    after = []
    for one in jobs:
        if one.id in starts:
            placed = running(one, *starts[one.id].nodes)
            assert placed.placement is not None
            one = replace(
                placed, phase=Phase.QUEUED, bound=frozenset(), placement=replace(placed.placement, committed_s=now_s)
            )
        elif one.id in stops:
            assert one.placement is not None
            order = order_from_stop(stops[one.id], one, now_s, config)
            one = replace(one, placement=replace(one.placement, stop=order))
        after.append(one)
    return after


def one_step_later(jobs: list[Job], now_s: float, on: tuple[Node, ...]) -> list[Job]:
    """Whoever was told to stop is gone 30 s after its notice, and waits again; whoever was committed there runs."""
    after = []
    for one in jobs:
        order = one.placement.stop if one.placement is not None else None
        if order is not None and order.since_s + order.notice_s + 30 <= now_s:
            one = replace(one, phase=Phase.QUEUED, placement=None, bound=frozenset(), attempt=one.attempt + 1)
        after.append(one)
    free = {one.name: one.allocatable for one in on}
    for one in after:
        for rank in one.bound:
            assert one.placement is not None
            free[one.placement.nodes[rank]] -= one.request
    for number, one in enumerate(after):
        if one.placement is not None and not one.bound and one.placement.stop is None:
            left = dict(free)
            for name in one.placement.nodes:
                left[name] -= one.request
            if all(amount.gpus >= 0 and amount.cpu_m >= 0 for amount in left.values()):
                free = left
                after[number] = replace(one, phase=Phase.RUNNING, bound=frozenset(range(one.replicas)))
    return after


@settings(max_examples=150, deadline=None)
@given(TREES | FULL_TREES, GANGS, LATER, st.sampled_from((CODA, PLAIN)), st.sampled_from((0.0, 120.0)))
def test_each_owner_starts_as_soon_as_those_who_stopped_for_it_are_gone(
    tenants: tuple[VirtualCluster, ...],
    gangs: list[tuple[str, int, int, int, bool, bool]],
    later: list[tuple[str, int]],
    config: PolicyConfig,
    notice_s: float,
) -> None:
    """Others come. Meanwhile nobody crosses a limit, and nobody more stops for the same owner."""
    tree, jobs = TenantTree(tenants), [replace(one, stop_notice_s=notice_s) for one in jobs_of(gangs)]
    book, cache, now_s = PromiseBook(), PlannerCache(), NOW_S
    awaited: dict[JobId, set[JobId]] = {}  # by owner: who stops for it
    for step in range(60):
        if step < len(later):
            tenant, gpus = later[step]
            jobs.append(job(f"later{step}", gpus=gpus, cores=gpus, virtual_cluster=tenant, queued_s=100 + step))
        plan = decide(world_now(jobs, tenants, NODES), config, now_s, cache, book=book)
        started, by_id = {one.job for one in plan.starts}, {one.id: one for one in jobs}
        for owner in list(awaited):
            if owner in started:
                del awaited[owner]
            else:
                left = [one for one in awaited[owner] if by_id[one].placement is not None]
                assert left, f"{owner} waits, and all that stopped for it are gone"
        for stop in plan.stops:
            if stop.cause is StopCause.FAIR_SHARE:
                assert stop.by not in awaited
        for stop in plan.stops:
            if stop.cause is StopCause.FAIR_SHARE:
                awaited.setdefault(stop.by, set()).add(stop.job)
        before, jobs = held(tree, jobs), carried_out(jobs, plan, config, now_s)
        for seat, gpus in held(tree, jobs).items():
            limit = tree.seat(seat).limit_gpus
            assert limit is None or gpus <= max(limit, before.get(seat, 0))
        now_s += STEP_S
        jobs = one_step_later(jobs, now_s, NODES)


def test_another_organisation_does_not_take_the_node_that_a_team_is_given_back() -> None:
    """The limit counts the gang until it is gone, so the owner cannot be committed before that."""
    leaves = replace(stopping(runs(of("red", "r2"), "n1"), StopCause.FAIR_SHARE, by="blue/owner"))
    jobs = [runs(of("red", "r1"), "n0"), leaves, runs(of("firm", "f1"), "n2")]
    owner, rival = of("blue", "owner"), of("firm", "rival")
    book = PromiseBook()
    book.fair_shares.note(owner.id, (), 1000.0)
    plan = decide(world_now([*jobs, owner, rival], FULL_ORG, nodes(3)), PolicyConfig(policy="coda"), 1010.0, book=book)
    assert (plan.starts, plan.stops) == ((), ())
    code = {str(refusal.job): refusal.code for refusal in plan.refusals}
    assert code == {"blue/owner": WaitCode.VIRTUAL_CLUSTER_FULL, "firm/rival": WaitCode.HELD_BY_POLICY}
    gone = [jobs[0], of("red", "r2"), jobs[2], owner, rival]
    plan = decide(world_now(gone, FULL_ORG, nodes(3)), PolicyConfig(policy="coda"), 1100.0, book=book)
    assert [start.job for start in plan.starts] == ["blue/owner"]


def test_the_place_is_withheld_for_as_long_as_the_gang_there_has_to_end() -> None:
    """Its pods may have five minutes. Once it is gone, what it left is still for the owner."""
    leaves = stopping(runs(of("red", "r2"), "n1"), StopCause.FAIR_SHARE, by="blue/owner")
    jobs = [runs(of("red", "r1"), "n0"), leaves, runs(of("firm", "f1"), "n2"), of("blue", "owner"), of("firm", "rival")]
    book, now_s = PromiseBook(), 1000.0
    book.fair_shares.note(JobId("blue/owner"), (), now_s)
    while now_s < 1400.0:
        now_s += 50.0
        assert decide(world_now(jobs, FULL_ORG, nodes(3)), CODA, now_s, book=book).starts == ()
    jobs[1] = of("red", "r2")
    plan = decide(world_now(jobs, FULL_ORG, nodes(3)), CODA, now_s + 50.0, book=book)
    assert [start.job for start in plan.starts] == ["blue/owner"]


def test_a_gang_that_does_not_end_in_its_time_withholds_nothing() -> None:
    leaves = stopping(runs(of("red", "r2"), "n1"), StopCause.FAIR_SHARE, by="blue/owner")
    book = PromiseBook()
    book.fair_shares.note(JobId("blue/owner"), (), 1000.0)
    book.fair_shares.keep([leaves], {"n1": Resources(cpu_m=1000), "n0": leaves.request}, 1010.0)
    assert book.fair_shares.claims([JobId("blue/owner")], 1119.0) == ["blue/owner"]
    assert book.fair_shares.claims([JobId("blue/owner")], 1121.0) == []
