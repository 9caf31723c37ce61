"""Laws of tenants, on any tree: what is borrowed and what is taken, whatever jobs come, run and wait."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from coda.cache import PlannerCache
from coda.cycle import decide
from coda.model import Decision, Job, JobId, Node, Phase
from coda.model.job import StopCause
from coda.model.world import VirtualCluster
from coda.policy import Component, PolicyConfig
from coda.policy.config import FairShareConfig
from coda.promises import PromiseBook
from coda.tenants import TenantTree
from tests.builders import job, node, running, world

PARENTS = {"org": "", "red": "org", "blue": "org", "firm": "", "lab": "firm"}
NAMES = tuple(PARENTS)
NOW_S = 100_000.0
NODES = tuple(node(f"n{number}", gpus=4, cores=32, rack="ab"[number % 2]) for number in range(4))
CODA = PolicyConfig(
    policy="coda",
    without=frozenset({Component.TIME_SLICES}),
    promise_patience_s=None,
    fair_share=FairShareConfig(from_use=0.75, min_runtime_s=600, stops_per_minute=0),
)
PLAIN = replace(CODA, without=frozenset({Component.TIME_SLICES, Component.ARRAYS}))  # no guest moves

TREES = st.lists(
    st.tuples(st.integers(0, 9), st.sampled_from((None, 4, 8, 12)), st.integers(0, 9)),
    min_size=len(NAMES),
    max_size=len(NAMES),
).map(
    lambda rows: tuple(
        VirtualCluster(
            name=name,
            gpus=gpus,
            parent=parent if chance else "gone" if name == "lab" else "",  # most are in their places
            may_borrow=limit > 0,
        )
        for (name, parent), (chance, gpus, limit) in zip(PARENTS.items(), rows, strict=True)
    )
)
GANGS = st.lists(
    st.tuples(
        st.sampled_from(("", *NAMES, "red", "blue", "lab")),
        st.sampled_from((1, 2, 2, 4)),  # GPUs of a rank
        st.integers(1, 2),  # ranks
        st.sampled_from((100, 5000, 90_000)),  # how long ago it started, if it runs
        st.booleans(),  # it must be within one rack
        st.booleans(),  # it resumes
    ),
    min_size=8,
    max_size=16,
)


def jobs_of(gangs: Sequence[tuple[str, int, int, int, bool, bool]]) -> list[Job]:
    """Each runs where it fits first, else it waits."""
    free = {one.name: one.allocatable.gpus for one in NODES}
    built = []
    for number, (tenant, gpus, ranks, age_s, is_close, resumes) in enumerate(gangs):
        one = job(
            f"j{number:02}",
            gpus=gpus,
            cores=gpus,
            replicas=ranks,
            virtual_cluster=tenant,
            queued_s=number,
            resumable=resumes,
            within="rack" if is_close else None,
        )
        places: list[str] = []
        for name in free:
            while len(places) < ranks and free[name] >= gpus:
                places.append(name)
                free[name] -= gpus
        if len(places) < ranks:
            for name in places:
                free[name] += gpus
            built.append(one)
            continue
        placed = running(one, *places)
        assert placed.placement is not None
        built.append(replace(placed, placement=replace(placed.placement, committed_s=NOW_S - age_s)))
    return built


def held(tree: TenantTree, jobs: Sequence[Job]) -> dict[str, int]:
    """GPUs by seat."""
    found: dict[str, int] = {}
    for one in jobs:
        if one.placement is not None:
            for seat in tree.path(one.virtual_cluster):
                found[seat] = found.get(seat, 0) + one.request.gpus * one.replicas
    return found


def carried_out(jobs: Sequence[Job], plan: Decision, now_s: float) -> list[Job]:
    """The jobs after all starts and stops of a decision, as in the simulator."""
    starts = {one.job: one for one in plan.starts}
    stops = {one.job for one in plan.stops}
    after = []
    for one in jobs:
        if one.id in starts:
            placed = running(one, *starts[one.id].nodes)
            assert placed.placement is not None
            one = replace(placed, placement=replace(placed.placement, committed_s=now_s))
        elif one.id in stops:
            one = replace(one, phase=Phase.QUEUED, placement=None, bound=frozenset(), attempt=one.attempt + 1)
        after.append(one)
    return after


def is_protected(tree: TenantTree, victim: Job, by: Job, amounts: dict[str, int]) -> bool:
    """True if a level of the victim, below what both have in common, holds no more than its own; or one of the job
    that it stops for would hold more than its own."""
    path, other = tree.path(victim.virtual_cluster), tree.path(by.virtual_cluster)
    common = len([1 for mine, its in zip(path, other, strict=False) if mine == its])  # a seat has one path
    asked = by.request.gpus * by.replicas
    return any(amounts.get(seat, 0) <= tree.seat(seat).own_gpus for seat in path[common:]) or any(
        amounts.get(seat, 0) + asked > tree.seat(seat).own_gpus for seat in other[common:]
    )


def is_limited(owner: Job, tree: TenantTree, jobs: Sequence[Job]) -> bool:
    """True if a limit on its path leaves the owner too little."""
    amounts, asked = held(tree, jobs), owner.request.gpus * owner.replicas
    limits = {seat: tree.seat(seat).limit_gpus for seat in tree.path(owner.virtual_cluster)}
    return any(limit is not None and amounts.get(seat, 0) + asked > limit for seat, limit in limits.items())


def is_full_for(owner: Job, tree: TenantTree, jobs: Sequence[Job]) -> bool:
    """True if ranks of the owner find at most a quarter of the GPUs idle, or a limit of its tenant is reached."""
    idle = {one.name: one.allocatable.gpus for one in NODES}
    for one in jobs:
        for name in one.placement.nodes if one.placement is not None else ():
            idle[name] -= one.request.gpus
    if is_limited(owner, tree, jobs):
        return True
    usable = sum(gpus - gpus % owner.request.gpus for gpus in idle.values())
    return usable <= 0.25 * sum(one.allocatable.gpus for one in NODES)


@settings(max_examples=200, deadline=None)
@given(TREES, GANGS, st.sampled_from((CODA, PLAIN)))
def test_stops_are_for_owners_take_what_was_borrowed_and_end(
    tenants: tuple[VirtualCluster, ...], gangs: list[tuple[str, int, int, int, bool, bool]], config: PolicyConfig
) -> None:
    """Until nothing changes any more at one time: each stop is followed by the start that it was for; whoever is within
    its own on each level below what both have in common is never stopped, nor is who ran too short; no limit is
    crossed on any level; and it ends."""
    tree, jobs = TenantTree(tenants), jobs_of(gangs)
    book, cache = PromiseBook(), PlannerCache()
    owner: JobId | None = None
    for _ in range(3 * len(jobs)):
        now = world(NODES, jobs, virtual_clusters=tenants)
        plan = decide(now, config, NOW_S, cache, book=book)
        before, by_id = held(tree, jobs), {one.id: one for one in jobs}
        if owner is not None:
            assert [one.job for one in plan.starts[:1]] == [owner], "stopped in vain"
        owner = None
        amounts = held(tree, carried_out(jobs, Decision(starts=plan.starts), NOW_S))
        for seat, gpus in amounts.items():
            limit = tree.seat(seat).limit_gpus
            assert limit is None or gpus <= max(limit, before.get(seat, 0))
        lent = [stop for stop in plan.stops if stop.cause is StopCause.FAIR_SHARE]
        assert not lent or len(lent) == len(plan.stops)
        for stop in sorted(lent, key=lambda stop: _standing(by_id[stop.job])):
            victim, owner = by_id[stop.job], stop.by
            assert victim.virtual_cluster != by_id[owner].virtual_cluster
            assert not is_protected(tree, victim, by_id[owner], amounts)
            for seat in tree.path(victim.virtual_cluster):
                amounts[seat] -= victim.request.gpus * victim.replicas
            assert victim.placement is not None
            assert NOW_S - victim.placement.committed_s >= 600
        if owner is not None:
            assert is_full_for(by_id[owner], tree, carried_out(jobs, Decision(starts=plan.starts), NOW_S))
        if not plan.starts and not plan.stops:
            return
        jobs = carried_out(jobs, plan, NOW_S)
    raise AssertionError("it does not end")


@settings(max_examples=80, deadline=None)
@given(TREES, GANGS, st.sampled_from((0, 4)))
def test_a_free_node_stops_nobody_older(
    tenants: tuple[VirtualCluster, ...], gangs: list[tuple[str, int, int, int, bool, bool]], gpus: int
) -> None:
    """With a free node more, gangs that resume or not are stopped, for the same job, at most as far back as before.

    More is not promised: a gang that fitted nowhere before may fit now if somebody stops."""
    jobs = jobs_of(gangs)
    before = decide(world(NODES, jobs, virtual_clusters=tenants), PLAIN, NOW_S)
    more: tuple[Node, ...] = (*NODES, node("n9", gpus=gpus, cores=32, rack="a"))
    after = decide(world(more, jobs, virtual_clusters=tenants), PLAIN, NOW_S)
    if before.stops and after.stops and before.stops[0].by == after.stops[0].by and before.starts == after.starts:
        assert _furthest(jobs, after) <= _furthest(jobs, before)


def _furthest(jobs: Sequence[Job], plan: Decision) -> tuple[bool, float, str]:
    stopped = {stop.job for stop in plan.stops}
    return max(_standing(one) for one in jobs if one.id in stopped)


def _standing(one: Job) -> tuple[bool, float, str]:
    """The order in which gangs stop."""
    assert one.placement is not None
    return (not one.resumable, -one.placement.committed_s, one.id)


@settings(max_examples=60, deadline=None)
@given(TREES, GANGS)
def test_a_free_node_that_holds_the_owner_saves_everybody(
    tenants: tuple[VirtualCluster, ...], gangs: list[tuple[str, int, int, int, bool, bool]]
) -> None:
    """Where the owner starts on the new node at once, nobody is stopped, but for owners that no node would help: a
    limit of their organisation is reached."""
    jobs = jobs_of(gangs)
    before = decide(world(NODES, jobs, virtual_clusters=tenants), PLAIN, NOW_S)
    more = (*NODES, node("n9", gpus=64, cores=512, rack="a"))
    after = decide(world(more, jobs, virtual_clusters=tenants), PLAIN, NOW_S)
    owners = {stop.by for stop in before.stops}
    if owners and owners <= {one.job for one in after.starts}:  # else a limit leaves room for other jobs alone
        by_id, started = {one.id: one for one in jobs}, carried_out(jobs, Decision(starts=after.starts), NOW_S)
        assert all(is_limited(by_id[stop.by], TenantTree(tenants), started) for stop in after.stops)
