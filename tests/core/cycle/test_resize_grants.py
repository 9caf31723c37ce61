"""Wishes for cores of running jobs: what is granted, refused, or left open."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coda.cycle import answer_from_denial, answer_from_grant, decide
from coda.model import Decision, Job, Phase, World
from coda.model.capacity import free_by_node
from coda.model.decision import Denial, DenialCode, Grant, StopCause
from coda.model.job import TAKEN_BACK, Wish, WishAnswer
from coda.model.live_placement import growth_by_node, is_resizing, open_wish, withheld_growth
from coda.policy import ArraysConfig, PolicyConfig
from tests.builders import job, node, planned, quota, resources, running, stopping, world

NOW_S = 100.0


def wishing(one: Job, cores: int, *, sequence: int = 1, since_s: float = 90.0, deadline_s: float = 150.0) -> Job:
    wish = Wish(sequence=sequence, cores=cores, since_s=since_s, deadline_s=deadline_s)
    return replace(one, wish=wish)


def answered(one: Job, answer: WishAnswer) -> Job:
    assert one.placement is not None
    return replace(one, placement=replace(one.placement, answer=answer))


def decided(snapshot: World, *, policy: str = "arrival") -> Decision:
    return decide(snapshot, PolicyConfig(policy=policy), NOW_S)


def grant_of(one: Job, cores: int, sequence: int = 1) -> Grant:
    return Grant(job=one.id, attempt=one.attempt, sequence=sequence, cores=cores)


TRAINING = running(job("training", gpus=4, cores=8), "n1")
PAIR = running(job("pair", replicas=2, gpus=4, cores=8), "n1", "n2")


def test_growth_is_granted_where_the_node_has_the_cores() -> None:
    wanting = wishing(TRAINING, 12)
    assert decided(world([node("n1", cores=12)], [wanting])).grants == (grant_of(wanting, 12),)


def test_growth_is_refused_with_what_could_be_had_instead() -> None:
    plan = decided(world([node("n1", cores=10)], [wishing(TRAINING, 12)]))
    assert plan.grants == ()
    assert plan.denials == (
        Denial(
            job=TRAINING.id,
            attempt=1,
            sequence=1,
            code=DenialCode.INSUFFICIENT_CPU,
            message="needs 4 more cores on node n1, which has 2 free cores",
            most_cores=10,
        ),
    )


def test_no_rank_of_a_gang_grows_where_one_cannot() -> None:
    plan = decided(world([node("n1", cores=48), node("n2", cores=9)], [wishing(PAIR, 12)]))
    assert plan.grants == ()
    assert [(denial.code, denial.most_cores) for denial in plan.denials] == [(DenialCode.INSUFFICIENT_CPU, 9)]


def test_ranks_on_one_node_need_their_growth_together() -> None:
    both = wishing(running(job("both", replicas=2, gpus=4, cores=8), "n1", "n1"), 12)
    assert decided(world([node("n1", cores=23)], [both])).denials[0].most_cores == 11
    assert decided(world([node("n1", cores=24)], [both])).grants == (grant_of(both, 12),)


def test_a_shrink_is_granted_on_a_full_node() -> None:
    wanting = wishing(TRAINING, 1)
    assert decided(world([node("n1", cores=8)], [wanting])).grants == (grant_of(wanting, 1),)


def test_a_shrink_is_granted_though_its_node_is_gone() -> None:
    wanting = wishing(TRAINING, 1)
    assert decided(world([node("n2")], [wanting])).grants == (grant_of(wanting, 1),)


def test_growth_on_a_node_that_is_gone_is_refused() -> None:
    assert decided(world([node("n2")], [wishing(TRAINING, 9)])).denials[0].code is DenialCode.NODE_GONE


def test_the_older_wish_gets_the_last_cores() -> None:
    young = wishing(running(job("a", gpus=1, cores=4), "n1"), 8, since_s=95)
    old = wishing(running(job("b", gpus=1, cores=4), "n1"), 8, since_s=90)
    plan = decided(world([node("n1", cores=12)], [young, old]))
    assert plan.grants == (grant_of(old, 8),)
    assert [denial.job for denial in plan.denials] == [young.id]


def test_a_wish_goes_before_a_start_that_wants_the_same_cores() -> None:
    wanting = wishing(TRAINING, 12)
    plan = decided(world([node("n1", cores=12)], [wanting, job("waiting", cores=4)]))
    assert plan.grants == (grant_of(wanting, 12),)
    assert plan.starts == ()


def test_a_wish_whose_deadline_has_passed_is_refused_even_where_it_fits() -> None:
    plan = decided(world([node("n1")], [wishing(TRAINING, 12, deadline_s=99.0)]))
    assert [denial.code for denial in plan.denials] == [DenialCode.EXPIRED]


def test_foreign_pods_in_flight_postpone_growth_that_they_may_take() -> None:
    plan = decided(world([node("n1", cores=12)], [wishing(TRAINING, 12)], in_flight={"n1": resources(cores=1)}))
    assert (plan.grants, plan.denials, plan.postponed) == ((), (), (TRAINING.id,))


def test_growth_takes_a_resource_quota_into_account() -> None:
    rationed = replace(TRAINING, quota={"requests.cpu": 8000}, wish=wishing(TRAINING, 12).wish)
    limit = quota(hard={"requests.cpu": 11_000}, used={"requests.cpu": 8000})
    denial = decided(world([node("n1")], [rationed], quotas=[limit])).denials[0]
    assert (denial.code, denial.most_cores) == (DenialCode.QUOTA_EXCEEDED, 11)
    assert denial.message == "needs 4 more of requests.cpu, and ResourceQuota quota leaves 3"


def test_growth_that_was_granted_counts_against_a_quota_before_its_pods_do() -> None:
    answer = answer_from_grant(grant_of(TRAINING, 12), NOW_S, PolicyConfig())
    growing = replace(answered(wishing(TRAINING, 12), answer), quota={"requests.cpu": 8000})
    waiting = job("waiting", gpus=1, cores=2, quota={"requests.cpu": 2000})
    limit = quota(hard={"requests.cpu": 13_000}, used={"requests.cpu": 8000})
    snapshot = world([node("n1")], [growing, waiting], quotas=[limit])
    assert [refusal.code.value for refusal in decided(snapshot).refusals] == ["QuotaExceeded"]
    over = replace(snapshot, jobs=(replace(growing, resized=1), waiting))
    assert [start.job for start in decided(over).starts] == [waiting.id]


@pytest.mark.parametrize(
    "silent",
    [
        pytest.param(wishing(job(), 8), id="it waits"),
        pytest.param(wishing(planned(job(), "n1", phase=Phase.STARTING), 8), id="it starts"),
        pytest.param(replace(wishing(TRAINING, 12), attempt=2), id="it is of an attempt before"),
    ],
)
def test_a_job_that_does_not_run_wishes_in_vain(silent: Job) -> None:
    plan = decided(world([node("n1")], [silent]))
    assert (plan.grants, plan.denials) == ((), ())


def test_a_granted_wish_withholds_its_growth_until_the_resize_has_ended() -> None:
    wanting = wishing(PAIR, 12)
    answer = answer_from_grant(grant_of(wanting, 12), NOW_S, PolicyConfig(resize_deadline_s=20))
    assert answer.deadline_s == 120
    granted = answered(wanting, answer)
    snapshot = world([node("n1"), node("n2")], [granted])
    assert is_resizing(granted)
    assert [free.cpu_m for free in free_by_node(snapshot).values()] == [36_000, 36_000]
    over = replace(granted, resized=1)
    assert [free.cpu_m for free in free_by_node(replace(snapshot, jobs=(over,))).values()] == [40_000, 40_000]


def test_a_shrink_withholds_what_it_frees_until_every_rank_has_shrunk() -> None:
    """One node may refuse it: then the other ranks get theirs back."""
    answer = answer_from_grant(grant_of(PAIR, 6), NOW_S, PolicyConfig())
    half = replace(answered(wishing(PAIR, 6), answer), pod_cpu_m={0: 6000, 1: 8000})
    assert withheld_growth(half) == {"n1": 2000}
    done = replace(half, cpus_per_replica=6, request=resources(gpus=4, cores=6), pod_cpu_m={0: 6000, 1: 6000})
    assert withheld_growth(replace(done, resized=1)) == {}
    assert withheld_growth(answered(half, replace(answer, code=TAKEN_BACK))) == {}  # a CPU job waits for them


def test_growth_that_ended_stays_withheld_until_the_pods_are_seen_with_it() -> None:
    answer = answer_from_grant(grant_of(PAIR, 12), NOW_S, PolicyConfig())
    grown = resources(gpus=4, cores=12)
    told = replace(answered(wishing(PAIR, 12), answer), resized=1, cpus_per_replica=12, request=grown)
    used = {"n1": grown, "n2": resources(gpus=4, cores=8)}
    ahead = replace(told, bound=frozenset({0, 1}), pod_cpu_m={1: 8000})
    snapshot = replace(world([node("n1"), node("n2")], [ahead]), used=used)
    assert [free.cpu_m for free in free_by_node(snapshot).values()] == [36_000, 36_000]
    foreign = job("cpu", cores=37)
    assert decided(replace(snapshot, jobs=(ahead, foreign))).starts == ()
    wanting = wishing(ahead, 48, sequence=2)
    assert growth_by_node(wanting, 48) == {"n1": 36_000, "n2": 36_000}
    assert decided(replace(snapshot, jobs=(wanting,))).grants == (grant_of(PAIR, 48, 2),)


@pytest.mark.parametrize("phase", [Phase.SUSPENDED, Phase.RESTARTING])
def test_growth_stays_withheld_while_pods_that_may_get_it_live(phase: Phase) -> None:
    answer = answer_from_grant(grant_of(PAIR, 12), NOW_S, PolicyConfig())
    leaving = replace(answered(wishing(PAIR, 12), answer), phase=phase)
    assert withheld_growth(leaving) == {"n1": 4000, "n2": 4000}
    assert withheld_growth(replace(leaving, bound=frozenset({1}))) == {"n2": 4000}
    assert withheld_growth(replace(leaving, gone=frozenset({0, 1}))) == {}
    assert withheld_growth(replace(leaving, attempt=2)) == {}


def test_a_rank_that_ended_with_fewer_cores_withholds_nothing() -> None:
    ended = replace(PAIR, cpus_per_replica=12, request=resources(gpus=4, cores=12), pod_cpu_m={1: 8000}, resized=1)
    assert withheld_growth(ended) == {"n2": 4000}
    assert withheld_growth(replace(ended, gone=frozenset({1}))) == {}
    assert growth_by_node(replace(ended, gone=frozenset({1})), 14) == {"n1": 2000}


def test_what_a_pod_counts_with_already_is_not_withheld_again() -> None:
    answer = answer_from_grant(grant_of(PAIR, 12), NOW_S, PolicyConfig())
    half = replace(answered(wishing(PAIR, 12), answer), pod_cpu_m={0: 12_000})
    assert growth_by_node(half, 12) == {"n2": 4000}


def test_the_next_wish_waits_until_the_last_resize_has_ended() -> None:
    granted = answered(
        wishing(TRAINING, 10, sequence=2), answer_from_grant(grant_of(TRAINING, 12), NOW_S, PolicyConfig())
    )
    assert open_wish(granted) is None
    assert open_wish(replace(granted, resized=1)) == granted.wish


def test_an_answered_wish_is_not_answered_again() -> None:
    snapshot = world([node("n1", cores=8)], [wishing(TRAINING, 12)])
    refused = answered(wishing(TRAINING, 12), answer_from_denial(decided(snapshot).denials[0], NOW_S))
    assert decided(replace(snapshot, jobs=(refused,))) == Decision()


# --- where the policy has arrays --------------------------------------------------------------------------------------


def borrower(name: str, cores: float) -> Job:
    one = running(job(name, gpus=0, cores=cores), "n1")
    assert one.placement is not None
    return replace(one, placement=replace(one.placement, borrows=True))


def test_growth_takes_borrowed_cores_back_and_is_granted_once_they_are_free() -> None:
    wanting, lodger = wishing(TRAINING, 12), borrower("lodger", 4)
    plan = decided(world([node("n1", cores=12)], [wanting, lodger]), policy="coda")
    assert [(stop.job, stop.cause, stop.by) for stop in plan.stops] == [(lodger.id, StopCause.RECLAIM, wanting.id)]
    assert (plan.grants, plan.denials, plan.postponed) == ((), (), (wanting.id,))
    assert decided(world([node("n1", cores=12)], [wanting]), policy="coda").grants == (grant_of(wanting, 12),)


def test_nothing_starts_in_the_room_that_stops_leave_for_growth() -> None:
    wanting, lodger = wishing(TRAINING, 12), borrower("lodger", 2)
    waiting = job("waiting", gpus=1, cores=1)
    plan = decided(world([node("n1", cores=12)], [wanting, lodger, waiting]), policy="coda")
    assert [stop.job for stop in plan.stops] == [lodger.id]
    assert plan.starts == ()


def test_nobody_is_stopped_for_growth_that_stops_would_not_make_possible() -> None:
    plan = decided(world([node("n1", cores=12)], [wishing(TRAINING, 16), borrower("lodger", 4)]), policy="coda")
    assert plan.stops == ()
    assert [denial.code for denial in plan.denials] == [DenialCode.INSUFFICIENT_CPU]


def test_growth_waits_for_the_room_that_stopped_jobs_still_have_and_nobody_else_gets_it() -> None:
    wanting, leaver = wishing(TRAINING, 12), stopping(borrower("lodger", 4), StopCause.RECLAIM)
    waiting = job("waiting", gpus=1, cores=1)
    there = world([node("n1", cores=12)], [wanting, leaver, waiting], leaving={"n1": leaver.request})
    plan = decided(there, policy="coda")
    assert (plan.grants, plan.denials, plan.postponed) == ((), (), (wanting.id,))
    assert (plan.stops, plan.starts) == ((), ())


def trying(one: Job, cores: int, *, held: int) -> Job:
    """The running job whose search tries fewer cores than it began with."""
    request = replace(one.request, cpu_m=cores * 1000)
    return replace(one, searching=True, held_cores=held, cpus_per_replica=cores, request=request)


TRYING = trying(TRAINING, 6, held=8)


def test_what_a_search_tries_without_is_withheld_from_starts_and_from_others_wishes() -> None:
    beside = wishing(running(job("beside", gpus=1, cores=4), "n1"), 5)
    snapshot = world([node("n1", cores=12)], [TRYING, beside, job("cpu", gpus=0, cores=1)])
    assert free_by_node(snapshot)["n1"].cpu_m == 0
    plan = decided(snapshot)
    assert (plan.grants, plan.starts) == ((), ())
    assert plan.denials[0].most_cores == 4
    over = decided(replace(snapshot, jobs=(replace(TRYING, held_cores=0), *snapshot.jobs[1:])))
    assert [grant.job for grant in over.grants] == [beside.id]


@pytest.mark.parametrize(("cores", "most"), [(7, 7), (8, 8), (9, 8)])
def test_a_search_gets_back_what_it_tried_without_and_no_more(cores: int, most: int) -> None:
    wanting = wishing(TRYING, cores)
    plan = decided(world([node("n1", cores=8)], [wanting]))
    assert plan.grants == ((grant_of(wanting, cores),) if cores == most else ())
    assert [denial.most_cores for denial in plan.denials] == ([] if cores == most else [most])


def test_what_a_search_takes_back_is_given_away_once() -> None:
    beside = wishing(running(job("beside", gpus=1, cores=4), "n1"), 6, since_s=95)
    wanting = wishing(TRYING, 8, since_s=90)
    assert decided(world([node("n1", cores=13)], [wanting, beside])).grants == (grant_of(wanting, 8),)
    both = decided(world([node("n1", cores=14)], [wanting, beside]))
    assert both.grants == (grant_of(wanting, 8), grant_of(beside, 6))


def test_growth_beside_what_is_withheld_for_a_search_counts_whole_for_its_quota() -> None:
    rationed = replace(wishing(TRYING, 8), quota={"requests.cpu": 6000})
    limit = quota(hard={"requests.cpu": 7000}, used={"requests.cpu": 6000})
    denial = decided(world([node("n1")], [rationed], quotas=[limit])).denials[0]
    assert (denial.code, denial.most_cores) == (DenialCode.QUOTA_EXCEEDED, 7)


@pytest.mark.parametrize(
    "over",
    [
        pytest.param(replace(TRYING, phase=Phase.RESTARTING), id="its attempt is over"),
        pytest.param(stopping(TRYING, StopCause.RECLAIM), id="it was ordered to stop"),
        pytest.param(trying(TRAINING, 8, held=30), id="more than its placement gave it"),
    ],
)
def test_nothing_is_withheld_for_a_search_that_cannot_go_back(over: Job) -> None:
    assert withheld_growth(over) == {}


def test_what_a_shrink_gives_up_is_withheld_as_soon_as_the_pods_are_seen_without_it() -> None:
    shrinking = replace(wishing(TRAINING, 6), searching=True, held_cores=8)
    granted = answered(shrinking, answer_from_grant(grant_of(shrinking, 6), NOW_S, PolicyConfig()))
    assert withheld_growth(granted) == {}
    assert withheld_growth(replace(granted, pod_cpu_m={0: 6000})) == {"n1": 2000}


ARRAYS = PolicyConfig(policy="coda", levels=(), arrays=ArraysConfig(reserve_cores_per_gpu=10, large_share=0.0))
"""Of a node with 4 GPUs and 48 cores, 8 cores are the CPU array's."""


@pytest.mark.parametrize("may_borrow", [True, False])
@pytest.mark.parametrize("held", [0, 36, 40])
def test_what_a_search_tries_without_is_no_reserve_that_gpu_jobs_leave(held: int, may_borrow: bool) -> None:
    """Else CPU jobs would pay twice for it: with cores that are not free, and with those that are their own."""
    searching = trying(running(job("whole", gpus=4, cores=40), "n1"), 32, held=held)
    own = replace(job("cpu", gpus=0, cores=8), may_borrow=may_borrow)
    snapshot = world([node("n1", gpus=4, cores=48)], [searching, own])
    plan = decide(snapshot, ARRAYS, NOW_S)
    assert [(start.job, start.borrows) for start in plan.starts] == [(own.id, False)]
