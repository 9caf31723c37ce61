"""A finished job with sidecars: its log stays where they end by themselves, and its GPUs are not held for long."""

from __future__ import annotations

import asyncio

import pytest

from coda_kube.objects.json_types import Json
from coda_kube.objects.quantities import time_from_seconds
from tests.operator_tests.fake_cluster import PODS, FakeCluster, clock
from tests.operator_tests.operators import operator
from tests.operator_tests.rest_of_cluster import finish, rest_of_cluster
from tests.operator_tests.test_accidents import never
from tests.operator_tests.test_lost_ranks import reaches, runs

POD = f"{PODS}/job-1-0"
NATIVE = {"initContainers": [{"name": "proxy", "restartPolicy": "Always"}], "terminationGracePeriodSeconds": 60}
MAIN = {"name": "main", "image": "train:1"}


def main_ends(pod: Json, code: int) -> None:
    """The pod runs on, with what is in it besides."""
    ended = {"exitCode": code, "finishedAt": time_from_seconds(clock()), "reason": "Error" if code else "Completed"}
    pod["status"]["containerStatuses"] = [{"name": "main", "state": {"terminated": ended}}]
    if len(pod["spec"]["containers"]) > 1:
        pod["status"]["containerStatuses"].append({"name": "old", "state": {"running": {}}})


@pytest.mark.parametrize(("code", "phase"), [(0, "Succeeded"), (1, "Failed")])
@pytest.mark.parametrize("began_s", [0, 20], ids=["one operator", "another operator"])
async def test_the_log_stays_while_the_kubelet_ends_native_sidecars(code: int, phase: str, began_s: float) -> None:
    api = FakeCluster()
    template = {"spec": {"containers": [MAIN], **NATIVE}}
    async with rest_of_cluster(api, exit_code=never):
        async with operator(api):
            job = await runs(api, replicas=1, retries=0, template=template)
            api.change(POD, lambda pod: main_ends(pod, code))
            await reaches(api, job, phase)
            await asyncio.sleep(began_s or 40)
        async with operator(api):
            await asyncio.sleep(10)
            api.change(POD, lambda pod: finish(pod, code))  # its last sidecar has ended
            await asyncio.sleep(600)
            assert list(api.pods()) == ["job-1-0"]
            assert "deletionTimestamp" not in api.item(POD)["metadata"]


async def test_a_sidecar_that_outlives_the_grace_period_is_ended() -> None:
    api = FakeCluster()
    template = {"spec": {"containers": [MAIN], **NATIVE}}
    async with rest_of_cluster(api, exit_code=never), operator(api):
        job = await runs(api, replicas=1, template=template)
        api.change(POD, lambda pod: main_ends(pod, 0))
        await reaches(api, job, "Succeeded")
        begun_s = clock()
        await api.until(lambda: "deletionTimestamp" in api.item(POD)["metadata"], timeout_s=600)
        assert 60 <= clock() - begun_s <= 70


@pytest.mark.parametrize("init", [{}, NATIVE], ids=["alone", "beside a native one"])
async def test_an_old_style_sidecar_is_ended_at_once(init: Json) -> None:
    """It may run for ever, and the pod would hold its GPUs."""
    api = FakeCluster()
    template = {"spec": {"containers": [MAIN, {"name": "old", "image": "s"}], **init}}
    async with rest_of_cluster(api, exit_code=never), operator(api):
        job = await runs(api, replicas=1, template=template)
        api.change(POD, lambda pod: main_ends(pod, 0))
        await reaches(api, job, "Succeeded")
        await api.until(lambda: not api.pods() or "deletionTimestamp" in api.item(POD)["metadata"], timeout_s=2)


async def test_ranks_that_still_run_when_rank_zero_has_decided_are_ended_at_once() -> None:
    api = FakeCluster()
    template = {"spec": {"containers": [MAIN], **NATIVE}}
    async with rest_of_cluster(api, exit_code=never), operator(api):
        job = await runs(api, successPolicy="RankZero", template=template)
        api.change(POD, lambda pod: main_ends(pod, 0))
        await reaches(api, job, "Succeeded")
        await api.until(lambda: "job-1-1" not in api.pods(), timeout_s=5)
        assert "deletionTimestamp" not in api.item(POD)["metadata"]
