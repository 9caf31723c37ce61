"""Reboots that end ranks: none counts as the job's own failure, whenever the only operator is away or begins."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Mapping
from typing import Any

import pytest

from coda_kube.objects.json_types import Json
from tests.operator_tests.fake_cluster import PODS, FakeCluster
from tests.operator_tests.operators import Wire, operator
from tests.operator_tests.rest_of_cluster import rest_of_cluster
from tests.operator_tests.test_accidents import never, set_ready
from tests.operator_tests.test_lost_ranks import reaches, runs

FIRST, SECOND = {"bootID": "first"}, {"bootID": "second"}


def booted(api: FakeCluster, boot: Mapping[str, str], *nodes: str) -> None:
    for node in nodes:
        set_ready(api, node, "True", nodeInfo=dict(boot))


def ends(api: FakeCluster, *names: str, code: int = 1) -> None:
    """As a kubelet tells of containers that the reboot ended."""
    ended = {"exitCode": code, "reason": "Error"}
    status: Json = {"phase": "Failed", "containerStatuses": [{"name": "main", "state": {"terminated": ended}}]}
    for name in names:
        api.change(f"{PODS}/{name}", lambda pod: pod.update(status=copy.deepcopy(status)))


async def blamed(api: FakeCluster, job: str) -> tuple[int, int, str]:
    status = await reaches(api, job, "Queued", attempt=2)
    return status["failures"], status["disruptions"], status["reason"]


@pytest.mark.parametrize("code", [1, 137])
async def test_an_operator_that_begins_after_the_return_knows_of_the_reboot(code: int) -> None:
    """All nodes are rebooted in good order, for example. With no retry allowed an own failure would end the job."""
    api = FakeCluster()
    async with rest_of_cluster(api, exit_code=never):
        booted(api, FIRST, "n0", "n1")
        async with operator(api):
            job = await runs(api, retries=0)
            await asyncio.sleep(30)
        booted(api, SECOND, "n0", "n1")
        ends(api, "job-1-0", "job-1-1", code=code)
        await asyncio.sleep(20)
        async with operator(api):
            assert await blamed(api, job) == (0, 1, "NodeOutage")


async def test_an_operator_that_begins_after_a_failure_on_a_node_that_runs_counts_it() -> None:
    api = FakeCluster()
    async with rest_of_cluster(api, exit_code=never):
        booted(api, FIRST, "n0", "n1")
        async with operator(api):
            job = await runs(api)
            await asyncio.sleep(30)
        ends(api, "job-1-1")
        set_ready(api, "n1", "Unknown", nodeInfo=FIRST)
        await asyncio.sleep(20)
        async with operator(api):
            assert await blamed(api, job) == (1, 0, "RankFailed")


@pytest.mark.parametrize("late_s", [0.0, 0.1])
async def test_an_operator_that_begins_in_the_outage_knows_who_ran_before(
    monkeypatch: pytest.MonkeyPatch, late_s: float
) -> None:
    """Whichever list comes first. Nobody told boot ids."""
    api, plain = FakeCluster(), Wire.list_pages

    async def slow(self: Wire, path: str, query: Mapping[str, str] | None = None, page: int = 1000) -> Json:
        found = await plain(self, path, query, page)
        if path == PODS.replace("/namespaces/default", ""):
            await asyncio.sleep(late_s)
        return found

    async with rest_of_cluster(api, exit_code=never):
        async with operator(api):
            job = await runs(api)
        set_ready(api, "n1", "Unknown")
        await asyncio.sleep(20)
        monkeypatch.setattr(Wire, "list_pages", slow)
        async with operator(api, wire=Wire(api)):
            await asyncio.sleep(20)
            set_ready(api, "n1", "True")
            await asyncio.sleep(10)
            ends(api, "job-1-1")
            assert await blamed(api, job) == (0, 1, "NodeOutage")


@pytest.mark.parametrize("before", [True, False], ids=["known at the creation", "the node told its boot id later"])
async def test_an_end_that_is_told_just_before_the_reboot_waits_for_that(before: bool) -> None:
    api = FakeCluster()
    async with rest_of_cluster(api, exit_code=never), operator(api):
        if before:
            booted(api, FIRST, "n0", "n1")
        job = await runs(api)
        booted(api, FIRST, "n1")
        await asyncio.sleep(30)
        ends(api, "job-1-1")
        await asyncio.sleep(0.1)
        booted(api, SECOND, "n1")
        assert await blamed(api, job) == (0, 1, "NodeOutage")


async def test_a_pod_has_the_boot_id_of_its_node_and_none_that_a_template_names() -> None:
    api = FakeCluster()
    async with rest_of_cluster(api, exit_code=never), operator(api):
        booted(api, FIRST, "n1")
        mine: dict[str, Any] = {"metadata": {"annotations": {"coda.scheduler/boot": "mine"}}}
        template = {**mine, "spec": {"containers": [{"name": "main", "image": "train"}]}}
        await runs(api, template=template)
        notes = [api.item(f"{PODS}/job-1-{rank}")["metadata"]["annotations"] for rank in range(2)]
        assert [note.get("coda.scheduler/boot") for note in notes] == [None, "first"]
