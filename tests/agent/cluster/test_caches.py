"""The agent's caches: the jobs it watches, and what it writes to them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from coda.allocator import Tuning, TuningPhase
from coda.errors import Conflict, Outage
from coda_agent.cluster.caches import APPLIED, EVENT_KEPT_S, JOBS_PATH, AgentCaches, read_part
from coda_agent.cluster.jobs import TunedJob, tuned_job_from_json
from coda_agent.cluster.pods import local_pod_from_json
from coda_agent.report.node_profile import profile_object
from coda_kube.objects.json_types import Json
from coda_kube.objects.names import API_VERSION
from tests.extender.fake_api import Call, FakeApi
from tests.extender.objects import JOBS, NODES, job_json, node_json, placement
from tests.virtual_time import VirtualLoop

PROFILES = f"/apis/{API_VERSION}/nodeprofiles"
FIRST = Tuning(attempt=1, phase=TuningPhase.STOPPED, reason="NotMeasured", message="of the first attempt")


def running(attempt: int = 1) -> dict[str, Any]:
    job = job_json("train", phase="Running", attempt=attempt, placement=placement("n1", attempt=attempt))
    job["spec"]["cpusPerReplica"] = "auto"
    return job


def read(item: Json) -> TunedJob:
    job = tuned_job_from_json(item, most_cores=16)
    assert job is not None
    return job


async def test_a_node_that_was_cut_off_overwrites_no_tuning_of_a_later_attempt() -> None:
    api = FakeApi()
    seen = read(api.set(JOBS, running()))
    await AgentCaches(api, "n1").write_tuning(seen, FIRST)
    assert api.item(f"{JOBS}/train")["status"]["tuning"]["attempt"] == 1
    second = running(attempt=2)
    second["status"]["tuning"] = {"attempt": 2, "phase": "Measuring"}
    api.set(JOBS, second)
    with pytest.raises(Conflict):
        await AgentCaches(api, "n1").write_tuning(seen, FIRST)
    assert api.item(f"{JOBS}/train")["status"]["tuning"]["attempt"] == 2


async def test_the_tuning_of_the_attempt_before_is_told_apart_from_that_of_this_one() -> None:
    job = running(attempt=2)
    job["status"]["tuning"] = {"attempt": 1, "phase": "Stopped", "reason": FIRST.reason, "message": FIRST.message}
    seen = read(FakeApi().set(JOBS, job))
    assert (seen.tuning, seen.before) == (None, FIRST)
    job["status"]["tuning"]["attempt"] = 2
    seen = read(FakeApi().set(JOBS, job))
    assert (seen.tuning, seen.before) == (replace(FIRST, attempt=2), None)


async def test_the_usual_cores_are_those_of_category_hints_and_gpus_on_this_node() -> None:
    job = running()
    job["spec"] |= {"category": "NLP", "hints": {"pipelined": True}, "gpusPerReplica": 2}
    assert read(FakeApi().set(JOBS, job)).tuning_input.usual == 8
    job["spec"]["gpusPerReplica"] = 8
    assert read(FakeApi().set(JOBS, job)).tuning_input.usual == 16


async def test_how_long_earlier_attempts_ran_is_known_to_the_tuning() -> None:
    job = running()
    assert read(FakeApi().set(JOBS, job)).tuning_input.served_s == 0
    job["status"]["servedSeconds"] = 7200
    assert read(FakeApi().set(JOBS, job)).tuning_input.served_s == 7200


async def test_a_job_that_is_gone_is_no_error() -> None:
    api = FakeApi()
    seen = read(api.set(JOBS, running()))
    api.remove(f"{JOBS}/train")
    await AgentCaches(api, "n1").write_tuning(seen, FIRST)


class Making(FakeApi):
    """Makes what is applied and not there, as the API server does."""

    async def apply(self, path: str, body: Json, *, manager: str, timeout_s: float | None = None) -> Json:
        if path.endswith("/status"):
            return await super().apply(path, body, manager=manager)
        return self.set(path.rpartition("/")[0], body)


PROFILE = profile_object("n1", {"throttles": []}, 1_700_000_000.0)


async def owners_of(api: FakeApi) -> list[str]:
    return [owner["uid"] for owner in api.item(f"{PROFILES}/n1")["metadata"].get("ownerReferences") or ()]


async def test_a_profile_goes_with_its_node_and_is_made_again_where_it_went() -> None:
    """Else one with throttles would stay of each node that was lost, and a pod be sent there again and again."""
    api, cluster = Making(), None
    for uid in ("first", "second"):
        node = node_json("n1")
        node["metadata"]["uid"] = uid
        api.set(NODES, node)
        cluster = cluster or AgentCaches(api, "n1")
        await cluster.write_profile(PROFILE)
        assert await owners_of(api) == [uid]
        assert api.item(f"{PROFILES}/n1")["status"]["throttles"] == []
        api.remove(f"{PROFILES}/n1")
        api.remove(f"{NODES}/n1")


async def test_a_profile_needs_no_node_object() -> None:
    api = Making()
    await AgentCaches(api, "n1").write_profile(PROFILE)
    assert await owners_of(api) == []


async def test_one_request_tells_a_profile_that_is_there() -> None:
    api = Making()
    cluster = AgentCaches(api, "n1")
    await cluster.write_profile(PROFILE)
    api.calls.clear()
    await cluster.write_profile(PROFILE)
    assert [call.verb for call in api.calls] == ["apply"]


class Garbling(FakeApi):
    """Sends garbage in the first watch."""

    is_garbled = True

    @asynccontextmanager
    async def watch(self, path: str, query: Mapping[str, str], *, idle_s: float) -> AsyncIterator[AsyncIterator[Json]]:
        if self.is_garbled and path == JOBS_PATH:
            self.is_garbled = False
            raise ValueError("garbage")
        async with super().watch(path, query, idle_s=idle_s) as events:
            yield events


def test_a_watch_of_jobs_that_broke_begins_again(caplog: pytest.LogCaptureFixture) -> None:
    """Else the jobs would stand still for the agent, and their tuning with them."""

    async def followed() -> str:
        api = Garbling()
        api.set(JOBS, running())
        cluster = AgentCaches(api, "n1")
        caches = asyncio.create_task(cluster.run())
        while api.is_garbled:
            await asyncio.sleep(0.1)
        api.change(f"{JOBS}/train", lambda item: item["status"].update(phase="Succeeded"))
        await asyncio.sleep(60)
        caches.cancel()
        await asyncio.wait({caches})
        return str((cluster.job("default/train") or {"status": {}})["status"].get("phase"))

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        assert runner.run(followed()) == "Succeeded"
    assert "an error of our own; listing again" in caplog.text


class Counting(FakeApi):
    """Counts watches by path and field selector."""

    def __init__(self) -> None:
        super().__init__()
        self.watches: list[tuple[str, str | None]] = []

    @asynccontextmanager
    async def watch(self, path: str, query: Mapping[str, str], *, idle_s: float) -> AsyncIterator[AsyncIterator[Json]]:
        self.watches.append((path, query.get("fieldSelector")))
        async with super().watch(path, query, idle_s=idle_s) as events:
            yield events


@pytest.mark.parametrize(
    ("cpu", "cores_m"),
    [("47500m", 47500), ("48", 48000), (None, None), ("many", None)],
    ids=["less than it has", "all", "it does not say", "nobody can read it"],
)
def test_what_the_node_gives_to_pods_is_read_from_it(cpu: str | None, cores_m: int | None) -> None:
    async def read_() -> int | None:
        api = FakeApi()
        node = node_json("n1")
        node["status"]["allocatable"] = {} if cpu is None else {"cpu": cpu}
        api.set(NODES, node)
        cluster = AgentCaches(api, "n1")
        caches = asyncio.create_task(cluster.run())
        await asyncio.sleep(1000)
        caches.cancel()
        await asyncio.wait({caches})
        gets = sum(call.verb == "get" and call.path == f"{NODES}/n1" for call in api.calls)
        assert 1 <= gets <= 12
        return cluster.allocatable_m

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        assert runner.run(read_()) == cores_m


def test_all_jobs_of_a_node_are_one_watch() -> None:
    async def watched(jobs: int) -> tuple[list[tuple[str, str | None]], int]:
        api = Counting()
        for number in range(jobs):
            job = running()
            job["metadata"]["name"] = f"train-{number}"
            api.set(JOBS, job)
        cluster = AgentCaches(api, "n1")
        caches = asyncio.create_task(cluster.run())
        await asyncio.sleep(200)
        known = sum(cluster.job(f"default/train-{number}") is not None for number in range(jobs))
        caches.cancel()
        await asyncio.wait({caches})
        return sorted(api.watches), known

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        one, many = runner.run(watched(1)), runner.run(watched(8))
    assert (one[1], many[1]) == (1, 8)
    assert one[0] == many[0]
    assert (JOBS_PATH, "status.placement.rank0Node=n1") in many[0]


def test_an_event_is_posted_once_the_api_server_is_back() -> None:
    """A first answer that was lost does not make it two events."""

    async def outage() -> list[Json]:
        api = FakeApi()
        tries: list[float] = []

        def away(call: Call) -> None:
            tries.append(asyncio.get_running_loop().time())
            if tries[-1] - tries[0] < 300.0:
                if len(tries) == 1:
                    api.set(call.path, call.body)  # it arrived, and only the answer is lost
                raise Outage("POST: connection reset")

        api.before = away
        event = {"metadata": {"generateName": "train.", "namespace": "default"}, "reason": "Throttled"}
        await AgentCaches(api, "n1").post_event(event)
        assert len(tries) < 30
        api.before = None
        return list((await api.list_pages("/api/v1/namespaces/default/events"))["items"])

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        (event,) = runner.run(outage())
    assert event["metadata"]["name"].startswith("train.")


def test_an_event_is_given_up_after_a_long_outage() -> None:
    async def outage() -> float:
        api = FakeApi()

        def away(call: Call) -> None:
            raise Outage("POST: connection refused")

        api.before = away
        with pytest.raises(Outage):
            await AgentCaches(api, "n1").post_event({"metadata": {"generateName": "x.", "namespace": "default"}})
        return asyncio.get_running_loop().time()

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        assert EVENT_KEPT_S <= runner.run(outage()) <= EVENT_KEPT_S + 60


def test_of_a_pod_only_what_is_read_is_kept() -> None:
    secret = "x" * 5000
    container = {
        "name": "main",
        "image": "i",
        "env": [{"name": "TOKEN", "value": secret}],
        "resources": {
            "requests": {"cpu": "1500m", "nvidia.com/gpu": "2"},
            "limits": {"cpu": "2", "nvidia.com/gpu": "2"},
        },
    }
    pod: Json = {
        "metadata": {
            "name": "p",
            "namespace": "default",
            "uid": "u",
            "resourceVersion": "3",
            "labels": {"coda.scheduler/throttling": "false"},
            "annotations": {APPLIED: secret, "kubernetes.io/config.mirror": "x"},
            "ownerReferences": [{"kind": "DaemonSet", "name": "d", "apiVersion": "apps/v1", "uid": "1"}],
        },
        "spec": {
            "nodeName": "n1",
            "priority": 7,
            "containers": [container],
            "initContainers": [{"name": "first", "command": [secret], "resources": {"requests": {"cpu": "3"}}}],
            "volumes": [{"name": secret}],
            "affinity": {"nodeAffinity": {}},
        },
        "status": {"phase": "Running", "qosClass": "Burstable", "containerStatuses": [{"name": "main"}]},
    }
    kept = read_part(pod)
    assert secret not in str(kept)
    assert local_pod_from_json(kept, {"default"}) == local_pod_from_json(pod, {"default"})
    assert secret in str(pod)  # as it came: it may be shared
