"""Laws of stopping jobs for others: nobody in vain, only for who goes first, and never to and fro."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coda.model import Job, JobId
from coda.model.capacity import free_by_node
from coda.model.decision import StopCause
from coda.policy import PolicyConfig
from coda.policy.order import LAS_THRESHOLD_GPU_S, attained_gpu_s
from coda.policy.preemption_rules import LEAST_RUN_S
from tests.builders import resources, world
from tests.core.cycle.test_preemption import CODA, LAS, NODES, SRTF, TENANTS, YARN, gpu
from tests.core.play import Play

pytestmark = pytest.mark.heavy

JOBS = st.builds(
    lambda gpus, cores, replicas, of, left_s: replace(
        gpu("x", gpus, cores=cores, replicas=replicas if gpus else 1, of=of), remaining_s=left_s
    ),
    st.sampled_from((0, 1, 1, 2, 4, 4)),
    st.integers(1, 4),
    st.sampled_from((1, 1, 1, 2)),
    st.sampled_from(("lab", "firm", "guest")),
    st.sampled_from((None, 50.0, 500.0, 1000.0, 5000.0)),
)
law = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
preempting = st.sampled_from([SRTF, LAS, YARN, CODA])


def played(data: st.DataObject, config: PolicyConfig) -> Play:
    """Jobs come, time passes, jobs end: by themselves where it is known how long they run."""
    play = Play(config, NODES, virtual_clusters=TENANTS)
    for step in range(10):
        play.now_s += data.draw(st.sampled_from((0.0, 1.0, 300.0, 900.0, 2000.0)))
        for done in [one.id for one in play.job_by_id.values() if one.placement and left_s(one, play.now_s) <= 0]:
            play.end(done)
        for number in range(data.draw(st.integers(0, 3))):
            play.submit(replace(data.draw(JOBS), id=JobId(f"team/j{step}-{number}"), uid=f"{step}-{number}"))
        one_ends: bool = data.draw(st.booleans())
        if one_ends and play.running():
            play.end(data.draw(st.sampled_from(play.running())))
        play.settle()
    return play


def left_s(one: Job, now_s: float) -> float:
    ran_s = now_s - one.as_of_s if one.placement is not None else 0.0
    return float("inf") if one.remaining_s is None else one.remaining_s - ran_s


@law
@given(st.data(), preempting)
def test_nothing_is_taken_twice_and_nobody_is_stopped_in_vain(data: st.DataObject, config: PolicyConfig) -> None:
    """What a stop frees is taken at once by whom it was for.

    Every plan with a memory equals the one without (`Play`)."""
    plans = played(data, config).plans
    for (now, plan), (_, following) in pairwise(plans):
        assert all(resources().fits_in(free) and free.gpus >= 0 <= free.cpu_m for free in free_by_node(now).values())
        started = {start.job for start in following.starts}
        assert {stop.by for stop in plan.stops} <= started


@law
@given(st.data(), preempting)
def test_only_a_job_that_goes_first_stops_another(data: st.DataObject, config: PolicyConfig) -> None:
    play = played(data, config)
    times = {id(now): now_s for (now, _), now_s in zip(play.plans, play.times_s, strict=True)}
    for now, plan in play.plans:
        job_by_id, now_s = {one.id: one for one in now.jobs}, times[id(now)]
        for stop in plan.stops:
            stopped, by = job_by_id[stop.job], job_by_id[stop.by]
            if config is SRTF:
                assert left_s(stopped, now_s) > left_s(by, now_s)
            elif config in (LAS, CODA):
                ran_s = now_s - stopped.as_of_s
                if stop.cause is StopCause.PREEMPT:
                    assert attained_gpu_s(replace(stopped, served_s=stopped.served_s + ran_s)) >= LAS_THRESHOLD_GPU_S
                    assert attained_gpu_s(by) < LAS_THRESHOLD_GPU_S
                    assert config is LAS or ran_s >= LEAST_RUN_S
            else:
                assert gpus_of(stopped.virtual_cluster, now.jobs) > quota_of(stopped.virtual_cluster)
                own = gpus_of(by.virtual_cluster, now.jobs) + by.request.gpus * by.replicas
                assert own <= quota_of(by.virtual_cluster)


@law
@given(st.data())
def test_a_job_stops_others_once_at_most_when_the_least_served_go_first(data: st.DataObject) -> None:
    by = [next(iter({stop.by for stop in plan.stops})) for _, plan in played(data, LAS).plans if plan.stops]
    assert len(by) == len(set(by))


def gpus_of(tenant: str, jobs: Iterable[Job]) -> int:
    return sum(one.request.gpus * one.replicas for one in jobs if one.placement and one.virtual_cluster == tenant)


def quota_of(tenant: str) -> int:
    return next((one.gpus or 0 for one in TENANTS if one.name == tenant), 0)


@law
@given(st.data())
def test_who_waits_would_not_fit_even_without_all_that_have_more_left(data: st.DataObject) -> None:
    play = played(data, SRTF)
    now = play.world()
    for waiting in now.jobs:
        if waiting.placement is None:
            stay = [one for one in now.jobs if one.placement and left_s(one, play.now_s) <= left_s(waiting, play.now_s)]
            free = free_by_node(world(NODES, stay))
            assert sum(waiting.request.times_in(free[one.name]) for one in NODES) < waiting.replicas
