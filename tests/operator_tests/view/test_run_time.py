"""How long a job may run: what statuses say of it, to the operator and to the planner."""

from __future__ import annotations

from typing import Any

import pytest

from coda.lifecycle import LifecycleConfig
from coda.lifecycle.deadlines import runs_until_s
from coda.lifecycle.steps import next_step
from coda.model import Phase
from coda.promises.expected_ends import limit_of
from coda_kube.objects.json_types import Json
from coda_kube.objects.quantities import time_from_seconds
from coda_kube.objects.read import job_from_json
from coda_operator.view.cluster import ClusterView
from tests.operator_tests.fake_cluster import FakeCluster

LAUNCHED_S = 1_800_000_000.25
REQUEST = {"resources": {"cpu": "1"}, "cpusPerReplica": 1}


def job_with(api: FakeCluster, limit_s: int = 3600, **status: Any) -> Json:
    """As an earlier version wrote it, too: it has written these fields for long."""
    placement = {"attempt": 1, "planId": "p1", "epoch": 1, "generation": 1, "state": "Released", "cpusPerReplica": 4}
    placement |= {"nodes": ["n0"], "committedTime": time_from_seconds(LAUNCHED_S - 5)}
    placement |= {"bindDeadline": time_from_seconds(LAUNCHED_S + 55)}
    told = {"phase": "Running", "attempt": 1, "observedGeneration": 1, "placement": placement, "request": REQUEST}
    told |= {"queuedTime": time_from_seconds(LAUNCHED_S - 90_000), "startTime": time_from_seconds(LAUNCHED_S - 80_000)}
    path = api.submit(replicas=1, activeDeadlineSeconds=limit_s)
    api.change(path, lambda job: job.update(status=told | {"launchTime": time_from_seconds(LAUNCHED_S)} | status))
    return api.item(path)


def seen(api: FakeCluster, job: Json) -> ClusterView:
    cluster = ClusterView(api, lambda _key: None, lambda _key: None, config=LifecycleConfig())
    cluster.apply_job_event(None, job)
    return cluster


@pytest.mark.parametrize(
    ("served_s", "left_s"),
    [
        pytest.param(None, 3600, id="its first attempt, or one of a version that did not count"),
        pytest.param(600, 3000, id="it ran before"),
        pytest.param(4000, 0, id="its limit was lowered beneath what it ran"),
    ],
)
async def test_the_planner_expects_the_end_that_the_operator_brings(served_s: int | None, left_s: int) -> None:
    """To the moment, whenever it first ran: promises rest on it."""
    api = FakeCluster()
    job = job_with(api, servedSeconds=served_s)
    record = (cluster := seen(api, job)).job("default/job")
    planned = job_from_json(job, {})
    assert record is not None
    assert planned is not None
    now = cluster.situation(record)
    assert limit_of(planned) == runs_until_s(now, record.progress) == LAUNCHED_S + left_s
    ended = next_step(now, LAUNCHED_S + left_s, LifecycleConfig()).progress
    assert (ended.phase, ended.reason) == (Phase.FAILED, "DeadlineExceeded")
    assert next_step(now, LAUNCHED_S + left_s - 0.001, LifecycleConfig()).progress.reason != "DeadlineExceeded"


async def test_the_limit_of_a_trial_counts_from_its_start() -> None:
    """It has no launch of the gang, and its pod may wait long for its image."""
    started_s = LAUNCHED_S + 200
    job = job_with(FakeCluster(), trial={"attempt": 1}, startTime=time_from_seconds(started_s))
    planned = job_from_json(job, {})
    assert planned is not None
    assert limit_of(planned) == started_s + 300


@pytest.mark.parametrize(
    ("phase", "launched", "ended_s"),
    [
        pytest.param("Restarting", "False", LAUNCHED_S + 60, id="its pods are to go"),
        pytest.param("Restarting", "True", 0.0, id="nothing is known of its end"),
        pytest.param("Running", "False", 0.0, id="it runs"),
    ],
)
async def test_when_an_attempt_ended_is_in_its_conditions(phase: str, launched: str, ended_s: float) -> None:
    moment = time_from_seconds(LAUNCHED_S + 60)
    conditions = [{"type": "Launched", "status": launched, "lastTransitionTime": moment}]
    api = FakeCluster()
    record = seen(api, job_with(api, phase=phase, conditions=conditions)).job("default/job")
    assert record is not None
    assert record.ended_s == ended_s
