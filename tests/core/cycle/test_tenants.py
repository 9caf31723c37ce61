"""Virtual clusters under `coda` and under policies without shares: whose turn it is, and who is full."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coda.cache import PlannerCache
from coda.cycle import decide
from coda.model import Decision, Job, JobId, Node, WaitCode
from coda.model.job import StopCause, StopOrder
from coda.model.world import VirtualCluster
from coda.policy import Component, PolicyConfig
from tests.builders import job, node, quota, resources, running, with_starts, world

NOW_S = 1000.0
CODA = PolicyConfig(policy="coda")
PLAIN = PolicyConfig(policy="coda", without=frozenset({Component.ARRAYS, Component.TIME_SLICES, Component.SHORT_FIRST}))
ARRIVAL = PolicyConfig(policy="arrival")
NODES = (node("n", gpus=8, cores=64),)


def tenant(
    name: str,
    gpus: int | None = None,
    *,
    cores: int | None = None,
    weight: float = 1.0,
    may_borrow: bool = True,
) -> VirtualCluster:
    cpu_m = None if cores is None else cores * 1000
    return VirtualCluster(name=name, gpus=gpus, cpu_m=cpu_m, weight=weight, may_borrow=may_borrow)


def of(virtual_cluster: str, name: str, gpus: int = 1, *, user: str = "", queued_s: float = 1.0) -> Job:
    """A job of one core per GPU; without GPUs it has one core."""
    return job(
        name, gpus=gpus, cores=max(1, gpus), virtual_cluster=virtual_cluster, user=user or name, queued_s=queued_s
    )


def decided(
    jobs: list[Job],
    tenants: list[VirtualCluster],
    config: PolicyConfig = PLAIN,
    nodes: tuple[Node, ...] = NODES,
) -> Decision:
    return decide(world(nodes, jobs, virtual_clusters=tenants), config, NOW_S)


def started(plan: Decision) -> list[str]:
    return [start.job.removeprefix("team/") for start in plan.starts]


def test_who_stays_within_its_quota_goes_before_who_borrows() -> None:
    busy = [running(of("lab", "busy", 4), "n")]
    waiting = [of("lab", "first", 2, queued_s=1), of("firm", "later", 2, queued_s=2)]
    tenants = [tenant("lab", 4), tenant("firm", 4)]
    assert started(decided([*busy, *waiting], tenants)) == ["later", "first"]
    assert started(decided([*busy, *waiting], [])) == ["first", "later"], "else the user who holds nothing goes first"


@pytest.mark.parametrize("config", [CODA, PLAIN], ids=["slices", "no slices"])
def test_a_priority_takes_nothing_that_another_tenant_owns(config: PolicyConfig) -> None:
    busy = [running(of("lab", "busy", 4), "n")]
    urgent, owed = replace(of("lab", "urgent", 4, queued_s=1), priority=10_000), of("firm", "owed", 4, queued_s=2)
    assert started(decided([*busy, urgent, owed], [tenant("lab", 4), tenant("firm", 4)], config)) == ["owed"]
    assert started(decided([*busy, owed, urgent], [tenant("lab", 8), tenant("firm", 4)], CODA)) == ["urgent"]


def test_a_negative_priority_counts_for_whoever_borrows() -> None:
    later, first = replace(of("lab", "later", 8, queued_s=1), priority=-1), of("lab", "first", 8, queued_s=2)
    assert started(decided([later, first], [tenant("lab", 4)], CODA)) == ["first"]


def test_a_start_counts_at_once() -> None:
    waiting = [of("lab", f"l{n}", 2, queued_s=n) for n in range(3)] + [
        of("firm", f"f{n}", 2, queued_s=9) for n in (1, 2)
    ]
    plan = decided(waiting, [tenant("lab", 2), tenant("firm", 2)])
    assert started(plan)[:2] == ["l0", "f1"]


@pytest.mark.parametrize(("weights", "expected"), [((1.0, 1.0), 2), ((3.0, 1.0), 3), ((1.0, 3.0), 1)])
def test_what_is_borrowed_is_shared_by_weight(weights: tuple[float, float], expected: int) -> None:
    nodes = (node("n", gpus=4, cores=64),)
    waiting = [of(name, f"{name}{n}", queued_s=n) for name in ("lab", "firm") for n in range(4)]
    tenants = [tenant("lab", weight=weights[0]), tenant("firm", weight=weights[1])]
    plan = decided(waiting, tenants, nodes=nodes)
    assert sum(name.startswith("lab") for name in started(plan)) == expected


def test_users_share_what_their_tenant_has() -> None:
    busy = [running(of("lab", "busy", 1, user="ann"), "n")]
    waiting = [of("lab", "ann", user="ann", queued_s=1), of("lab", "bob", user="bob", queued_s=2)]
    assert started(decided([*busy, *waiting], [tenant("lab", 8)]))[0] == "bob"


def test_jobs_of_no_tenant_borrow_all_they_use() -> None:
    waiting = [of("", "nobody", queued_s=1), of("lab", "lab", queued_s=2)]
    assert started(decided(waiting, [tenant("lab", 1)])) == ["lab", "nobody"]


def being_stopped(held: Job) -> Job:
    """The same job, ordered to stop, while all of its ranks still run."""
    assert held.placement is not None
    order = StopOrder(cause=StopCause.RECLAIM, by=JobId(""), since_s=NOW_S)
    return replace(held, placement=replace(held.placement, stop=order))


@pytest.mark.parametrize("config", [CODA, PLAIN, ARRIVAL])
def test_what_is_deleted_is_charged_until_it_is_gone(config: PolicyConfig) -> None:
    """Else whoever may not borrow could double its quota: delete a pod that takes long to end, and start another."""
    cache = PlannerCache()
    nodes, tenants = (node("n", gpus=8, cores=64),), [tenant("lab", cores=2, may_borrow=False)]
    busy, waiting = running(of("lab", "busy", 0), "n"), [of("lab", "one", 0), of("lab", "two", 0)]

    def starts(jobs: list[Job], nodes: tuple[Node, ...] = nodes) -> list[str]:
        now = world(nodes, jobs, virtual_clusters=tenants)
        plan = decide(now, config, NOW_S, cache)
        assert plan.starts == decide(now, config, NOW_S).starts
        return started(plan)

    assert starts([busy, *waiting]) == ["one"]
    assert starts([being_stopped(busy), *waiting]) == ["one"]
    lost = (replace(nodes[0], schedulable=False), node("m", gpus=8, cores=64))
    assert starts([being_stopped(busy), *waiting], lost) == ["one", "two"], "what a lost node had may be made again"
    assert starts([being_stopped(busy), *waiting]) == ["one"], "the node is back, and so is the pod"
    assert starts(waiting) == ["one", "two"]


def test_whose_pods_are_ending_does_not_go_first() -> None:
    nodes = (node("n", gpus=2, cores=64),)
    ending = being_stopped(running(of("", "ending", 1, user="ann"), "n"))
    waiting = [of("", "ann", user="ann", queued_s=1), of("", "bob", user="bob", queued_s=2)]
    assert started(decided([ending, *waiting], [], nodes=nodes)) == ["bob"]


@pytest.mark.parametrize("config", [CODA, PLAIN, ARRIVAL])
def test_who_may_not_borrow_waits_with_a_reason(config: PolicyConfig) -> None:
    busy = [running(of("lab", "busy", 3), "n")]
    waiting = [of("lab", "fits", 1, queued_s=1), of("lab", "full", 2, queued_s=2), of("firm", "other", 2, queued_s=3)]
    plan = decided([*busy, *waiting], [tenant("lab", 4, may_borrow=False)], config)
    assert sorted(started(plan)) == ["fits", "other"]
    (refusal,) = plan.refusals
    assert (refusal.job, refusal.code) == ("team/full", WaitCode.VIRTUAL_CLUSTER_FULL)
    expected = "the whole gang needs 2 GPUs, and the quota of VirtualCluster lab, which may not borrow, leaves no GPU"
    assert refusal.message == expected
    assert refusal.reason.holders == ("team/busy", "team/fits")


def test_who_asks_for_more_than_the_whole_quota_is_told_so_and_of_nobody_to_end() -> None:
    """No job that ends helps it, be the quota its tenant's own or that of the organisation above."""
    tenants = [replace(tenant("lab"), parent="org"), tenant("org", 6, may_borrow=False)]
    waiting = [of("lab", "huge", 7, queued_s=1)]
    plan = decided([running(of("lab", "busy", 3), "n"), *waiting], [*tenants, tenant("firm", 4)], CODA)
    refusal = plan.refusals[0]
    assert (refusal.job, refusal.code, refusal.reason.holders) == ("team/huge", WaitCode.VIRTUAL_CLUSTER_FULL, ())
    assert refusal.message == (
        "the whole gang needs 7 GPUs, and all of the quota of VirtualCluster org, which may not borrow and lab is a "
        "part of, is 6 GPUs: ask for fewer GPUs or for a larger quota"
    )


def test_who_asks_for_more_than_a_whole_quota_further_up_is_told_of_that_one() -> None:
    """The nearest quota would be enough once a job ends; the one above it never is."""
    tenants = [tenant("org", 8, may_borrow=False), replace(tenant("red", 16, may_borrow=False), parent="org")]
    busy = [running(of("red", "busy", 8), "n")]
    plan = decided([*busy, of("red", "more", 12)], tenants, nodes=(node("n", gpus=16, cores=64),))
    (refusal,) = plan.refusals
    assert (refusal.code, refusal.reason.holders) == (WaitCode.VIRTUAL_CLUSTER_FULL, ())
    assert "all of the quota of VirtualCluster org, which may not borrow and red is a part of, is 8 GPUs" in (
        refusal.message
    )


def test_who_asks_for_more_than_the_whole_resource_quota_is_told_so_and_of_nobody_to_end() -> None:
    many = replace(of("lab", "huge", 2), quota={"pods": 1000}, replicas=4)
    small = quota("small", hard={"pods": 3000}, used={"pods": 1000})
    now = world((node("n", gpus=16, cores=64),), [running(of("lab", "busy", 1), "n"), many], quotas=[small])
    (refusal,) = decide(now, CODA, NOW_S).refusals
    assert (refusal.code, refusal.reason.holders) == (WaitCode.QUOTA_EXCEEDED, ())
    assert refusal.message == (
        "the whole gang needs 4 of pods, and all of ResourceQuota small is 3: ask for less or for a larger quota"
    )


def test_the_quota_of_cores_counts_cpu_jobs_only() -> None:
    busy = [running(of("lab", "gang", 8), "n")]
    waiting = [of("lab", "a", 0, queued_s=1), of("lab", "b", 0, queued_s=2)]
    plan = decided([*busy, *waiting], [tenant("lab", 8, cores=1, may_borrow=False)])
    assert started(plan) == ["a"]
    message = "the whole gang needs 1 core, and the quota of VirtualCluster lab, which may not borrow, leaves no core"
    assert [refusal.message for refusal in plan.refusals] == [message]


def test_an_owner_of_lent_cores_is_told_that_they_come_back_only_as_jobs_end() -> None:
    """Others are not: who holds too many itself, or waits while nobody does."""
    tenants, nodes = [tenant("web", 0, cores=4), tenant("etl", 0, cores=0)], (node("n", gpus=0, cores=4),)
    lent = "cores of its VirtualCluster are lent: they come back as jobs end, nobody is stopped for them"
    busy = [running(of("etl", f"e{number}", 0), "n") for number in range(4)]
    plan = decided([*busy, of("web", "w", 0), of("etl", "more", 0)], tenants, CODA, nodes)
    said = {str(refusal.job): refusal.message for refusal in plan.refusals}
    assert said["team/w"].endswith(f"too few cores are free; {lent}")
    assert lent not in said["team/more"]
    own = [running(of("web", f"w{number}", 0), "n") for number in range(3)]
    foreign = world(nodes, [*own, of("web", "w", 0)], virtual_clusters=tenants, foreign={"n": resources(cores=1)})
    assert lent not in decide(foreign, CODA, NOW_S).refusals[0].message


def test_an_owner_is_told_if_more_is_owned_than_the_cluster_has() -> None:
    """Nobody gives anything back then. Not who would borrow, nor who waits for something else."""
    tenants = [tenant("a", 8), tenant("b", 8)]
    beyond = "the top-level VirtualClusters own 16 GPUs together, and the cluster has 8 GPUs: what is owned is not"
    busy = [running(of("a", f"a{number}", 1), "n") for number in range(8)]
    plan = decided([*busy, of("b", "owner", 8), of("a", "more"), of("b", "cpu", 0)], tenants, CODA)
    said = {str(refusal.job): refusal.message for refusal in plan.refusals}
    assert f"too few GPUs are free; {beyond} always there" in said["team/owner"]
    assert beyond not in said["team/more"]
    enough = decided([*busy, of("b", "owner", 8)], [tenant("a", 4), tenant("b", 4)], CODA)
    assert all(beyond not in refusal.message for refusal in enough.refusals)


def test_a_smaller_quota_stops_nobody() -> None:
    plan = decided([running(of("lab", "busy", 4), "n")], [tenant("lab", 1, may_borrow=False)], CODA)
    assert (plan.stops, plan.starts) == ((), ())


def test_a_quota_that_grows_lets_in_who_waited() -> None:
    waiting = [of("lab", "a", 2)]
    assert started(decided(waiting, [tenant("lab", 1, may_borrow=False)])) == []
    assert started(decided(waiting, [tenant("lab", 2, may_borrow=False)])) == ["a"]


GANGS = st.lists(
    st.tuples(st.sampled_from(("lab", "firm", "")), st.sampled_from((0, 1, 2, 4)), st.integers(1, 2), st.booleans()),
    max_size=12,
)


@settings(max_examples=150, deadline=None)
@given(GANGS, st.integers(0, 8), st.integers(0, 8), st.sampled_from((CODA, PLAIN, ARRIVAL)))
def test_nobody_who_may_not_borrow_starts_beyond_its_quota(
    gangs: list[tuple[str, int, int, bool]], gpus: int, cores: int, config: PolicyConfig
) -> None:
    """A law: starts never take a tenant beyond its quota, and one that is beyond it starts nothing."""
    nodes = tuple(node(f"n{number}", gpus=4, cores=16) for number in range(3))
    jobs = []
    for number, (name, asked, ranks, is_running) in enumerate(gangs):
        built = replace(of(name, f"j{number}", asked, queued_s=number), replicas=ranks)
        jobs.append(running(built, *(f"n{number % 3}" for _ in range(ranks))) if is_running else built)
    tenants = [tenant("lab", gpus, cores=cores, may_borrow=False), tenant("firm", 2)]
    before = world(nodes, jobs, virtual_clusters=tenants)
    after = with_starts(before, decide(before, config, NOW_S).starts, config, NOW_S)
    for kind, own in (("gpus", gpus), ("cpu_m", cores * 1000)):
        held_before, held = (_held(one.jobs, kind) for one in (before, after))
        assert held <= max(own, held_before)


def _held(jobs: object, kind: str) -> int:
    return sum(
        getattr(one.request, kind) * one.replicas
        for one in jobs  # type: ignore[attr-defined]
        if one.virtual_cluster == "lab" and one.placement is not None and (kind == "gpus" or not one.request.gpus)
    )
