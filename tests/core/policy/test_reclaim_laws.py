"""Reclaims do not go on for ever: whatever comes, fails and comes again, borrowers get done and GPU jobs start."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coda.cycle import decide
from coda.model import Job, JobId, Phase, WaitCode
from coda.model.decision import StopCause
from coda.policy.config import PolicyConfig, ReclaimConfig
from coda.policy.reclaim import WINDOW_S, kept_until_s, min_runtime_s, next_reclaim_s
from tests.builders import node, running, world
from tests.core.play import Play
from tests.core.policy.test_arrays import CODA, NODES, cpu, gpu, played, ran

pytestmark = pytest.mark.heavy

LIMITS = ReclaimConfig(min_runtime_s=2.0, min_runtime_limit_s=16.0, evictions_per_minute=3)
LIMITED = replace(CODA, reclaim=LIMITS)
RUNTIME = replace(CODA, reclaim=ReclaimConfig(min_runtime_s=2.0, min_runtime_limit_s=16.0))
RATE = replace(CODA, reclaim=ReclaimConfig(evictions_per_minute=2))
LONGEST_S = LIMITS.min_runtime_limit_s

law = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


def reclaims(play: Play) -> Iterator[tuple[float, list[Job]]]:
    """Whom each plan stops so that borrowed cores come back, and when."""
    for now_s, (now, plan) in zip(play.times_s, play.plans, strict=True):
        job_by_id = {job.id: job for job in now.jobs}
        found = [job_by_id[stop.job] for stop in plan.stops if stop.cause is StopCause.RECLAIM]
        if found:
            yield now_s, found


@law
@given(st.data(), st.sampled_from([LIMITED, RUNTIME, RATE]))
def test_every_eviction_is_followed_by_the_start_that_it_is_for(data: st.DataObject, config: PolicyConfig) -> None:
    play = played(data, config)
    for (_, plan), (_, following) in pairwise(play.plans):
        evicted_for = {stop.by for stop in plan.stops if stop.cause is StopCause.RECLAIM}
        assert evicted_for <= {start.job for start in following.starts}


@law
@given(st.data(), st.sampled_from([LIMITED, RUNTIME, RATE]))
def test_nobody_is_reclaimed_before_its_minimum_time_nor_more_often_than_the_budget_says(
    data: st.DataObject, config: PolicyConfig
) -> None:
    """The reclaim that crosses the budget is done as a whole, so it does not count itself."""
    past_s: list[float] = []
    for now_s, stopped in reclaims(played(data, config)):
        for job in stopped:
            assert job.placement is not None
            assert now_s - job.placement.committed_s >= min_runtime_s(job.reclaimed, config.reclaim)
        limit = config.reclaim.evictions_per_minute
        assert not limit or sum(moment_s > now_s - WINDOW_S for moment_s in past_s) < limit
        past_s += [now_s] * len(stopped)


@law
@given(st.data())
def test_a_cpu_job_that_needs_less_than_the_longest_minimum_gets_done_after_a_few_reclaims(data: st.DataObject) -> None:
    """Gangs of every size come and fail at any time, for ever. It is reclaimed 3 times at most: 2, 4 and 8 s are too
    short for its 10 s, 16 are not."""
    play, needs_s = Play(RUNTIME, NODES), 10.0
    play.submit(*[cpu(f"sweep-{number}", 8) for number in range(8)])
    for step in range(40):
        play.now_s += 1.0
        for job in [job for job in play.job_by_id.values() if job.phase is Phase.RUNNING]:
            assert job.placement is not None
            if not job.request.gpus:
                assert job.reclaimed <= 3
                if play.now_s - job.placement.committed_s >= needs_s:
                    play.end(job.id)
            elif data.draw(st.booleans()):
                play.end(job.id)
        for number in range(data.draw(st.integers(0, 2))):
            gpus = data.draw(st.sampled_from([1, 2, 4, 8]))
            built = gpu(f"gang-{step}-{number}", gpus, cores=3 * gpus, resumable=False)
            play.submit(replace(built, user=data.draw(st.sampled_from(["ann", "bob"]))))
        play.settle()
    left = [job for job in play.job_by_id.values() if not job.request.gpus]
    assert all(job.reclaimed <= 3 for job in left)


@law
@given(st.data())
def test_a_gpu_job_waits_no_longer_than_the_longest_minimum_whatever_cpu_jobs_come(data: st.DataObject) -> None:
    """CPU jobs come and end all the time, some of them reclaimed often. The reason says when, never later."""
    play = Play(RUNTIME, NODES)
    arrives_s = data.draw(st.integers(0, 12))
    gpus, replicas = data.draw(st.sampled_from([(1, 1), (1, 2), (4, 1), (4, 2), (8, 1)]))
    wanted = gpu("train", gpus, cores=12, replicas=replicas)
    until_s: float | None = None
    for step in range(arrives_s + int(LONGEST_S) + 1):
        play.now_s = float(step)
        for ended in [job for job in play.running() if job != wanted.id and data.draw(st.integers(0, 9)) == 0]:
            play.end(ended)
        for number in range(data.draw(st.integers(0, 4))):
            borrower = cpu(f"c{step}-{number}", data.draw(st.integers(1, 14)))
            play.submit(replace(borrower, reclaimed=data.draw(st.integers(0, 9))))
        if step == arrives_s:
            play.submit(wanted)
        plan = play.settle()
        for refusal in plan.refusals:
            if refusal.job == wanted.id:
                assert refusal.code is WaitCode.RECLAIM_DELAYED
                promised_s = float(refusal.reason.numbers["not_before_s"])
                assert play.now_s < promised_s <= (until_s or arrives_s + LONGEST_S)
                assert plan.wake_s is not None
                assert plan.wake_s <= promised_s
                until_s = promised_s
    assert wanted.id in play.running()


def test_borrowers_that_may_be_stopped_now_stop_before_newer_ones_that_may_not() -> None:
    held = [ran(cpu(name, 8), "one", at_s=at_s, borrows=True) for name, at_s in (("old", 0.0), ("new", 99.0))]
    plan = decide(world([node("one", gpus=4, cores=16)], [*held, gpu("train", 1, cores=6)]), RUNTIME, 100.0)
    assert [stop.job for stop in plan.stops] == ["team/old"]


def test_a_gang_goes_where_borrowers_may_be_stopped_now() -> None:
    """Both ranks fit together on `big`, where nobody may be stopped yet."""
    held = [
        ran(cpu("fresh", 32), "big", at_s=99.0, borrows=True),
        ran(cpu("a", 16), "one", borrows=True),
        ran(cpu("b", 16), "two", borrows=True),
    ]
    gang = gpu("train", 2, cores=8, replicas=2)
    plan = decide(world(NODES, [*held, gang]), RUNTIME, 100.0)
    assert {stop.job for stop in plan.stops} == {"team/a"}


def test_the_reason_says_who_must_be_spared_and_until_when() -> None:
    fresh = [ran(cpu("fresh", 16), "one", at_s=99.0, borrows=True)]
    now = world([node("one", gpus=4, cores=16)], [*fresh, gpu("train", 1, cores=6), cpu("next", 1)])
    plan = decide(now, RUNTIME, 100.0)
    assert (plan.starts, plan.stops, plan.wake_s) == ((), (), 101.0)
    reason = next(refusal.reason for refusal in plan.refusals if refusal.job == "team/train")
    assert reason.message == (
        "the cores that it needs are lent to 1 CPU job, which has not run for the minimum time of borrowers yet:"
        " they are given back from 00:01:41 UTC on"
    )
    assert reason.numbers == {"borrowers": 1, "spared": 1, "not_before_s": 101}


def test_the_reason_says_that_there_were_too_many_evictions() -> None:
    held = [ran(cpu(f"c{number}", 8), "one", borrows=True) for number in range(2)]
    now = world([node("one", gpus=4, cores=16)], [*held, gpu("train", 1, cores=6)], reclaimed={"x": 50.0, "y": 99.0})
    plan = decide(now, RATE, 100.0)
    assert (plan.stops, plan.wake_s) == ((), 110.0)
    (refusal,) = plan.refusals
    assert refusal.code is WaitCode.RECLAIM_DELAYED
    assert "1 CPU job, and the number of evictions in 60 s is used up" in refusal.message
    assert len(decide(now, RATE, 110.0).stops) == 1


def test_nobody_borrows_what_a_spared_borrower_leaves_to_the_job_that_waits_for_it() -> None:
    """4 cores are free, of which the GPU job will need 2 besides those that are lent."""
    fresh = [ran(cpu("fresh", 12), "one", at_s=99.0, borrows=True)]
    now = world([node("one", gpus=4, cores=16)], [*fresh, gpu("train", 1, cores=14), cpu("next", 4)])
    plan = decide(now, RUNTIME, 100.0)
    assert (plan.starts, plan.stops) == ((), ())
    codes = {refusal.job: refusal.code for refusal in plan.refusals}
    assert codes == {JobId("team/train"): WaitCode.RECLAIM_DELAYED, JobId("team/next"): WaitCode.HELD_BY_POLICY}


def test_an_overdue_job_needs_its_cores_once_though_it_is_tried_twice() -> None:
    """The other node stays for others."""
    config = replace(RUNTIME, promise_patience_s=50.0, promise_price=0.0)
    fresh = [ran(cpu(name, 16), name, at_s=99.0, borrows=True) for name in ("one", "two")]
    small = [node(name, gpus=4, cores=17) for name in ("one", "two")]
    plan = decide(
        world(small, [*fresh, gpu("train", 4, cores=6), replace(cpu("next", 1), queued_s=99.0)]), config, 100.0
    )
    assert [start.job for start in plan.starts] == ["team/next"]
    assert [refusal.code for refusal in plan.refusals] == [WaitCode.RECLAIM_DELAYED]


@pytest.mark.parametrize(("reclaimed", "least_s"), [(0, 2.0), (1, 4.0), (2, 8.0), (3, 16.0), (4, 16.0), (10**9, 16.0)])
def test_the_minimum_doubles_up_to_a_limit(reclaimed: int, least_s: float) -> None:
    assert min_runtime_s(reclaimed, LIMITS) == least_s


def test_without_limits_a_borrower_may_be_stopped_at_any_time() -> None:
    borrower = ran(cpu("c", 1), "one", at_s=5.0, borrows=True)
    assert kept_until_s(borrower, ReclaimConfig()) == float("-inf")
    assert kept_until_s(borrower, LIMITS) == 7.0
    assert kept_until_s(running(cpu("own", 1), "one"), LIMITS) == float("-inf")
    assert next_reclaim_s([0.0] * 9, ReclaimConfig(), 0.0) == float("-inf")


@pytest.mark.parametrize(
    ("reclaimed_s", "expected_s"),
    [
        ([], float("-inf")),
        ([90.0, 95.0], float("-inf")),
        ([30.0, 90.0, 95.0], float("-inf")),
        ([60.0, 90.0, 95.0], 120.0),
        ([60.0, 90.0, 95.0, 99.0], 150.0),
        ([99.0] * 700, 159.0),
        ([500.0] * 3, 160.0),
    ],
    ids=["none", "few", "one is past", "the first ends it", "the second ends it", "one large reclaim", "of the future"],
)
def test_the_next_reclaim_is_at_most_a_minute_away(reclaimed_s: list[float], expected_s: float) -> None:
    assert next_reclaim_s(reclaimed_s, LIMITS, 100.0) == expected_s
