"""Pods and jobs that cannot be written, for example because a user padded them to etcd's limit: asked less and less."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from coda.errors import CodaError, Outage
from coda_kube.api.client import Rejected
from tests.extender.fake_api import Call
from tests.operator_tests.fake_cluster import JOBS, PODS, FakeCluster, clock
from tests.operator_tests.operators import operator
from tests.operator_tests.rest_of_cluster import finish, rest_of_cluster
from tests.operator_tests.test_lost_ranks import reaches, runs

TOO_LARGE = Outage("HTTP 500: etcdserver: request is too large", may_have_worked=False)
FORBIDDEN = Rejected(403, "Forbidden", "the policy of this namespace lets nobody change pods")
HOUR_S = 3600.0


class Refusals:
    """Refuses every write of one object while it is `on`, and notes when it was asked."""

    def __init__(self, api: FakeCluster, path: str, error: CodaError) -> None:
        self.on = True
        self.times_s: list[float] = []
        self._path = path
        self._error = error
        api.before = self._refuse

    def _refuse(self, call: Call) -> None:
        if call.verb in ("patch", "delete", "apply") and call.path.removesuffix("/status") == self._path and self.on:
            self.times_s.append(clock())
            raise self._error


async def is_asked_seldom(refusals: Refusals) -> None:
    """Within some minutes, the tries are minutes apart."""
    await asyncio.sleep(HOUR_S / 2)
    tries = len(refusals.times_s)
    await asyncio.sleep(HOUR_S)
    assert 1 <= len(refusals.times_s) - tries <= 2 * HOUR_S / 240
    waits = [after - before for before, after in itertools.pairwise(refusals.times_s)]
    assert max(waits) < 601


@pytest.mark.parametrize("error", [TOO_LARGE, FORBIDDEN])
async def test_a_pod_that_cannot_be_let_go_is_asked_less_and_less_often(error: CodaError) -> None:
    api = FakeCluster()
    refusals = Refusals(api, f"{PODS}/job-1-0", error)
    async with rest_of_cluster(api), operator(api):
        await reaches(api, api.submit(), "Succeeded")
        await api.until(lambda: not api.pods()["job-1-1"]["metadata"]["finalizers"])
        await is_asked_seldom(refusals)
        tries = len(refusals.times_s)
        api.change(f"{PODS}/job-1-0", lambda pod: pod["metadata"].update(annotations={"smaller": "now"}))
        await asyncio.sleep(1.0)
        assert len(refusals.times_s) == tries + 1  # a change may be what it needs
        refusals.on = False
        await api.until(lambda: not api.pods()["job-1-0"]["metadata"]["finalizers"], timeout_s=601.0)


@pytest.mark.parametrize("error", [TOO_LARGE, FORBIDDEN])
async def test_a_pod_that_cannot_be_deleted_delays_its_own_job_only(error: CodaError) -> None:
    api = FakeCluster()
    refusals = Refusals(api, f"{PODS}/job-1-0", error)
    never = lambda attempt, rank: None  # noqa: E731 - reads as a value
    async with rest_of_cluster(api, exit_code=never), operator(api):
        job = await runs(api)
        api.change(f"{PODS}/job-1-1", lambda pod: finish(pod, 1))
        await reaches(api, job, "Restarting")
        await api.until(lambda: "job-1-1" not in api.pods(), timeout_s=60.0)
        await runs(api, name="other")
        await is_asked_seldom(refusals)
        refusals.on = False
        await reaches(api, job, "Running", attempt=2)


async def test_a_job_whose_status_cannot_be_written_is_asked_less_and_less_often_until_it_changes() -> None:
    api = FakeCluster()
    async with rest_of_cluster(api), operator(api):
        job = api.submit()
        refusals = Refusals(api, f"{JOBS}/job", TOO_LARGE)
        await is_asked_seldom(refusals)
        refusals.on = False
        api.change(job, lambda item: item["metadata"].update(annotations={"smaller": "now"}))
        await api.until(lambda: api.status(job).get("phase") == "Running", timeout_s=10.0)


async def test_a_pod_without_a_job_that_cannot_be_let_go_holds_up_no_other() -> None:
    api = FakeCluster()
    refusals = Refusals(api, f"{PODS}/job-1-0", TOO_LARGE)
    never = lambda attempt, rank: None  # noqa: E731 - reads as a value
    async with rest_of_cluster(api, exit_code=never):
        async with operator(api):
            job = await runs(api)
        api.remove(job)
        for name in api.pods():
            api.end(f"{PODS}/{name}")
        async with operator(api):
            await api.until(lambda: "job-1-1" not in api.pods(), timeout_s=120.0)
            await is_asked_seldom(refusals)
            assert list(api.pods()) == ["job-1-0"]
