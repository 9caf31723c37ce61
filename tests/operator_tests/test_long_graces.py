"""Somebody deletes ranks with a grace period of decades, and they ignore SIGTERM."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tests.operator_tests.fake_cluster import PODS, FakeCluster
from tests.operator_tests.operators import operator
from tests.operator_tests.rest_of_cluster import rest_of_cluster

DECADES_S = 10**9
OWN_S = 45

Act = Callable[[FakeCluster, str], None]


def nothing(api: FakeCluster, job: str) -> None:
    """The attempt fails, as of every pod that somebody deletes."""


def suspend(api: FakeCluster, job: str) -> None:
    api.edit(job, suspend=True)


def delete(api: FakeCluster, job: str) -> None:
    api.end(job)


def finish(api: FakeCluster, job: str) -> None:
    api.edit(job, activeDeadlineSeconds=1)


@pytest.mark.parametrize("act", [nothing, suspend, delete, finish])
async def test_ranks_end_within_the_grace_period_of_their_spec(act: Act) -> None:
    api = FakeCluster()
    template = {"terminationGracePeriodSeconds": OWN_S, "containers": [{"name": "main", "image": "train:1"}]}
    async with rest_of_cluster(api, exit_code=lambda attempt, rank: None, stop_s=1e9), operator(api):
        job = api.submit(template={"spec": template})
        await api.until(lambda: api.status(job).get("phase") == "Running", timeout_s=600)
        act(api, job)
        hold_on(api)
        first = {pod["metadata"]["uid"] for pod in api.pods().values()}
        await asyncio.sleep(OWN_S + 30)
        assert not first & {pod["metadata"]["uid"] for pod in api.pods().values()}


async def test_ranks_that_already_end_may_be_held_no_longer() -> None:
    """The operator has deleted them, and somebody else's DELETE comes first."""
    api = FakeCluster()
    async with rest_of_cluster(api, exit_code=lambda attempt, rank: None, stop_s=1e9), operator(api):
        job = api.submit()
        await api.until(lambda: api.status(job).get("phase") == "Running", timeout_s=600)
        api.edit(job, suspend=True)
        await api.until(lambda: all("deletionTimestamp" in pod["metadata"] for pod in api.pods().values()))
        seconds: list[Any] = [pod["metadata"]["deletionGracePeriodSeconds"] for pod in api.pods().values()]
        hold_on(api)
        assert [pod["metadata"]["deletionGracePeriodSeconds"] for pod in api.pods().values()] == seconds == [30, 30]


async def test_ranks_have_a_shorter_grace_period_if_somebody_says_so() -> None:
    api = FakeCluster()
    async with rest_of_cluster(api, exit_code=lambda attempt, rank: None, stop_s=1e9), operator(api):
        job = api.submit()
        await api.until(lambda: api.status(job).get("phase") == "Running", timeout_s=600)
        for name in api.pods():
            api.end(f"{PODS}/{name}", grace_s=5)
        await api.until(lambda: api.status(job)["phase"] == "Restarting")
        assert [pod["metadata"]["deletionGracePeriodSeconds"] for pod in api.pods().values()] == [5, 5]


def hold_on(api: FakeCluster) -> None:
    """`kubectl delete pod --all --grace-period=1000000000`."""
    for name in api.pods():
        api.end(f"{PODS}/{name}", grace_s=DECADES_S)
