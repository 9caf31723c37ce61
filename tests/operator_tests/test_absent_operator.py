"""An attempt that ends while no operator runs has ended then: its pods say it. What nobody lived through is no run."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from coda_kube.objects.json_types import Json
from tests.operator_tests.fake_cluster import FakeCluster
from tests.operator_tests.operators import operator
from tests.operator_tests.reconcile.test_reconciler import reaches
from tests.operator_tests.rest_of_cluster import rest_of_cluster

RAN_S, AWAY_S, LIMIT_S = 3600, 3 * 86400, 2 * 86400


async def after_an_absence(code: int, *, away_s: float = AWAY_S, **spec: Any) -> Json:
    """The status of a job whose first attempt ends with `code` 10 s after the operator went, once another one is there.

    The next attempt would run on."""
    api = FakeCluster()
    ends: Any = {"run_s": lambda attempt, rank: RAN_S + 10.0, "exit_code": lambda a, rank: code if a == 1 else None}
    async with rest_of_cluster(api, **ends):
        async with operator(api):
            job = api.submit("j", **spec)
            await reaches(api, job, "Running")
            await asyncio.sleep(RAN_S)
        await asyncio.sleep(away_s)
        async with operator(api):
            await asyncio.sleep(120)
            return api.status(job)


@pytest.mark.parametrize("away_s", [300, AWAY_S])
async def test_the_limit_of_a_job_does_not_count_while_its_pods_have_ended(away_s: float) -> None:
    status = await after_an_absence(1, away_s=away_s, retries=3, activeDeadlineSeconds=LIMIT_S)
    assert (status["phase"], status["attempt"], status["failures"]) == ("Running", 2, 1)
    assert status["servedSeconds"] == pytest.approx(RAN_S, abs=60)


async def test_the_account_and_the_record_have_what_the_pods_say() -> None:
    status = await after_an_absence(1, retries=0)
    assert (status["phase"], status["reason"]) == ("Failed", "RankFailed")
    spent = status["delays"]
    assert spent["heldSeconds"] == pytest.approx(RAN_S, abs=60)
    assert spent["runSeconds"] == pytest.approx(RAN_S, abs=60)


async def test_a_success_that_nobody_saw_is_no_run_either() -> None:
    status = await after_an_absence(0, retries=0, activeDeadlineSeconds=LIMIT_S)
    assert status["phase"] == "Succeeded"
    assert status["delays"]["runSeconds"] == pytest.approx(RAN_S, abs=60)


async def test_what_ran_longer_than_it_may_is_over() -> None:
    status = await after_an_absence(1, retries=3, activeDeadlineSeconds=RAN_S + 5)
    assert (status["phase"], status["reason"]) == ("Failed", "DeadlineExceeded")
