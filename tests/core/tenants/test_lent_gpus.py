"""Gangs that hold lent GPUs stop for tenants within their quota: for whom, whose, and when not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coda.cache import PlannerCache
from coda.cycle import decide
from coda.cycle.decide import decide_around
from coda.model import Decision, Job, Node, WaitCode
from coda.model.constraints import NodeConstraints
from coda.model.job import StopCause
from coda.model.world import VirtualCluster, World
from coda.policy import Component, PolicyConfig
from coda.policy.config import FairShareConfig
from coda.promises import PromiseBook
from tests.builders import job, node, rack, resources, running, world

NOW_S = 10_000.0
CODA = PolicyConfig(policy="coda")
TREE = (
    VirtualCluster(name="org", gpus=16),
    VirtualCluster(name="red", gpus=8, parent="org"),
    VirtualCluster(name="blue", gpus=8, parent="org"),
    VirtualCluster(name="firm", gpus=16),
)


def of(tenant: str, name: str, gpus: int = 8, *, replicas: int = 1, queued_s: float = 1.0, cores: int = 8) -> Job:
    return job(
        name,
        namespace=tenant or "none",
        gpus=gpus,
        cores=cores,
        replicas=replicas,
        virtual_cluster=tenant,
        user=tenant,
        queued_s=queued_s,
    )


def runs(one: Job, *nodes: str, since_s: float = 0.0) -> Job:
    placed = running(one, *nodes)
    assert placed.placement is not None
    return replace(placed, placement=replace(placed.placement, committed_s=since_s))


def nodes(count: int) -> tuple[Node, ...]:
    return tuple(node(f"n{number}", gpus=8, cores=64) for number in range(count))


def world_of(jobs: list[Job], count: int, tenants: tuple[VirtualCluster, ...] = TREE) -> World:
    return world(nodes(count), jobs, virtual_clusters=tenants)


def decided(now: World, config: PolicyConfig = CODA, book: PromiseBook | None = None) -> Decision:
    plan = decide(now, config, NOW_S, book=book)
    if book is None:
        assert decide(now, config, NOW_S, PlannerCache()) == plan
    return plan


def stopped(plan: Decision) -> list[str]:
    assert all(stop.cause is StopCause.FAIR_SHARE for stop in plan.stops)
    return [stop.job for stop in plan.stops]


def full(*jobs: Job) -> list[Job]:
    """The jobs, each alone on a node of its own, one started after the other."""
    return [runs(one, f"n{number}", since_s=float(number)) for number, one in enumerate(jobs)]


def test_the_newest_gang_on_lent_gpus_stops_for_an_owner() -> None:
    held = full(of("firm", "f1"), of("firm", "f2"), of("firm", "f3"), of("firm", "f4"))
    plan = decided(world_of([*held, of("red", "owner")], 4))
    assert stopped(plan) == ["firm/f4"]
    assert [stop.by for stop in plan.stops] == ["red/owner"]


def test_whole_gangs_stop_and_no_more_than_needed() -> None:
    held = [runs(of("firm", "wide", replicas=2), "n0", "n1", since_s=5), *full(of("firm", "own"))[:0]]
    held += [runs(of("firm", "small"), "n2", since_s=1), runs(of("blue", "b"), "n3", since_s=9)]
    plan = decided(world_of([*held, of("red", "owner", replicas=1)], 4))
    assert stopped(plan) == ["firm/wide"]


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        pytest.param(1, ["firm/f2"], id="one rank fits nowhere: no idle GPU is for it"),
        pytest.param(2, [], id="a whole node is idle: 80 % of what the job could use are in use"),
    ],
)
def test_nobody_stops_while_enough_gpus_are_idle_that_the_job_could_use(ranks: int, expected: list[str]) -> None:
    """Five nodes of 8. Three are full, one has five idle GPUs, one is full or idle."""
    held = full(of("firm", "f0"), of("firm", "f1"), of("firm", "f2"))
    held.append(runs(of("", "rest", 3), "n3", since_s=-1))
    if ranks == 1:
        held.append(runs(of("", "more", 8), "n4", since_s=-1))
    tenants = (VirtualCluster(name="org", gpus=16), VirtualCluster(name="firm", gpus=16))
    plan = decided(world_of([*held, of("org", "owner", replicas=ranks)], 5, tenants))
    assert stopped(plan) == expected
    (refusal,) = plan.refusals
    note = "gangs give it back once at most 10% of 40 GPUs are idle for ranks like its own"
    assert refusal.message.endswith(note) == (ranks == 2)


def test_the_rest_of_each_node_counts_as_in_use_for_who_cannot_use_it() -> None:
    """Six GPUs of each node are in use, which is 75 %. An owner of two GPUs starts; one of four takes back."""
    held = [runs(of("firm", f"f{number}", 6), f"n{number}", since_s=number) for number in range(4)]
    assert stopped(decided(world_of([*held, of("red", "owner", 4)], 4))) == ["firm/f3"]
    plan = decided(world_of([*held, of("red", "owner", 2)], 4))
    assert (stopped(plan), len(plan.starts)) == ([], 1)


def test_nodes_that_are_not_for_the_job_do_not_count() -> None:
    """Half of the cluster is idle, and refuses the owner's pods."""
    held = full(of("firm", "f1"), of("firm", "f2"))
    idle = tuple(node(f"other{number}", gpus=8, cores=64, labels={"kind": "other"}) for number in range(2))
    here = tuple(node(f"n{number}", gpus=8, cores=64, labels={"kind": "this"}) for number in range(2))
    tenants = (VirtualCluster(name="org", gpus=8), VirtualCluster(name="firm", gpus=8))
    picky = replace(of("org", "owner"), constraints=NodeConstraints(selector={"kind": "this"}))
    assert stopped(decided(world((*here, *idle), [*held, picky], virtual_clusters=tenants))) == ["firm/f2"]


def test_idle_gpus_of_nodes_that_take_no_pods_do_not_count() -> None:
    held = full(of("firm", "f1"), of("firm", "f2"), of("firm", "f3"))
    cordoned = replace(node("n9", gpus=8, cores=64), schedulable=False)
    now = world((*nodes(3), cordoned), [*held, of("red", "owner")], virtual_clusters=TREE)
    assert stopped(decided(now)) == ["firm/f3"]


def test_a_team_takes_back_from_its_own_organisation_first_of_all() -> None:
    """The organisation holds no more than its own, so only the sibling that borrows is stopped."""
    held = full(of("blue", "b1"), of("blue", "b2"), of("firm", "f1"), of("firm", "f2"))
    assert stopped(decided(world_of([*held, of("red", "owner")], 4))) == ["blue/b2"]


def test_one_organisation_takes_nothing_from_another_within_its_quota() -> None:
    """Blue borrows from red inside the organisation: that is no business of the firm."""
    held = full(of("blue", "b1"), of("blue", "b2"), of("firm", "f1"), of("", "n1"))
    held[-1] = runs(of("firm", "f2", 6), "n3", since_s=3)
    waiting = of("firm", "f3", 2)
    now = world_of([*held, runs(of("", "rest", 2), "n3", since_s=0), waiting], 4)
    assert stopped(decided(now)) == ["none/rest"], "who has no tenant borrows everything"
    now = world_of([*held, runs(of("red", "rest", 2), "n3", since_s=0), waiting], 4)
    assert stopped(decided(now)) == ["blue/b2"], "now the organisation borrows, and blue does in it"


def test_nobody_within_its_own_is_stopped_for_a_sibling_of_an_organisation_that_borrows() -> None:
    tenants = (*TREE, VirtualCluster(name="lab", gpus=8))
    held = full(of("blue", "b1"), of("firm", "f1"), of("firm", "f2"), of("lab", "l1"))
    assert stopped(decided(world_of([*held, of("red", "owner")], 4, tenants))) == []


def test_a_tenant_gives_back_only_what_it_borrowed() -> None:
    """Two gangs of the firm would have to stop, and after the first it holds no more than its own."""
    tenants = (VirtualCluster(name="org", gpus=16), VirtualCluster(name="firm", gpus=8))
    held = full(of("firm", "f1"), of("firm", "f2"))
    assert stopped(decided(world_of([*held, of("org", "wide", 8, replicas=2)], 2, tenants))) == []
    assert stopped(decided(world_of([*held, of("org", "one", 8)], 2, tenants))) == ["firm/f2"]


def test_who_would_borrow_stops_nobody() -> None:
    held = full(of("firm", "f1"), of("firm", "f2"), of("firm", "f3"), of("red", "r1"))
    assert stopped(decided(world_of([*held, of("red", "more")], 4))) == []


def test_a_gang_is_spared_until_it_has_run_for_the_minimum_time() -> None:
    held = [
        runs(of("firm", f"f{number}"), f"n{number}", since_s=NOW_S - 100 - number) for number in range(3)
    ]  # the newest is f0
    plan = decided(world_of([*held, of("red", "owner")], 3))
    assert stopped(plan) == []
    (refusal,) = plan.refusals
    assert refusal.code is WaitCode.RECLAIM_DELAYED
    said = "the GPUs that it needs are its VirtualCluster's own and lent to 1 job, which has not run for the minimum"
    assert refusal.message.startswith(said)
    assert plan.wake_s == NOW_S + 498, "the first whose time ends"
    older = replace(CODA, fair_share=FairShareConfig(min_runtime_s=102))
    assert stopped(decided(world_of([*held, of("red", "owner")], 3), older)) == ["firm/f2"]


def test_who_resumes_stops_before_who_does_not() -> None:
    held = full(of("firm", "f1"), of("firm", "f2"), of("firm", "f3"))
    held[0] = replace(held[0], resumable=True)
    without = replace(CODA, without=frozenset({Component.TIME_SLICES}))
    assert stopped(decided(world_of([*held, of("red", "owner")], 3), without)) == ["firm/f1"]
    only = replace(without, fair_share=FairShareConfig(only_resumable=True))
    held[0] = replace(held[0], resumable=False)
    assert stopped(decided(world_of([*held, of("red", "owner")], 3), only)) == []


def test_nobody_stops_if_the_owner_would_not_fit_even_then() -> None:
    """For want of GPUs in one rack, or of cores that others hold."""
    racks = (*rack("a", 1), *rack("b", 1), *rack("c", 1))
    held = [runs(of("firm", f"f{name}"), f"{name}-0", since_s=number) for number, name in enumerate("abc")]
    gang = replace(of("red", "gang", 4, replicas=2), within="rack")
    now = world(racks, [*held, gang], virtual_clusters=TREE)
    assert stopped(decided(now)) == ["firm/fc"], "two ranks of four GPUs fit on one node, in one rack"
    wide = replace(of("org", "wide", 8, replicas=2), within="rack")
    tenants = (VirtualCluster(name="org", gpus=16), VirtualCluster(name="firm", gpus=0))
    assert stopped(decided(world(racks, [*held, wide], virtual_clusters=tenants))) == []
    apart = replace(wide, within=None)
    assert stopped(decided(world(racks, [*held, apart], virtual_clusters=tenants))) == ["firm/fb", "firm/fc"]
    busy = [runs(of("", f"cpu{number}", 0, cores=41), f"n{number}") for number in range(3)]
    held = full(of("firm", "f1", cores=4), of("firm", "f2", cores=4), of("firm", "f3", cores=4))
    assert stopped(decided(world_of([*busy, *held, of("red", "owner", cores=28)], 3))) == []


def test_what_is_stopped_for_an_owner_is_for_nobody_else() -> None:
    """A job of higher priority, and one that waits longer, would take it; the owner goes first in the next cycle."""
    held = full(of("blue", "b1"), of("blue", "b2"), of("firm", "f1"))
    owner = of("red", "owner", queued_s=50)
    rival = replace(of("firm", "rival", 8, queued_s=2), priority=9)
    tenants = (*TREE[:3], VirtualCluster(name="firm", gpus=24))
    book = PromiseBook()
    plan = decided(world_of([*held, owner, rival], 3, tenants), book=book)
    assert stopped(plan) == ["blue/b2"]
    after = [held[0], held[2], of("blue", "b2"), owner, rival]
    plan = decided(world_of(after, 3, tenants), book=book)
    assert [start.job for start in plan.starts] == ["red/owner"]


def test_the_budget_of_a_minute_holds() -> None:
    config = replace(CODA, fair_share=FairShareConfig(stops_per_minute=1, min_runtime_s=0))
    book = PromiseBook()
    held = full(of("firm", "f1"), of("firm", "f2"), of("firm", "f3"), of("firm", "f4"))
    first = decide(world_of([*held, of("red", "owner")], 4), config, NOW_S, book=book)
    assert stopped(first) == ["firm/f4"]
    held[3] = runs(of("red", "owner"), "n3", since_s=NOW_S)
    again = world_of([*held, of("blue", "other")], 4)
    plan = decide(again, config, NOW_S + 10, book=book)
    assert stopped(plan) == []
    assert plan.wake_s == NOW_S + 60
    assert "too many jobs stopped for others in the last minute" in plan.refusals[0].message
    assert stopped(decide(again, config, NOW_S + 60, book=book)) == ["firm/f3"]


def test_a_stop_does_not_count_against_itself_where_capacity_is_held_back() -> None:
    """Then it is decided twice, and both must agree."""
    config = replace(CODA, fair_share=FairShareConfig(stops_per_minute=1, min_runtime_s=0))
    held = [*full(of("firm", "f1"), of("firm", "f2"), of("firm", "f3")), runs(of("firm", "f4", 6), "n3", since_s=-1.0)]
    now = world_of([*held, of("red", "owner")], 4)
    plan = decide_around({"n3": resources(gpus=1, cores=1)}, now, config, NOW_S, book=PromiseBook())
    assert stopped(plan) == ["firm/f3"]


def test_an_overdue_owner_for_whom_gangs_stopped_starts_once() -> None:
    late_s = NOW_S + 100 * 3600
    owner, book = of("red", "owner"), PromiseBook()
    book.fair_shares.note(owner.id, (), late_s)
    plan = decide(world_of([owner], 2), CODA, late_s, book=book)
    assert [start.job for start in plan.starts] == ["red/owner"]


@pytest.mark.parametrize("config", [replace(CODA, fair_share=FairShareConfig(from_use=None)), PolicyConfig()])
def test_it_can_be_switched_off_and_other_policies_know_nothing_of_it(config: PolicyConfig) -> None:
    held = full(of("firm", "f1"), of("firm", "f2"), of("firm", "f3"))
    assert decided(world_of([*held, of("red", "owner")], 3), config).stops == ()


def test_time_slices_take_nothing_from_a_tenant_within_its_own() -> None:
    """A job of another tenant, served little, would have stopped it."""
    held = [replace(runs(of("red", "owner"), "n0"), resumable=True)]
    fresh = replace(of("firm", "fresh"), resumable=True)
    assert decided(world_of([*held, fresh], 1)).stops == ()
    assert [stop.job for stop in decided(world_of([*held, fresh], 1, ())).stops] == ["red/owner"]
    mate = replace(of("red", "fresh"), resumable=True)
    assert [stop.job for stop in decided(world_of([*held, mate], 1)).stops] == ["red/owner"], "its own may"


def test_a_gang_that_is_ending_is_not_counted_twice() -> None:
    """Its tenant still holds what it uses, but once it is gone the tenant is within its own."""
    from tests.builders import stopping

    held = full(of("firm", "f1"), of("firm", "f2"), of("firm", "f3"))
    ending = stopping(held[2], StopCause.FAIR_SHARE)
    plan = decided(world_of([*held[:2], ending, of("red", "owner"), of("blue", "other", 8)], 3))
    assert stopped(plan) == []


def test_jobs_say_what_is_wrong_with_the_tree() -> None:
    tenants = (VirtualCluster(name="red", gpus=8, parent="gone"), VirtualCluster(name="firm", gpus=16))
    held = full(of("firm", "f1"), of("firm", "f2"))
    cache = PlannerCache()
    waiting = [of("red", "owner"), of("firm", "other")]
    plan = decide(world_of([*held, *waiting], 2, tenants), CODA, NOW_S, cache)
    said = {str(refusal.job): refusal.message for refusal in plan.refusals}
    trouble = "VirtualCluster red counts as a top-level one: its parent gone does not exist"
    assert said["red/owner"].endswith(trouble)
    assert trouble not in said["firm/other"]
    mended = (*tenants, VirtualCluster(name="gone", gpus=8))
    plan = decide(world_of([*held, *waiting], 2, mended), CODA, NOW_S, cache)
    assert all(trouble not in refusal.message for refusal in plan.refusals)
    plan = decide(world_of([*held, *waiting], 2, tenants), CODA, NOW_S, cache)
    assert said == {refusal.job: refusal.message for refusal in plan.refusals}, "also for a job that had another reason"


def test_a_limit_holds_on_every_level() -> None:
    tenants = (
        VirtualCluster(name="org", gpus=8, may_borrow=False),
        VirtualCluster(name="red", gpus=4, parent="org"),
        VirtualCluster(name="blue", gpus=4, parent="org"),
    )
    held = [runs(of("red", "r1", 6), "n0")]
    plan = decided(world_of([*held, of("blue", "fits", 2), of("blue", "more", 3, queued_s=2)], 4, tenants))
    assert [start.job for start in plan.starts] == ["blue/fits"]
    (refusal,) = plan.refusals
    assert refusal.code is WaitCode.VIRTUAL_CLUSTER_FULL
    of_org = "the quota of VirtualCluster org, which may not borrow and blue is a part of, leaves no GPU"
    assert refusal.message == f"the whole gang needs 3 GPUs, and {of_org}"
    assert set(refusal.reason.holders) == {"red/r1", "blue/fits"}


FULL_ORG = (
    VirtualCluster(name="org", gpus=16, may_borrow=False),
    VirtualCluster(name="red", gpus=8, parent="org"),
    VirtualCluster(name="blue", gpus=8, parent="org"),
)


@pytest.mark.parametrize("count", [2, 4], ids=["the pool is full", "half of the pool is idle"])
def test_a_team_takes_back_in_a_full_organisation_that_may_not_borrow(count: int) -> None:
    held = full(of("blue", "b1"), of("blue", "b2"))
    owner, book = of("red", "owner"), PromiseBook()
    plan = decided(world_of([*held, owner], count, FULL_ORG), book=book)
    assert stopped(plan) == ["blue/b2"]
    plan = decided(world_of([held[0], of("blue", "b2"), owner], count, FULL_ORG), book=book)
    assert [start.job for start in plan.starts] == ["red/owner"]


def test_within_a_limit_whole_gangs_stop_until_it_leaves_enough_and_no_others() -> None:
    """All but one of the GPUs of the limit are blue's. Red needs four, so three must go; an idle node is there."""
    tenants = (replace(FULL_ORG[0], gpus=8), *(replace(one, gpus=4) for one in FULL_ORG[1:]))
    held = [runs(of("blue", f"b{number}", 1), "n0", since_s=number) for number in range(7)]
    plan = decided(world_of([*held, of("red", "owner", 4)], 3, tenants))
    assert stopped(plan) == ["blue/b4", "blue/b5", "blue/b6"]


def test_while_gangs_stop_within_a_limit_nobody_else_does() -> None:
    from tests.builders import stopping

    held = full(of("blue", "b1"), of("blue", "b2"))
    ending = stopping(held[1], StopCause.FAIR_SHARE)
    assert stopped(decided(world_of([held[0], ending, of("red", "owner")], 4, FULL_ORG))) == []


def test_nobody_takes_back_beyond_a_limit_by_a_gang_of_another_organisation() -> None:
    held = full(of("red", "r1"), of("blue", "b1"), of("firm", "f1"))
    tenants = (*FULL_ORG, VirtualCluster(name="firm", gpus=0))
    plan = decided(world_of([*held, of("red", "more", queued_s=5)], 3, tenants))
    assert stopped(plan) == []
    assert plan.refusals[0].code is WaitCode.VIRTUAL_CLUSTER_FULL


def test_a_full_organisation_says_until_when_gangs_are_spared() -> None:
    held = [runs(of("blue", f"b{number}"), f"n{number}", since_s=NOW_S - 100) for number in range(2)]
    plan = decided(world_of([*held, of("red", "owner")], 2, FULL_ORG))
    assert (stopped(plan), plan.wake_s) == ([], NOW_S + 500)
    assert plan.refusals[0].code is WaitCode.RECLAIM_DELAYED


def test_no_gang_stops_on_a_node_that_is_kept_for_a_promise() -> None:
    """The newest gang on lent GPUs ends soon, and its node is promised to a job that has waited for long."""
    late_s = NOW_S + 100 * 3600
    held = [runs(of("firm", f"f{number}"), f"n{number}", since_s=late_s - 5000 + number) for number in range(3)]
    held[2] = replace(held[2], run_limit_s=5100.0)
    waits = [of("", "promised", queued_s=1.0), of("red", "owner", queued_s=late_s - 60)]
    plan = decide(world_of([*held, *waits], 3), CODA, late_s, book=PromiseBook())
    assert [(stop.job, stop.by) for stop in plan.stops] == [("firm/f1", "red/owner")]


def test_what_is_left_goes_to_siblings_first_and_then_upwards() -> None:
    tenants = (*TREE, VirtualCluster(name="lab", gpus=8))
    held = full(of("blue", "b1"), of("firm", "f1"), of("firm", "f2"))
    waiting = [of("firm", "borrows", queued_s=1), of("blue", "sibling", queued_s=2), of("lab", "owner", queued_s=3)]
    order = []
    for _ in range(3):
        plan = decided(world_of([*held, *waiting], 4, tenants))
        order.append(plan.starts[0].job)
        waiting = [one for one in waiting if one.id != order[-1]]
    assert order == ["lab/owner", "blue/sibling", "firm/borrows"]
