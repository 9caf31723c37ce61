"""What the operator makes of NodeProfiles: why a job is not tuned, and no more than it reads."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from coda.lifecycle.state import Untuned
from coda_kube.failures.node_xids import SILENT_S
from coda_kube.objects.quantities import time_from_seconds
from coda_operator.view import Agents, ClusterView
from coda_operator.view.agents import PROFILES_PATH
from tests.extender.fake_api import FakeApi
from tests.extender.objects import job_json, placement
from tests.operator_tests.fake_cluster import FakeCluster, clock
from tests.virtual_time import VirtualLoop


def followed(*profiles: dict[str, Any]) -> Agents:
    async def follow() -> Agents:
        api = FakeApi()
        for profile in profiles:
            api.set(PROFILES_PATH, profile)
        agents = Agents(api)
        assert agents.why_not_on("n1") is Untuned.UNKNOWN
        running = asyncio.create_task(agents.cache.run())
        await agents.cache.synced.wait()
        running.cancel()
        await asyncio.wait({running})
        return agents

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(follow())


def profile(**status: Any) -> dict[str, Any]:
    return {"metadata": {"name": "n1"}, "status": status}


@pytest.mark.parametrize(
    ("profiles", "why"),
    [
        pytest.param((), Untuned.NO_AGENT, id="it never had an agent"),
        pytest.param((profile(tune="off"),), Untuned.OFF, id="its agent is set not to"),
        pytest.param((profile(tune="on"),), Untuned.SILENT, id="its agent should"),
        pytest.param((profile(tune="advise"),), Untuned.SILENT, id="or should advise"),
        pytest.param((profile(),), Untuned.SILENT, id="an older agent"),
        pytest.param((profile(tune={"x": 1}),), Untuned.SILENT, id="nobody knows what it says"),
        pytest.param(({"metadata": {"name": "n1"}},), Untuned.SILENT, id="a profile without status"),
        pytest.param(({"metadata": {"name": "n2"}},), Untuned.NO_AGENT, id="another node's"),
    ],
)
def test_why_nobody_looks_for_the_cores_of_a_job(profiles: tuple[dict[str, Any], ...], why: Untuned) -> None:
    assert followed(*profiles).why_not_on("n1") is why


@pytest.mark.parametrize(
    ("spec", "tuning", "expected"),
    [
        pytest.param({"cpusPerReplica": "auto"}, None, Untuned.UNKNOWN, id="nobody has begun"),
        pytest.param({"cpusPerReplica": "auto"}, {"attempt": 1}, None, id="an agent has"),
        pytest.param({"cpusPerReplica": "auto"}, {"attempt": 1, "phase": "Tuned"}, None, id="it has its answer"),
        pytest.param(
            {"cpusPerReplica": "auto"}, {"attempt": 1, "phase": "Wishing"}, Untuned.UNKNOWN, id="a search goes on"
        ),
        pytest.param({"cpusPerReplica": 4}, None, None, id="its user chose its cores"),
    ],
)
async def test_only_jobs_whose_cores_are_to_be_found_ask(
    spec: dict[str, Any], tuning: dict[str, Any] | None, expected: Untuned | None
) -> None:
    api = FakeCluster()
    path = api.submit(**spec)
    running = job_json("job", phase="Running", placement=placement("n1"))["status"]
    job = api.change(path, lambda item: item.update(status=running | ({} if tuning is None else {"tuning": tuning})))
    cluster = ClusterView(api, print, print, clock=clock)
    cluster.apply_job_event("ADDED", job)
    record = cluster.job("default/job")
    assert record is not None
    assert cluster.situation(record).untuned is expected


@pytest.mark.parametrize(
    ("mode", "silent_s", "expected"),
    [
        pytest.param("on", SILENT_S - 60.0, Untuned.SEARCHED, id="its agent lives"),
        pytest.param("on", SILENT_S, Untuned.SILENT, id="it has said nothing for two hours"),
        pytest.param("off", 0.0, Untuned.OFF, id="it was set not to"),
        pytest.param("", 0.0, Untuned.NO_AGENT, id="it was taken away"),
    ],
)
async def test_a_search_whose_agent_went_away_is_not_forgotten(mode: str, silent_s: float, expected: Untuned) -> None:
    api, tuning = FakeCluster(), {"attempt": 1, "phase": "Measuring"}
    if mode:
        api.set(PROFILES_PATH, profile(tune=mode, time=time_from_seconds(clock())))
    path = api.submit(cpusPerReplica="auto")
    running = job_json("job", phase="Running", placement=placement("n1"))["status"]
    job = api.change(path, lambda item: item.update(status=running | {"tuning": tuning}))
    cluster = ClusterView(api, print, print, clock=clock)
    cluster.apply_job_event("ADDED", job)
    task = asyncio.create_task(cluster.agents.cache.run())
    await cluster.agents.cache.synced.wait()
    task.cancel()
    await asyncio.wait({task})
    await asyncio.sleep(silent_s)
    record = cluster.job("default/job")
    assert record is not None
    assert cluster.situation(record).untuned is expected


def test_of_a_profile_only_what_is_read_is_held() -> None:
    """A thousand nodes have megabytes of sockets, links and reports of ranks."""
    agents = followed(profile(tune="on", throttleCount=1, ranks=[{"jobUID": "u"}], sockets=[{"id": 0}]))
    assert agents.cache.by_key["n1"]["status"] == {"tune": "on", "throttleCount": 1}
