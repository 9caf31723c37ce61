"""What a rank requests is asked again while no present node could hold it: nodes and webhooks change meanwhile."""

from __future__ import annotations

import asyncio
import heapq
from itertools import pairwise
from typing import Any

import pytest

from coda_kube.api.client import Rejected
from coda_kube.objects.json_types import Json
from coda_kube.objects.quantities import time_from_seconds
from coda_operator.reconcile.accepting.asked_again import AGAIN_S, SPACING_S, AskedAgain
from coda_operator.view.job_record import JobRecord, record_from_json
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


class Line:
    """Jobs that are looked at when they say, as the work queue does, and when each was asked."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.asked = AskedAgain(lambda: self.now_s)
        self.job_by_name: dict[str, JobRecord] = {}
        self.looks: list[tuple[float, str]] = []
        self.looked = 0
        self.moments_by_name: dict[str, list[float]] = {}

    def tell(self, name: str, code: str) -> None:
        self.job_by_name[name] = told_job(name, code)
        self._look_again(name)

    def go_on(self, seconds: float) -> None:
        until_s = self.now_s + seconds
        while self.looks and self.looks[0][0] <= until_s:
            at_s, name = heapq.heappop(self.looks)
            self.now_s = max(self.now_s, at_s)
            self.looked += 1
            if self.asked.take_turn(self.job_by_name[name]):
                self.moments_by_name.setdefault(name, []).append(self.now_s)
            self._look_again(name)
        self.now_s = until_s

    def _look_again(self, name: str) -> None:
        at_s = self.asked.look_s(self.job_by_name[name])
        if at_s is not None:
            heapq.heappush(self.looks, (at_s, name))


def told_job(name: str, code: str) -> JobRecord:
    job = {
        "metadata": {"name": name, "namespace": "a", "uid": f"uid-{name}", "generation": 1, "resourceVersion": "1"},
        "spec": {"replicas": 1, "retries": 0, "successPolicy": "AllRanks", "startDeadlineSeconds": 60}
        | {"suspend": False, "gpusPerReplica": 8, "cpusPerReplica": 8},
        "status": {"phase": "Queued", "attempt": 1, "observedGeneration": 1, "request": {"cpusPerReplica": 8}}
        | {"pending": {"code": code, "generation": 1}},
    }
    return record_from_json(f"a/{name}", job)


def test_a_job_does_not_wait_for_the_turns_of_jobs_that_some_node_fits_by_now() -> None:
    line = Line()
    for code in ["NeverFits", "InsufficientGPUs"] * 24:  # the last node of a pool goes and comes
        for number in range(300):
            line.tell(f"job-{number}", code)
        line.now_s += 60.0
    line.looks.clear()
    line.tell("alone", "NeverFits")
    began_s = line.now_s
    line.go_on(3600.0)
    assert line.moments_by_name["alone"][0] == began_s + AGAIN_S
    assert set(line.moments_by_name) == {"alone"}


def test_each_of_thousands_of_jobs_has_its_turn_and_is_looked_at_about_every_two_minutes() -> None:
    line, count, hours = Line(), 2000, 2.0
    for number in range(count):
        line.tell(f"job-{number}", "NeverFits")
    line.go_on(hours * 3600.0)
    moments = sorted(moment for each in line.moments_by_name.values() for moment in each)
    assert min(after - before for before, after in pairwise(moments)) >= SPACING_S
    assert len(line.moments_by_name) == count
    pauses = [after - before for each in line.moments_by_name.values() for before, after in pairwise(each)]
    assert max(pauses) <= count * SPACING_S * 1.05
    assert line.looked <= 2.5 * count * hours * 3600.0 / AGAIN_S


@pytest.mark.parametrize("leave", ["fit", "go"])
def test_the_last_of_many_jobs_is_asked_soon_once_the_others_have_left_the_line(leave: str) -> None:
    line = Line()
    for number in range(2000):
        line.tell(f"job-{number}", "NeverFits")
    line.tell("last", "NeverFits")
    line.go_on(10.0)
    for number in range(2000):
        if leave == "fit":
            line.job_by_name[f"job-{number}"] = told_job(f"job-{number}", "InsufficientGPUs")
            assert line.asked.look_s(line.job_by_name[f"job-{number}"]) is None
        else:
            line.asked.forget(f"a/job-{number}")
    line.looks = [look for look in line.looks if look[1] == "last"]
    began_s = line.now_s
    line.go_on(20 * 60.0)
    moments = [began_s, *line.moments_by_name["last"]]
    assert max(after - before for before, after in pairwise(moments)) <= AGAIN_S
    assert len(moments) >= 10


def test_whoever_never_comes_for_its_turn_keeps_nobody_from_it() -> None:
    line = Line()
    line.asked.look_s(told_job("gone", "NeverFits"))
    line.tell("job", "NeverFits")
    line.go_on(4 * AGAIN_S)
    assert len(line.moments_by_name["job"]) == 3
