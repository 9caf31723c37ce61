"""The owner of CPU jobs against an API server in memory that plays planner and kubelet."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from coda.errors import InvalidInput
from coda.model import Phase
from coda_cli.job_history import Follower
from coda_cli.replay.cpu_owner import CpuJobOwner
from coda_cli.replay.submissions import Manner, Submission
from coda_kube.api.client import AlreadyExists, Client
from coda_kube.objects.json_types import Json
from coda_sim.engine import CostSetting
from tests.cli.worlds import gang, submissions

GATES = [{"name": "coda.scheduler/admission"}]


class Pods(Client):
    """Jobs and pods that are created, by name."""

    def __init__(self, *, has_opted_in: bool = True) -> None:
        self.made: dict[str, Json] = {}
        self.news = asyncio.Event()
        self._gates = GATES if has_opted_in else []

    async def create(self, path: str, body: Json, query: Any = None) -> Json:
        body = copy.deepcopy(body)
        if body["kind"] == "Pod":
            body["spec"]["schedulingGates"] = self._gates
        if query:
            return body
        if body["metadata"]["name"] in self.made:
            raise AlreadyExists(409, "AlreadyExists", "there")
        body["metadata"]["uid"] = f"uid-{body['metadata']['name']}"
        self.made[body["metadata"]["name"]] = body
        self.news.set()
        return body

    async def pod(self, name: str) -> Json:
        """The pod, once it is made."""
        async with asyncio.timeout(5):
            while name not in self.made:
                self.news.clear()
                await self.news.wait()
        return self.made[name]


def seen(pod: Json, *, planned: str = "", phase: str = "Pending", deleted: bool = False) -> Json:
    pod = copy.deepcopy(pod)
    if planned:
        pod["metadata"]["annotations"]["coda.scheduler/planned-time"] = planned
    if deleted:
        pod["metadata"]["deletionTimestamp"] = planned
    return {**pod, "status": {"phase": phase}}


@asynccontextmanager
async def owned(
    *jobs: Submission, manner: Manner, now_s: list[float]
) -> AsyncIterator[tuple[CpuJobOwner, Pods, Follower]]:
    pods, follower = Pods(), Follower(now=lambda: now_s[0])
    owner = CpuJobOwner(pods, manner, jobs, follower, now=lambda: now_s[0])
    await owner.create_jobs()
    running = asyncio.create_task(owner.run())
    try:
        yield owner, pods, follower
    finally:
        running.cancel()


@pytest.mark.parametrize(("costs", "again_s"), [(CostSetting.PAID, "10.000000"), (CostSetting.RESUMED, "6.000000")])
async def test_an_evicted_pod_is_made_anew_and_begins_again_or_goes_on(costs: CostSetting, again_s: str) -> None:
    manner = Manner(namespace="default", run="r", speed=100.0, image="busybox", costs=costs)
    (job,) = submissions(gang("c1", gpus=0, duration_s=1000.0), manner=manner)
    now_s = [5.0]
    async with owned(job, manner=manner, now_s=now_s) as (owner, pods, follower):
        await owner.create_pods(job)
        first = await pods.pod("c1-0-1")
        owner.on_pod(None, seen(first))
        assert follower.is_queued("c1")
        owner.on_pod(None, seen(first, planned="1970-01-01T00:00:08Z", phase="Running"))
        now_s[0] = 12.0
        owner.on_pod(None, seen(first, planned="1970-01-01T00:00:08Z", phase="Running", deleted=True))
        owner.on_pod(None, seen(first, planned="1970-01-01T00:00:08Z", phase="Failed", deleted=True))
        owner.on_pod(seen(first), None)
        second = await pods.pod("c1-0-2")
        assert second["metadata"]["annotations"]["sim.coda.scheduler/run-seconds"] == again_s
        owner.on_pod(None, seen(second, planned="1970-01-01T00:00:14Z", phase="Succeeded"))
        assert set(pods.made) == {"c1", "c1-0-1", "c1-0-2"}
    found = follower.by_name["c1"]
    assert (found.phase, found.stops, found.attempt, found.waited_again_s) == (Phase.SUCCEEDED, 1, 2, 2.0)


async def test_its_pods_belong_to_a_job_that_nobody_else_manages_and_that_counts_no_eviction() -> None:
    manner = Manner(namespace="default", run="r", speed=100.0, image="busybox")
    (job,) = submissions(gang("c1", gpus=0, replicas=2), manner=manner)
    async with owned(job, manner=manner, now_s=[0.0]) as (owner, pods, _):
        await owner.create_pods(job)
        await owner.create_pods(job)  # once more, after an answer that was lost
        assert set(pods.made) == {"c1", "c1-0-1", "c1-1-1"}
        spec, pod = pods.made["c1"]["spec"], pods.made["c1-1-1"]
    assert spec["managedBy"] == "coda.scheduler/replay"
    (owner_reference,) = pod["metadata"]["ownerReferences"]
    assert (owner_reference["uid"], owner_reference["controller"]) == ("uid-c1", True)
    assert pod["spec"]["containers"][0]["resources"] == {"requests": {"cpu": "4"}}


async def test_a_job_says_why_it_waits_by_the_events_on_it() -> None:
    manner = Manner(namespace="default", run="r", speed=100.0, image="busybox")
    (job,) = submissions(gang("c1", gpus=0), manner=manner)
    async with owned(job, manner=manner, now_s=[0.0]) as (owner, pods, follower):
        await owner.create_pods(job)
        owner.on_pod(None, seen(await pods.pod("c1-0-1")))
        about = {"kind": "Job", "name": "c1"}
        for of_a_user in ({}, {"reason": "NeverFits"}, {"reason": "NeverFits", "involvedObject": {"kind": "Job"}}):
            owner.on_event(None, {"involvedObject": {}} | of_a_user)
        for reason in ("InsufficientCPU", "InsufficientCPU", "Reclaimed"):
            owner.on_event(None, {"reason": reason, "message": "too few", "involvedObject": about})
    assert [one.code for one in follower.by_name["c1"].reasons] == ["InsufficientCPU"]


async def test_a_namespace_that_did_not_opt_in_is_refused_before_anything_is_made() -> None:
    manner = Manner(namespace="mine", run="r", speed=100.0, image="busybox")
    pods = Pods(has_opted_in=False)
    owner = CpuJobOwner(pods, manner, submissions(gang("c1", gpus=0), manner=manner), Follower())
    with pytest.raises(InvalidInput, match="namespace mine takes no CPU jobs: kubectl label namespace mine"):
        await owner.create_jobs()
    assert pods.made == {}
