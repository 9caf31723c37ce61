"""Short jobs go first, within bounds: on clusters played through, where the past tells who runs how long."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coda.cycle import decide
from coda.history import FinishedRun
from coda.model import Job, JobId
from coda.policy import Component, PolicyConfig
from coda.policy.order import OVERTAKEN
from coda.promises import PromiseBook
from tests.builders import job, node, world
from tests.core.play import Play

SHORT_S, LONG_S, STEP_S = 10.0, 100.0, 10.0
NODES = (node("a", gpus=2, cores=16),)
POLICIES = [PolicyConfig(levels=()), PolicyConfig(policy="coda", levels=())]
law = settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))


def taught(book: PromiseBook) -> PromiseBook:
    """Ann's jobs run long, Bob's short."""
    for _ in range(50):
        book.run_times.add(FinishedRun("ann", "", 1, LONG_S))
        book.run_times.add(FinishedRun("bob", "", 1, SHORT_S))
    return book


def one_gpu(name: str, user: str, **changes: object) -> Job:
    return replace(job(name, gpus=1, cores=1, memory_gib=0, user=user), **changes)  # type: ignore[arg-type]


def first_start(config: PolicyConfig, *jobs: Job) -> JobId:
    plan = decide(world((node("a", gpus=1, cores=16),), jobs), config, 5000.0, book=taught(PromiseBook()))
    (start,) = plan.starts
    return start.job


@pytest.mark.parametrize("config", POLICIES, ids=lambda config: config.policy)
def test_a_short_job_goes_before_a_long_one_that_came_a_little_earlier(config: PolicyConfig) -> None:
    long, short = one_gpu("long", "ann", queued_s=1000.0), one_gpu("short", "bob", queued_s=3000.0)
    assert first_start(config, long, short) == short.id
    arrival = replace(config, without=frozenset({Component.SHORT_FIRST}))
    assert first_start(arrival, long, short) == long.id


def test_where_expectations_were_wrong_jobs_start_as_they_came_unless_they_take_turns() -> None:
    """A few long jobs of Ann make her mean long. Most of hers are shorter than Bob's."""
    book = PromiseBook()
    for number in range(300):
        book.run_times.add(FinishedRun("ann", "", 1, 9000.0 if number % 10 == 0 else 5.0 + number % 7))
        book.run_times.add(FinishedRun("bob", "", 1, 60.0 + number % 11))
    jobs = one_gpu("long", "ann", queued_s=1000.0), one_gpu("short", "bob", queued_s=3000.0)
    for config, first in zip(POLICIES, jobs, strict=True):
        (start,) = decide(world((node("a", gpus=1, cores=16),), jobs), config, 5000.0, book=book).starts
        assert start.job == first.id


def test_not_before_one_that_came_much_earlier_nor_one_of_higher_priority() -> None:
    config, short = POLICIES[0], one_gpu("short", "bob", queued_s=4500.0)
    assert first_start(config, one_gpu("long", "ann", queued_s=1000.0), short) == JobId("team/long")
    assert first_start(config, one_gpu("long", "ann", queued_s=4000.0, priority=1), short) == JobId("team/long")


def test_a_deadline_makes_a_job_short() -> None:
    config = POLICIES[0]
    limited = one_gpu("limited", "ann", queued_s=3000.0, run_limit_s=5.0)
    assert first_start(config, one_gpu("short", "bob", queued_s=2900.0), limited) == limited.id


@law
@given(st.data(), st.sampled_from(POLICIES))
def test_only_those_that_came_soon_after_a_job_overtake_it(data: st.DataObject, config: PolicyConfig) -> None:
    """Soon: within `OVERTAKEN` times its expected run time. Jobs of one user and equal shape, so shares are equal."""
    play, left_s = Play(config, NODES), dict[JobId, float]()
    taught(play.book)
    for step in range(40):
        play.now_s += STEP_S
        for name in play.running():
            left_s[name] -= STEP_S
            if left_s[name] <= 0:
                play.end(name)
        for number in range(data.draw(st.integers(0, 2))):
            run_s = data.draw(st.sampled_from((SHORT_S, LONG_S)))
            category = "CV" if run_s == SHORT_S else "NLP"
            one = one_gpu(f"j{step}-{number}", "carl", category=category, uid=f"{step}-{number}")
            play.submit(one)
            left_s[one.id] = run_s
        now = {one.id: one for one in play.world().jobs}
        started = [now[start.job] for start in play.decide().starts]
        waiting = [one for one in play.job_by_id.values() if one.placement is None]
        for late in started:
            for early in waiting:
                behind_s = OVERTAKEN * play.book.expected.run_s(early)
                assert late.queued_s <= early.queued_s + behind_s
