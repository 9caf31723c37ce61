"""What `coda top` says of objects as the API server has them."""

from __future__ import annotations

import asyncio
import io
import tracemalloc
from collections.abc import AsyncIterator, Mapping
from itertools import pairwise
from typing import Any

import orjson
import pytest
from rich.console import Console

from coda.errors import InvalidInput
from coda_cli.top import command
from coda_cli.top.cluster_use import (
    CPU,
    LARGE,
    OTHERS,
    SMALL,
    ClusterUse,
    NodeUse,
    cluster_use,
    job_of_array,
    throttles_of,
    unused_node,
)
from coda_cli.top.command import Rows, drawn, read_use
from coda_kube.api.client import Client, error_from_answer
from coda_kube.objects.json_types import Json
from coda_kube.objects.names import GATE
from coda_kube.objects.read import pod_from_json
from tests.extender.fake_api import Call, FakeApi
from tests.extender.objects import job_json, node_json, pod_json, rank_json
from tests.virtual_time import VirtualLoop

RELEASED = {"coda.scheduler/plan": "p", "coda.scheduler/planned-time": "2026-11-23T00:00:00Z"}


def training_job(name: str, **fields: Any) -> Json:
    job = job_json(name, **fields)
    job["metadata"]["namespace"] = "default"
    return job


def bound(name: str, node: str, *, resources: Json, phase: str = "Running", **metadata: Any) -> Json:
    return {
        "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}", **metadata},
        "spec": {"nodeName": node, "containers": [{"name": "main", "resources": resources}]},
        "status": {"phase": phase},
    }


def cpu_pod(name: str, node: str, *, borrows: bool = False, phase: str = "Running") -> Json:
    notes = RELEASED | ({"coda.scheduler/borrows": "true"} if borrows else {})
    return bound(name, node, resources={"requests": {"cpu": "2500m"}}, annotations=notes, phase=phase)


def profile(node: str, pod: str) -> Json:
    since = "2026-11-23T00:00:00Z"
    throttle = {"podUID": pod, "what": "bandwidth", "original": "100", "value": "40", "since": since}
    return {"metadata": {"name": node}, "status": {"throttles": [throttle]}}


def used() -> ClusterUse:
    pods = [
        rank_json("train", 0, "n1", node="n1"),
        cpu_pod("own", "n1"),
        cpu_pod("loan", "n1", borrows=True),
        cpu_pod("done", "n1", phase="Succeeded"),
        bound("foreign", "n1", resources={"requests": {"cpu": "1"}}),
        pod_json("waits", cpu="2", spec={"schedulingGates": [{"name": GATE}]}),
    ]
    jobs = [training_job("train", phase="Running"), training_job("small", gpus=1), training_job("large")]
    return cluster_use(
        map(unused_node, [node_json("n2", ready=False), node_json("n1")]),
        map(pod_from_json, pods),
        map(job_of_array, jobs),
        [one for pod in ("uid-own", "gone") for one in throttles_of(profile("n1", pod))],
    )


def test_a_node_says_who_has_its_cores_and_which_are_borrowed() -> None:
    first, second = used().nodes or ()
    assert first == NodeUse(
        name="n1",
        takes_pods=True,
        gpus=8,
        cores=48.0,
        used_gpus=8,
        gpu_jobs_cores=4.0,
        cpu_jobs_cores=5.0,
        borrowed_cores=2.5,
        others_cores=1.0,
        throttles=2,
    )
    assert (second.name, second.takes_pods, second.used_cores) == ("n2", False, 0.0)


def test_an_array_says_what_its_jobs_have_and_how_many_wait() -> None:
    found = {array.name: (array.pods, array.gpus, array.cores, array.waiting) for array in used().arrays}
    assert found == {LARGE: (1, 8, 4.0, 1), SMALL: (0, 0, 0.0, 1), CPU: (2, 0, 5.0, 1), OTHERS: (1, 0, 1.0, 0)}


def test_a_throttle_names_its_pod_as_long_as_there_is_one() -> None:
    assert [(one.node, one.pod, one.value) for one in used().throttles or ()] == [
        ("n1", "default/own", "40"),
        ("n1", "gone", "40"),
    ]


def test_a_terminal_shows_the_nodes_that_matter_first_and_says_how_many_are_left_out() -> None:
    said = io.StringIO()
    Console(file=said, width=140).print(drawn(used(), Rows(nodes=1, throttles=2)))
    text = said.getvalue()
    assert "n2" not in text
    assert "and 1 node more: coda top --once" in text
    assert "default/own" in text


def test_the_same_is_there_for_programs() -> None:
    told = used().as_json()
    assert (told["nodes"][0]["borrowed_cores"], told["throttles"][0]["what"]) == (2.5, "bandwidth")


async def test_it_is_read_from_a_cluster_and_a_cluster_without_coda_is_one_sentence() -> None:
    api = FakeApi()
    assert (await read_use(api))[0].nodes == ()

    def refuse(call: Call) -> None:
        if "trainingjobs" in call.path:
            raise error_from_answer(404, "404 page not found\n")

    api.before = refuse
    with pytest.raises(InvalidInput, match="install Coda first"):
        await read_use(api)


class Large(Client):
    """A cluster of many pods, as they are on the wire: 15 KiB each as Python objects."""

    def __init__(self, pods: int) -> None:
        self._pods = pods

    async def pages(self, path: str, query: Mapping[str, str] | None = None, page: int = 200) -> AsyncIterator[Json]:
        names = [f"web-{number}" for number in range(self._pods if path.endswith("/pods") else 0)]
        for begin in range(0, len(names), page):
            yield orjson.loads(orjson.dumps({"items": [of_others(name) for name in names[begin : begin + page]]}))


def of_others(name: str) -> Json:
    pod = bound(name, "n1", resources={"requests": {"cpu": "1"}})
    pod["metadata"]["annotations"] = {f"example.com/note-{number}": "x" * 50 for number in range(80)}
    return pod


async def test_one_page_of_pods_is_in_memory_at_a_time() -> None:
    peaks = []
    for pods in (1000, 4000):
        tracemalloc.start()
        try:
            use, _ = await read_use(Large(pods))
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
        assert sum(array.pods for array in use.arrays) == 0  # their node is not there
    assert peaks[1] - peaks[0] < 3000 * 4096


def test_a_look_that_takes_long_is_followed_by_a_pause_as_long(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[float] = []

    async def followed(took_s: float) -> list[float]:
        loop = asyncio.get_running_loop()

        async def read(*_: object) -> tuple[ClusterUse, tuple[str, ...]]:
            looks.append(loop.time())
            await asyncio.sleep(took_s)
            return used(), ()

        async def connect(*_: object, **__: object) -> FakeApi:
            return FakeApi()

        monkeypatch.setattr(command, "connect", connect)
        monkeypatch.setattr(command, "read_use", read)
        looks.clear()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(60.0):
                await command.follow(None, None, Console(file=io.StringIO(), force_terminal=True), 2.0)
        return [later - earlier for earlier, later in pairwise(looks)]

    for took_s, between_s in ((0.5, 2.5), (10.0, 20.0)):
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            assert set(runner.run(followed(took_s))) == {between_s}


@pytest.mark.parametrize(
    ("placement", "waits"),
    [({"attempt": 2, "generation": 3}, False), ({"attempt": 1, "generation": 3}, True), ({}, True)],
)
def test_the_placement_of_an_earlier_attempt_is_none(placement: Any, waits: bool) -> None:
    job = {
        "metadata": {"namespace": "default", "name": "j", "generation": 3},
        "spec": {"replicas": 1, "gpusPerReplica": 1},
        "status": {"phase": "Queued", "attempt": 2, "observedGeneration": 3, "placement": placement},
    }
    assert job_of_array(job).is_waiting is waits
