"""The waiting clock counts from the last moment at which the job began to wait. An edit that enlarges it resets it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from coda.cache.queue import waits_since_s
from coda.model import JobId, WaitCode
from coda.model.decision import Refusal, WaitReason
from coda_extender.planner.pending_reasons import pending_for
from coda_kube.objects.quantities import seconds_from_time, time_from_seconds
from coda_kube.objects.read import job_from_json
from tests.operator_tests.fake_cluster import FakeCluster, clock
from tests.operator_tests.operators import operator
from tests.operator_tests.rest_of_cluster import rest_of_cluster
from tests.operator_tests.test_lost_ranks import reaches

HOUR_S = 3600.0
IMPOSSIBLE = {"spec": {"nodeSelector": {"no": "such"}, "containers": [{"name": "main", "image": "train:1"}]}}


def waits_since(api: FakeCluster, job: str) -> float:
    """As the planner reads it."""
    read = job_from_json(api.item(job), {})
    assert read is not None
    return waits_since_s(read)


@pytest.mark.parametrize(
    ("edit", "is_reset"),
    [
        pytest.param({"replicas": 2000}, True, id="more ranks"),
        pytest.param({"gpusPerReplica": 8}, True, id="more GPUs"),
        pytest.param({"cpusPerReplica": 40}, True, id="more cores"),
        pytest.param({"replicas": 1}, False, id="fewer ranks"),
        pytest.param({"retries": 9}, False, id="another number of retries"),
    ],
)
async def test_only_an_edit_that_enlarges_a_gang_makes_it_wait_from_then_on(
    edit: dict[str, Any], is_reset: bool
) -> None:
    api = FakeCluster()
    async with operator(api):
        job = api.submit(replicas=2, gpusPerReplica=1, cpusPerReplica=4, template=IMPOSSIBLE)
        first = await reaches(api, job, "Queued")
        await asyncio.sleep(6 * HOUR_S)
        api.edit(job, **edit)
        await reaches(api, job, "Queued", reason="Edited")
        began_s = clock() if is_reset else seconds_from_time(first["queuedTime"])
        assert abs(waits_since(api, job) - began_s) < 2.0
        assert ("queuedTime", api.status(job)["queuedTime"] == first["queuedTime"]) == ("queuedTime", not is_reset)


def told(api: FakeCluster, job: str, code: str) -> None:
    """What the planner writes."""
    generation = api.status(job)["observedGeneration"]
    pending = {"code": code, "message": "waits", "generation": generation, "since": time_from_seconds(clock())}
    api.change(job, lambda item: item["status"].update(pending=pending))


POSSIBLE = {"spec": {"containers": [{"name": "main", "image": "train:1"}]}}


@pytest.mark.parametrize("is_away", [False, True], ids=["the operator runs", "the operator is away meanwhile"])
@pytest.mark.parametrize(
    ("code", "is_reset"),
    [("NoMatchingNode", True), ("NeverFits", True), ("UnknownTopologyLevel", True), ("InsufficientGPUs", False)],
)
async def test_an_edit_of_what_nothing_could_start_makes_it_wait_from_then_on(
    code: str, is_reset: bool, is_away: bool
) -> None:
    """Else a job would age that nobody can start, and give its place to real work by an edit."""
    api = FakeCluster()
    async with operator(api):
        job = api.submit(replicas=2, template=IMPOSSIBLE)
        first = await reaches(api, job, "Queued")
        told(api, job, code)
        await asyncio.sleep(72 * HOUR_S)
        if not is_away:
            api.edit(job, template=POSSIBLE)
            await reaches(api, job, "Queued", reason="Edited")
    if is_away:
        api.edit(job, template=POSSIBLE)
        async with operator(api):
            await reaches(api, job, "Queued", reason="Edited")
    began_s = clock() if is_reset else seconds_from_time(first["queuedTime"])
    assert abs(waits_since(api, job) - began_s) < 60.0
    assert (api.status(job)["queuedTime"] == first["queuedTime"]) == (not is_reset)


def says(api: FakeCluster, job: str, code: WaitCode) -> None:
    """What the planner writes, with what it keeps of what it wrote before."""
    reason = WaitReason(code=code, message="waits")
    refusal = Refusal(JobId(f"default/{job}"), api.status(job)["observedGeneration"], reason)
    status = api.status(job)
    api.change(job, lambda item: item["status"].update(pending=pending_for(refusal, status, clock())))


async def edited(api: FakeCluster, job: str, **spec: Any) -> None:
    """Edit it, and wait until that is accepted."""
    generation = api.status(job)["observedGeneration"]
    api.edit(job, **spec)
    await api.until(lambda: api.status(job)["observedGeneration"] == generation + 1)


@pytest.mark.parametrize("edit", [{"retries": 9}, {"replicas": 1}, {"template": POSSIBLE}], ids=str)
async def test_an_edit_takes_off_only_the_time_in_vain(edit: dict[str, Any]) -> None:
    """For a minute its node is away: three days behind busy ones were no wait in vain."""
    api = FakeCluster()
    async with operator(api):
        job = api.submit(replicas=2, template=IMPOSSIBLE)
        queued_s = seconds_from_time((await reaches(api, job, "Queued"))["queuedTime"])
        says(api, job, WaitCode.INSUFFICIENT_GPUS)
        await asyncio.sleep(72 * HOUR_S)
        says(api, job, WaitCode.NO_MATCHING_NODE)
        await asyncio.sleep(60.0)
        await edited(api, job, **edit)
        assert abs(waits_since(api, job) - queued_s - 60.0) < 2.0
        assert abs(seconds_from_time(api.status(job)["queuedTime"]) - queued_s - 60.0) < 2.0


async def test_many_edits_never_take_off_the_same_time_twice() -> None:
    """Though the operator starts again between any two, and the planner goes on saying the same."""
    api = FakeCluster()
    job = api.submit(replicas=2, template=IMPOSSIBLE)
    async with operator(api):
        queued_s = seconds_from_time((await reaches(api, job, "Queued"))["queuedTime"])
        says(api, job, WaitCode.INSUFFICIENT_GPUS)
        await asyncio.sleep(5 * HOUR_S)
    absent, too_small, busy = WaitCode.NO_MATCHING_NODE, WaitCode.NEVER_FITS, WaitCode.INSUFFICIENT_GPUS
    vain_s = 0.0
    for number, word in enumerate([absent, absent, too_small, busy, absent]):
        says(api, job, word)
        async with operator(api):
            await asyncio.sleep(HOUR_S)
            says(api, job, word)  # with other numbers
            await edited(api, job, retries=number + 10)
        vain_s += 0.0 if word is busy else HOUR_S
        assert abs(waits_since(api, job) - queued_s - vain_s) < 10.0
        assert abs(seconds_from_time(api.status(job)["queuedTime"]) - queued_s - vain_s) < 10.0


async def test_what_is_said_of_an_older_spec_takes_no_age() -> None:
    api = FakeCluster()
    async with operator(api):
        job = api.submit(replicas=2, template=IMPOSSIBLE)
        await reaches(api, job, "Queued")
        told(api, job, "NoMatchingNode")
        api.edit(job, template=POSSIBLE)
        taken = await reaches(api, job, "Queued", reason="Edited")
        await asyncio.sleep(HOUR_S)
        api.edit(job, retries=9)
        await api.until(lambda: api.status(job)["observedGeneration"] == 3)
        assert api.status(job)["queuedTime"] == taken["queuedTime"]


async def test_a_job_that_ran_and_failed_has_waited_since_then() -> None:
    api = FakeCluster()
    async with rest_of_cluster(api, exit_code=lambda attempt, rank: 1 if attempt == 1 else None), operator(api):
        job = api.submit()
        queued = (await reaches(api, job, "Queued"))["queuedTime"]
        waits = await reaches(api, job, "Queued", attempt=2)
        assert waits["queuedTime"] == queued  # its place in the queue
        assert clock() - 1.0 <= waits_since(api, job) <= clock()


def test_a_job_of_an_older_version_waits_since_it_was_queued() -> None:
    status = {
        "phase": "Queued",
        "queuedTime": "2026-01-01T00:00:00Z",
        "observedGeneration": 1,
        "request": {"resources": {"cpu": "1"}, "cpusPerReplica": 1},
    }
    metadata = {"namespace": "a", "name": "b", "uid": "u", "generation": 1}
    read = job_from_json({"metadata": metadata, "spec": {"replicas": 1}, "status": status}, {})
    assert read is not None
    assert waits_since_s(read) == seconds_from_time("2026-01-01T00:00:00Z")


async def test_a_field_that_ended_goes_though_another_manager_owns_it_too() -> None:
    """The user resets managedFields while the job backs off: `notBefore` would keep it waiting for ever."""
    api = FakeCluster()
    async with rest_of_cluster(api, exit_code=lambda attempt, rank: 1 if attempt == 1 else None), operator(api):
        job = api.submit()
        await reaches(api, job, "Queued", attempt=2)
        assert "notBefore" in api.status(job)
        api.reset_managers(job)
        api.edit(job, template={"spec": {"containers": [{"name": "main", "image": "train:2"}]}})
        await api.until(lambda: "notBefore" not in api.status(job), timeout_s=60.0)
