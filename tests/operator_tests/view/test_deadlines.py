"""What an operator that led before wrote, by another clock: whoever finds it leaves at least half of each time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from coda.lifecycle import LifecycleConfig, Situation
from coda.lifecycle.steps import next_step
from coda.model import Phase
from coda_kube.objects.json_types import Json
from coda_kube.objects.quantities import time_from_seconds
from coda_operator.view.cluster import ClusterView
from tests.core.gangs import pod
from tests.operator_tests.fake_cluster import FakeCluster

CONFIG = LifecycleConfig()
FOUND_S = 1_800_000_000.0


class Clock:
    now_s = FOUND_S

    def __call__(self) -> float:
        return self.now_s


def starting(api: FakeCluster, launched_s: float, **spec: Any) -> Json:
    """A job whose ranks are not all up, as another operator left it."""
    placement = {"attempt": 1, "planId": "p1", "epoch": 1, "generation": 1, "state": "Released", "cpusPerReplica": 4}
    placement |= {"nodes": ["n0", "n1"], "committedTime": time_from_seconds(launched_s - 5)}
    placement |= {"bindDeadline": time_from_seconds(launched_s + 55)}
    status = {"phase": "Starting", "attempt": 1, "observedGeneration": 1, "placement": placement}
    status |= {"launchTime": time_from_seconds(launched_s), "queuedTime": time_from_seconds(launched_s - 9)}
    path = api.submit(**spec)
    api.change(path, lambda job: job.update(status=status))
    return api.item(path)


def situation(cluster: ClusterView) -> Situation:
    job = cluster.job("default/job")
    assert job is not None
    waiting = tuple(pod(rank, node=f"n{rank}", pinned_to=f"n{rank}") for rank in range(2))
    return replace(cluster.situation(job), pods=waiting)


def phase_at(cluster: ClusterView, now_s: float) -> Phase | None:
    return next_step(situation(cluster), now_s, CONFIG).progress.phase


async def test_a_gang_that_an_operator_with_a_slow_clock_launched_has_half_of_its_time_to_start() -> None:
    api, clock = FakeCluster(), Clock()
    cluster = ClusterView(api, lambda _key: None, lambda _key: None, clock=clock, config=CONFIG)
    cluster.apply_job_event(None, starting(api, FOUND_S - 1801.0))
    step = next_step(situation(cluster), FOUND_S, CONFIG)
    assert (step.progress.phase, step.wake_s) == (Phase.STARTING, FOUND_S + 900.0)
    assert phase_at(cluster, FOUND_S + 899.0) is Phase.STARTING
    assert phase_at(cluster, FOUND_S + 900.0) is Phase.RESTARTING


async def test_what_is_left_is_never_more_than_a_quarter_of_an_hour_and_never_less_than_what_was_written() -> None:
    api, clock = FakeCluster(), Clock()
    cluster = ClusterView(api, lambda _key: None, lambda _key: None, clock=clock, config=CONFIG)
    cluster.apply_job_event(None, starting(api, FOUND_S - 90_000.0, startDeadlineSeconds=86_400))
    assert phase_at(cluster, FOUND_S + 899.0) is Phase.STARTING
    assert phase_at(cluster, FOUND_S + 900.0) is Phase.RESTARTING
    cluster.apply_job_event(None, starting(api, FOUND_S - 10.0))
    assert phase_at(cluster, FOUND_S + 1789.0) is Phase.STARTING
    assert phase_at(cluster, FOUND_S + 1790.0) is Phase.RESTARTING


async def test_each_term_finds_the_job_again() -> None:
    """Another operator led in between, and launched it by its own clock."""
    api, clock = FakeCluster(), Clock()
    cluster = ClusterView(api, lambda _key: None, lambda _key: None, clock=clock, config=CONFIG)
    job = starting(api, FOUND_S - 10.0)
    cluster.apply_job_event(None, job)
    cluster.forget_jobs()
    clock.now_s += 5000.0
    cluster.apply_job_event(None, job)
    assert phase_at(cluster, clock.now_s + 899.0) is Phase.STARTING
    cluster.apply_job_event("MODIFIED", job)  # no news of whose times these are
    clock.now_s += 900.0
    cluster.apply_job_event("MODIFIED", job)
    assert phase_at(cluster, clock.now_s) is Phase.RESTARTING
