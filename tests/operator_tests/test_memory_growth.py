"""A rank is killed for memory: where the job allows it, the next attempt asks for more."""

from __future__ import annotations

from typing import Any

import pytest

from coda_kube.api.client import Rejected
from coda_kube.objects.json_types import Json
from tests.operator_tests.fake_cluster import FakeCluster
from tests.operator_tests.operators import operator
from tests.operator_tests.rest_of_cluster import rest_of_cluster
from tests.operator_tests.test_lost_ranks import reaches

QUOTAS = "/api/v1/namespaces/default/resourcequotas"


def template(limit: str, request: str = "") -> Json:
    resources = {"limits": {"memory": limit}, "requests": {"memory": request or limit}}
    return {"spec": {"containers": [{"name": "main", "image": "train:1", "resources": resources}]}}


def limits(api: FakeCluster) -> list[str]:
    return sorted({pod["spec"]["containers"][0]["resources"]["limits"]["memory"] for pod in api.pods().values()})


async def run(api: FakeCluster, until: str, *, needs_gib: int, restart: bool = False, **spec: Any) -> Json:
    wanted = {"template": template("8Gi"), "growMemoryTo": "64Gi"} | spec
    async with rest_of_cluster(api, needs_gib=needs_gib):
        job = api.submit(**wanted)
        if restart:  # the operator dies while the gang is rolled back: the status knows what comes next
            async with operator(api):
                await reaches(api, job, "Restarting")
        async with operator(api):
            return await reaches(api, job, until)


async def test_it_grows_until_it_suffices() -> None:
    api = FakeCluster()
    status = await run(api, "Succeeded", needs_gib=16)
    assert (status["attempt"], status["failures"]) == (3, 2)
    assert status["grownMemory"] == {"request": "18432Mi", "limit": "18432Mi"}
    assert status["request"]["resources"]["memory"] == str(18 << 30)
    assert status["failure"]["decision"] == "it is tried again with 18 GiB of memory per rank instead of 12 GiB"
    assert limits(api) == ["18432Mi"]  # of all ranks, not of the killed one alone


async def test_what_was_decided_survives_a_restart() -> None:
    status = await run(FakeCluster(), "Succeeded", needs_gib=10, restart=True)
    assert (status["attempt"], status["grownMemory"]["limit"]) == (2, "12288Mi")


async def test_nothing_grows_unless_the_job_says_so() -> None:
    status = await run(FakeCluster(), "Failed", needs_gib=10, growMemoryTo=None)
    assert (status["attempt"], "grownMemory" in status) == (2, False)
    assert "memory per rank" not in status["message"]


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        pytest.param({"growMemoryTo": "9Gi"}, "beyond 9 GiB: spec.growMemoryTo is 9 GiB", id="the job's own bound"),
        pytest.param(
            {"growMemoryTo": "9999Gi", "template": template("100Gi")},
            "beyond 121.6 GiB: node n1 has 128 GiB",
            id="its node",
        ),
    ],
)
async def test_at_a_bound_it_stops_and_says_which(spec: Json, said: str) -> None:
    status = await run(FakeCluster(), "Failed", needs_gib=1000, retries=20, **spec)
    assert said in status["message"]


async def test_a_quota_bounds_it_before_the_job_could_wait_for_ever() -> None:
    api = FakeCluster()
    api.set(QUOTAS, {"metadata": {"name": "tight"}, "spec": {"hard": {"limits.memory": "20Gi"}}})
    status = await run(api, "Failed", needs_gib=16)
    assert status["attempt"] == 2
    assert status["grownMemory"]["limit"] == "10240Mi"  # two ranks share it
    assert "beyond 10 GiB: ResourceQuota tight allows 10 GiB per rank" in status["message"]


async def test_what_the_api_server_would_refuse_is_not_asked_for() -> None:
    """A LimitRange: with more memory no attempt would ever be accepted, and the job would wait for ever."""
    api = FakeCluster()

    def admit(pod: Json) -> None:
        if pod["spec"]["containers"][0]["resources"]["limits"]["memory"] != "8Gi":
            raise Rejected(403, "Forbidden", "maximum memory usage per Container is 8Gi, but limit is 12Gi")

    api.admit = admit
    status = await run(api, "Failed", needs_gib=16)
    assert (status["attempt"], "grownMemory" in status) == (2, False)
    assert "its memory cannot grow: maximum memory usage per Container is 8Gi" in status["message"]


async def test_an_edit_of_the_waiting_job_counts_more_than_what_grew() -> None:
    api = FakeCluster()
    async with rest_of_cluster(api, needs_gib=16) as rest, operator(api):
        job = api.submit(template=template("8Gi"), growMemoryTo="64Gi")
        await reaches(api, job, "Running")
        rest.plans = False
        await reaches(api, job, "Queued", attempt=2)
        assert api.status(job)["grownMemory"]["limit"] == "12288Mi"
        api.edit(job, template=template("10Gi"))
        await api.until(lambda: api.status(job)["request"]["resources"]["memory"] == str(10 << 30), timeout_s=60)
        assert "grownMemory" not in api.status(job)
