"""What a rank requests is asked again while no present node could hold it: nodes and webhooks change meanwhile."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest

from coda_kube.api.client import Rejected
from coda_kube.objects.json_types import Json
from coda_kube.objects.quantities import time_from_seconds
from coda_operator.reconcile.acceptance import AGAIN_S, SPACING_S
from tests.operator_tests.fake_cluster import NODES, FakeCluster, clock
from tests.operator_tests.operators import operator
from tests.operator_tests.rest_of_cluster import rest_of_cluster


def gpu_node(cpu: str, gpus: int) -> Json:
    amounts = {"cpu": cpu, "memory": "15Gi", "pods": "29", "nvidia.com/gpu": str(gpus)}
    conditions = [{"type": "Ready", "status": "True"}]
    status = {"allocatable": amounts, "capacity": amounts, "conditions": conditions}
    return {"metadata": {"name": "gpu-0", "labels": {}}, "spec": {}, "status": status}


def waits(api: FakeCluster, job: str, code: str, message: str = "none holds a rank") -> None:
    """What the planner writes."""
    told = {"code": code, "message": message, "generation": 1, "since": time_from_seconds(clock())}
    api.change(job, lambda item: item["status"].update(pending=told))


def size_by(size: dict[str, str]) -> Any:
    """A webhook that adds a sidecar of this size."""

    def admit(pod: Json) -> None:
        sidecar = {"name": "istio-proxy", "resources": {"requests": dict(size)}}
        pod["spec"]["containers"] = [*pod["spec"]["containers"], sidecar]

    return admit


@pytest.mark.parametrize(("cpu", "gpus", "cores"), [("3920m", 1, 2), ("31850m", 8, 30)])
@pytest.mark.parametrize("code", ["NeverFits", "NoMatchingNode"])
async def test_a_job_of_an_empty_pool_asks_for_the_cores_of_the_node_that_came_for_it(
    cpu: str, gpus: int, cores: int, code: str
) -> None:
    api = FakeCluster()
    async with rest_of_cluster(api, plans=False), operator(api):
        job = api.submit(cpusPerReplica="auto", replicas=1, gpusPerReplica=gpus)
        await asyncio.sleep(5)
        waits(api, job, code)
        await asyncio.sleep(600)
        before = api.status(job)
        assert before["request"]["cpusPerReplica"] == 4 * gpus
        api.set(NODES, gpu_node(cpu, gpus))
        waits(api, job, "NeverFits", "even empty, the only matching node holds none")
        await asyncio.sleep(AGAIN_S + 1)
        after = api.status(job)
    assert (after["request"]["cpusPerReplica"], after["cores"]) == (cores, cores)
    changed = {"request", "cores", "pending"}
    assert {key: value for key, value in after.items() if key not in changed} == {
        key: value for key, value in before.items() if key not in changed
    }


@pytest.mark.parametrize(("code", "cpu"), [("NeverFits", "4100m"), ("InsufficientGPUs", "8")])
async def test_a_job_follows_a_sidecar_that_was_made_smaller_if_it_fits_no_node(code: str, cpu: str) -> None:
    api, size = FakeCluster(), {"cpu": "4", "memory": "32Gi"}
    api.admit = size_by(size)
    async with rest_of_cluster(api, plans=False), operator(api):
        job = api.submit(replicas=1)
        await asyncio.sleep(5)
        waits(api, job, code)
        size.update(cpu="100m", memory="128Mi")
        await asyncio.sleep(2 * AGAIN_S)
        assert api.status(job)["request"]["resources"]["cpu"] == cpu


async def test_a_refusal_changes_nothing_of_what_was_accepted() -> None:
    api = FakeCluster()
    async with rest_of_cluster(api, plans=False), operator(api):
        job = api.submit(replicas=1)
        await asyncio.sleep(5)
        waits(api, job, "NeverFits")
        await asyncio.sleep(60)
        before = api.status(job)

        def refuse(pod: Json) -> None:
            raise Rejected(403, "Forbidden", 'admission webhook "w" denied the request: no')

        api.admit = refuse
        await asyncio.sleep(10 * AGAIN_S)
        assert api.status(job) == before


async def test_many_jobs_that_fit_no_node_are_asked_one_by_one() -> None:
    api, moments = FakeCluster(), list[float]()
    async with rest_of_cluster(api, plans=False), operator(api):
        jobs = [api.submit(f"job-{number}", replicas=1) for number in range(300)]
        await asyncio.sleep(60)
        for job in jobs:
            waits(api, job, "NeverFits")
        api.admit = lambda pod: moments.append(clock())
        await asyncio.sleep(AGAIN_S + 600 * SPACING_S)
    assert len(moments) >= 300
    least_s = min(after - before for before, after in pairwise(moments))
    assert least_s >= SPACING_S - 0.01
