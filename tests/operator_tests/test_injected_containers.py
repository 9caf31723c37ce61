"""A mutating webhook puts a container of its own before those of the template: the rank is still the template's."""

from __future__ import annotations

import asyncio

import pytest

from coda_kube.objects.json_types import Json
from coda_kube.objects.quantities import time_from_seconds
from tests.operator_tests.fake_cluster import PODS, FakeCluster, clock
from tests.operator_tests.operators import operator
from tests.operator_tests.rest_of_cluster import pin_of, rest_of_cluster
from tests.operator_tests.test_lost_ranks import reaches

PROXY = {"name": "proxy", "state": {"running": {}}}


def injecting() -> FakeCluster:
    """An API server with such a webhook."""
    api = FakeCluster()
    api.admit = lambda pod: pod["spec"].update(containers=[{"name": "proxy"}, *pod["spec"]["containers"]])
    return api


def main_is(pod: Json, state: Json) -> None:
    """What the kubelet says; the proxy runs on, and so does the pod."""
    main = {"name": "main", "state": state, "resources": pod["spec"]["containers"][1]["resources"]}
    pod["status"] = {"phase": "Running", "containerStatuses": [PROXY, main]}


@pytest.mark.parametrize(("code", "phase"), [(0, "Succeeded"), (1, "Failed")])
async def test_a_job_ends_with_its_main_container(code: int, phase: str) -> None:
    api = injecting()
    async with rest_of_cluster(api, moves_pods=False), operator(api):
        job = api.submit(replicas=1, retries=0)
        await api.until(lambda: "job-1-0" in api.pods())
        api.change(f"{PODS}/job-1-0", lambda pod: pod["spec"].update(nodeName=pin_of(pod)))
        api.change(f"{PODS}/job-1-0", lambda pod: main_is(pod, {"running": {}}))
        await reaches(api, job, "Running")
        ended = {"exitCode": code, "finishedAt": time_from_seconds(clock())}
        api.change(f"{PODS}/job-1-0", lambda pod: main_is(pod, {"terminated": ended}))
        await reaches(api, job, phase)


async def test_granted_cores_go_to_the_main_container() -> None:
    api = injecting()
    async with rest_of_cluster(api, moves_pods=False), operator(api):
        job = api.submit(replicas=1, cpusPerReplica="auto")
        await api.until(lambda: "job-1-0" in api.pods())
        api.change(f"{PODS}/job-1-0", lambda pod: pod["spec"].update(nodeName=pin_of(pod)))
        api.change(f"{PODS}/job-1-0", lambda pod: main_is(pod, {"running": {}}))
        await reaches(api, job, "Running")
        answer = {"sequence": 1, "state": "Granted", "coresPerReplica": 9, "time": time_from_seconds(clock())}
        answer["deadline"] = time_from_seconds(clock() + 30)
        api.change(job, lambda item: item["status"]["placement"].update(grant=answer))
        await asyncio.sleep(10)
    (body,) = [call.body for call in api.calls if call.path.endswith("/resize")]
    cpu = {"cpu": "9"}
    assert body["spec"] == {"containers": [{"name": "main", "resources": {"requests": cpu, "limits": cpu}}]}


async def test_the_memory_of_the_main_container_grows() -> None:
    api = injecting()
    async with rest_of_cluster(api, moves_pods=False), operator(api):
        resources = {"limits": {"memory": "8Gi"}, "requests": {"memory": "8Gi"}}
        template = {"spec": {"containers": [{"name": "main", "image": "train:1", "resources": resources}]}}
        job = api.submit(replicas=1, template=template, growMemoryTo="64Gi")
        await api.until(lambda: "job-1-0" in api.pods())
        api.change(f"{PODS}/job-1-0", lambda pod: pod["spec"].update(nodeName=pin_of(pod)))
        ended = {"exitCode": 137, "finishedAt": time_from_seconds(clock()), "reason": "OOMKilled"}
        api.change(f"{PODS}/job-1-0", lambda pod: main_is(pod, {"terminated": ended}))
        await reaches(api, job, "Restarting", grownMemory={"request": "12288Mi", "limit": "12288Mi"})
