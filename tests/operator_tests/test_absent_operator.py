"""An attempt that ends while no operator runs has ended then: its pods say it. What nobody lived through is no run."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from coda.errors import Outage
from coda_kube.failures.node_failures import node_runs_from_json
from coda_kube.objects.json_types import Json
from coda_kube.objects.quantities import seconds_from_time, time_from_seconds
from coda_operator.history import finished_job
from coda_operator.view.job_record import record_from_json
from tests.extender.fake_api import Call
from tests.operator_tests.fake_cluster import PODS, FakeCluster, clock
from tests.operator_tests.operators import operator
from tests.operator_tests.reconcile.test_reconciler import reaches
from tests.operator_tests.rest_of_cluster import finish, pin_of, rest_of_cluster, start

RAN_S, AWAY_S, LIMIT_S = 3600, 3 * 86400, 2 * 86400


async def after_an_absence(code: int, *, away_s: float = AWAY_S, seen: str = "Running", **spec: Any) -> Json:
    """A job whose first attempt ends with `code` 10 s after the operator went, as it is once another one is there.

    `seen`: its phase until the operator goes; if its pods had not started, they run as long. The next attempt would
    run on."""
    api = FakeCluster()
    ends: Any = {"run_s": lambda attempt, rank: RAN_S + 10.0, "exit_code": lambda a, rank: code if a == 1 else None}
    async with rest_of_cluster(api, **ends):
        async with operator(api):
            job = api.submit("j", **spec)
            await reaches(api, job, seen)
            await asyncio.sleep(RAN_S if seen == "Running" else 0.0)
        await asyncio.sleep(away_s)
        async with operator(api):
            await asyncio.sleep(120)
            return api.item(job)


@pytest.mark.parametrize("away_s", [300, AWAY_S])
async def test_the_limit_of_a_job_does_not_count_while_its_pods_have_ended(away_s: float) -> None:
    status = (await after_an_absence(1, away_s=away_s, retries=3, activeDeadlineSeconds=LIMIT_S))["status"]
    assert (status["phase"], status["attempt"], status["failures"]) == ("Running", 2, 1)
    assert status["servedSeconds"] == pytest.approx(RAN_S, abs=60)


async def test_the_account_and_the_record_have_what_the_pods_say() -> None:
    status = (await after_an_absence(1, retries=0))["status"]
    assert (status["phase"], status["reason"]) == ("Failed", "RankFailed")
    spent = status["delays"]
    assert spent["heldSeconds"] == pytest.approx(RAN_S, abs=60)
    assert spent["runSeconds"] == pytest.approx(RAN_S, abs=60)


@pytest.mark.parametrize("seen", ["Running", "Starting"])
async def test_a_success_that_nobody_saw_is_no_run_either(seen: str) -> None:
    """Nor if nobody saw the job run."""
    job = await after_an_absence(0, seen=seen, retries=0, activeDeadlineSeconds=LIMIT_S)
    status = job["status"]
    assert status["phase"] == "Succeeded"
    spent, launched_s = status["delays"], seconds_from_time(status["launchTime"])
    assert spent["heldSeconds"] == pytest.approx(RAN_S, abs=60)
    assert spent["runSeconds"] == pytest.approx(RAN_S, abs=60)
    assert seconds_from_time(status["startTime"]) == pytest.approx(launched_s, abs=60)


@pytest.mark.parametrize("seen", ["Running", "Starting"])
async def test_the_record_and_the_nodes_of_an_unseen_success_end_with_it(seen: str) -> None:
    """`completionTime` says when that was seen: the user has the job from then on for as long as it is kept."""
    job = await after_an_absence(0, seen=seen, retries=0, ttlSecondsAfterFinished=3600)
    ended_s = seconds_from_time(job["status"]["launchTime"]) + RAN_S
    record = record_from_json("default/j", job)
    kept = finished_job(record, record.progress.spent, clock())
    assert (kept.held_s, kept.run_s, kept.ended_s) == pytest.approx((RAN_S, RAN_S, ended_s), abs=60)
    assert dict(kept.waits).get("Unseen", 0.0) < 60
    assert {run.node: run.ended_s for run in node_runs_from_json(job)} == pytest.approx(
        {"n0": ended_s, "n1": ended_s}, abs=60
    )
    assert seconds_from_time(job["status"]["completionTime"]) == pytest.approx(clock(), abs=130)


async def test_what_ran_longer_than_it_may_is_over() -> None:
    status = (await after_an_absence(1, retries=3, activeDeadlineSeconds=RAN_S + 5))["status"]
    assert (status["phase"], status["reason"]) == ("Failed", "DeadlineExceeded")


def is_away(call: Call) -> None:
    raise Outage("the API server is away")


async def run_for_three_hours(*, away_s: float, fast_s: float) -> Json:
    """The status of a job that ran for 3 h and failed, on nodes whose clocks were fast when it began, and then set.

    `away_s`: the API server is away for so long before the end, and again as long after it."""
    api = FakeCluster()
    async with rest_of_cluster(api, moves_pods=False), operator(api):
        job = api.submit("j", retries=3)
        await asyncio.sleep(2)

        def begin(pod: Json) -> None:
            pod["spec"]["nodeName"] = pin_of(pod)
            start(pod)
            pod["status"]["startTime"] = time_from_seconds(clock() + fast_s)

        for pod in api.all("pods"):
            api.change(f"{PODS}/{pod['metadata']['name']}", begin)
        await reaches(api, job, "Running")
        await asyncio.sleep(3 * RAN_S - away_s)
        if away_s:
            api.before = is_away
            api.restart()
        await asyncio.sleep(away_s)
        for pod in api.all("pods"):
            api.change(f"{PODS}/{pod['metadata']['name']}", lambda item: finish(item, 1))
        await asyncio.sleep(away_s)
        api.before = None
        await asyncio.sleep(300)
        return api.status(job)


@pytest.mark.parametrize("fast_s", [0, 7200])
async def test_an_end_that_was_seen_live_is_now_whatever_the_clock_of_its_node_says(fast_s: float) -> None:
    status = await run_for_three_hours(away_s=0, fast_s=fast_s)
    assert status["delays"]["heldSeconds"] == pytest.approx(3 * RAN_S, abs=60)


@pytest.mark.parametrize(("fast_s", "ran_s"), [(0, 3 * RAN_S), (7200, 3 * RAN_S - 900)])
async def test_an_end_during_an_outage_is_not_before_it(fast_s: float, ran_s: float) -> None:
    status = await run_for_three_hours(away_s=900, fast_s=fast_s)
    assert status["delays"]["heldSeconds"] == pytest.approx(ran_s, abs=100)
