"""A stop that is announced first, by an operator that may be killed after every write of it. Time is virtual."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from coda_kube.api.client import Rejected
from coda_kube.objects.json_types import Json
from coda_kube.objects.pods.stops import ANNOTATION_STOP, announcement_from_metadata
from coda_kube.objects.quantities import seconds_from_time, time_from_seconds
from tests.extender.fake_api import Call
from tests.operator_tests.fake_cluster import PODS, FakeCluster, clock
from tests.operator_tests.operators import Wire, operator
from tests.operator_tests.rest_of_cluster import END_BY_CODE, rest_of_cluster

NOTICE_S = 60
NEVER_ENDS: Any = lambda attempt, rank: None  # noqa: E731 - reads as a value


def order(api: FakeCluster, job: str, notice_s: int = NOTICE_S) -> None:
    """As the planner writes it."""
    stop: Json = {"cause": "Migrate", "by": "default/large", "time": time_from_seconds(clock())}
    if notice_s:
        stop["noticeSeconds"] = notice_s
    api.change(job, lambda item: item["status"]["placement"].update(stop=stop))


def answer(api: FakeCluster, job: str) -> None:
    """As the agent writes it."""
    plan = api.status(job)["placement"]["planId"]
    saved = {"attempt": 1, "savedStep": 7, "savedTime": time_from_seconds(clock()), "stopAnswer": plan}
    api.change(job, lambda item: item["status"].update(progress=saved))


async def is_stopping(api: FakeCluster, job: str) -> Json:
    await api.until(lambda: "stopDeadline" in api.status(job) and all(map(is_told, api.pods().values())))
    return api.status(job)


def is_told(pod: Json) -> bool:
    return ANNOTATION_STOP in pod["metadata"]["annotations"]


def is_deleted(api: FakeCluster) -> bool:
    return any("deletionTimestamp" in pod["metadata"] for pod in api.pods().values())


async def stopped(api: FakeCluster, job: str) -> Json:
    """How the stop ended."""
    await api.until(lambda: "lastStop" in api.status(job), timeout_s=600)
    last: Json = api.status(job)["lastStop"]
    return last


async def test_all_ranks_are_told_and_who_has_saved_is_stopped_at_once() -> None:
    api = FakeCluster()
    async with rest_of_cluster(api, exit_code=NEVER_ENDS), operator(api) as process:
        job = api.submit(replicas=2, resumable=True, stopNoticeSeconds=NOTICE_S)
        await api.until(lambda: api.status(job).get("phase") == "Running")
        order(api, job)
        status = await is_stopping(api, job)
        due_s = seconds_from_time(status["stopDeadline"])
        for pod in api.pods().values():
            told = announcement_from_metadata(pod["metadata"])
            assert told is not None
            assert (told.id, told.cause, told.notice_s) == (status["placement"]["planId"], "Migrate", NOTICE_S)
            assert told.until_s == due_s
            assert "coda-job" in {volume["name"] for volume in pod["spec"]["volumes"]}  # the way of the announcement
        assert not is_deleted(api)
        answer(api, job)
        assert (await stopped(api, job))["answer"] == "Saved"
        assert clock() < due_s - NOTICE_S / 2
        assert process.count("coda_operator_stops_total", cause="Migrate", answer="Saved") == 1
        await api.until(lambda: api.status(job)["phase"] == "Running" and api.status(job)["attempt"] == 2)
        assert "stopDeadline" not in api.status(job)
        assert not any(map(is_told, api.pods().values()))


async def test_who_does_not_answer_is_stopped_when_the_notice_is_over_and_what_it_lost_is_counted() -> None:
    api = FakeCluster()
    async with rest_of_cluster(api, exit_code=NEVER_ENDS), operator(api) as process:
        job = api.submit(replicas=2, gpusPerReplica=4, resumable=True, stopNoticeSeconds=NOTICE_S)
        await api.until(lambda: api.status(job).get("phase") == "Running")
        order(api, job)
        due_s = seconds_from_time((await is_stopping(api, job))["stopDeadline"])
        last = await stopped(api, job)
        assert last["answer"] == "Late"
        assert due_s <= clock() <= due_s + 1.0
        assert last["lostSeconds"] >= NOTICE_S
        assert api.status(job)["lostGPUSeconds"] == last["lostSeconds"] * 8
        assert process.count("coda_operator_lost_gpu_seconds_total", cause="Migrate") == last["lostSeconds"] * 8


async def test_without_a_notice_it_is_stopped_at_once_and_nobody_is_told() -> None:
    api = FakeCluster()
    async with rest_of_cluster(api, exit_code=NEVER_ENDS), operator(api):
        job = api.submit(replicas=2, resumable=True)
        await api.until(lambda: api.status(job).get("phase") == "Running")
        order(api, job, notice_s=0)
        assert (await stopped(api, job))["answer"] == "Unasked"
        assert not any(is_told(pod) for _, pod in api.history("pods"))


@pytest.mark.parametrize("code", [0, 1])
async def test_an_end_within_the_notice_is_an_answer_and_no_success_and_no_failure(code: int) -> None:
    api = FakeCluster()
    async with rest_of_cluster(api, exit_code=NEVER_ENDS), operator(api):
        job = api.submit(replicas=2, resumable=True, stopNoticeSeconds=NOTICE_S)
        await api.until(lambda: api.status(job).get("phase") == "Running")
        order(api, job)
        await is_stopping(api, job)
        for name in list(api.pods()):
            api.change(f"{PODS}/{name}", END_BY_CODE[code])
        assert (await stopped(api, job))["answer"] == "Exited"
        await api.until(lambda: api.status(job)["phase"] == "Running")
        assert (api.status(job)["attempt"], api.status(job)["failures"]) == (2, 0)


async def test_a_pod_that_cannot_be_told_is_told_again_and_delays_nothing() -> None:
    api = FakeCluster()
    refused: list[str] = []

    def refuse(call: Call) -> None:
        if call.verb == "patch" and ANNOTATION_STOP in json.dumps(call.body) and len(refused) < 2:
            refused.append(call.path)
            raise Rejected(403, "Forbidden", "a webhook refuses it")

    api.before = refuse
    async with rest_of_cluster(api, exit_code=NEVER_ENDS), operator(api):
        job = api.submit(replicas=2, resumable=True, stopNoticeSeconds=NOTICE_S)
        await api.until(lambda: api.status(job).get("phase") == "Running")
        order(api, job)
        due_s = seconds_from_time((await is_stopping(api, job))["stopDeadline"])
        assert clock() < due_s
        assert len(refused) == 2
        await stopped(api, job)
        assert clock() <= due_s + 1.0


@pytest.mark.parametrize("lives", [[1], [2], [3], [1, 1], [2, 1]])
async def test_an_operator_that_dies_within_the_notice_neither_begins_it_again_nor_cuts_it(lives: list[int]) -> None:
    """Each process dies after so many writes of the stop; the next one comes 7 s later."""
    api = FakeCluster()
    async with rest_of_cluster(api, exit_code=NEVER_ENDS):
        async with operator(api):
            job = api.submit(replicas=2, resumable=True, stopNoticeSeconds=NOTICE_S)
            await api.until(lambda: api.status(job).get("phase") == "Running")
        order(api, job)
        ordered_s = clock()
        for writes in lives:
            wire = Wire(api, last_write=writes)
            async with operator(api, wire=wire):
                await wire.dead.wait()
            await asyncio.sleep(7.0)  # of virtual time
            assert not is_deleted(api)
        async with operator(api):
            await stopped(api, job)
            stopped_s = clock()
    written = [item["status"].get("stopDeadline") for _, item in api.history("trainingjobs") if item.get("status")]
    (due_s,) = {seconds_from_time(one) for one in written if one}
    assert ordered_s + NOTICE_S <= due_s <= stopped_s <= due_s + 8.0  # the last one may have died at that moment
