"""Which events are posted, and in which order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import pytest

from coda.errors import Outage
from coda.lifecycle import Progress
from coda.lifecycle.event_rules import EVENT_DELAY_S
from coda.lifecycle.transitions import STARTING
from coda.model import Phase
from coda_kube.objects.json_types import Json
from coda_operator.reconcile.events import KEPT_S, Recorder
from tests.operator_tests.fake_cluster import FakeCluster

SOON_S = EVENT_DELAY_S - 0.1
LATE_S = EVENT_DELAY_S + 0.1
LAUNCHED = (Phase.LAUNCHED, "Launched")
STARTS = (Phase.STARTING, STARTING)
RUNS = (Phase.RUNNING, "Running")
CANNOT_START = (Phase.LAUNCHED, "ImagePullBackOff")


@pytest.mark.parametrize(
    ("news", "after_s", "expected"),
    [
        pytest.param([LAUNCHED, RUNS], SOON_S, ["Running"], id="it runs soon"),
        pytest.param([STARTS, RUNS], SOON_S, ["Running"], id="it runs soon after it was bound"),
        pytest.param([LAUNCHED, RUNS], LATE_S, ["Launched", "Running"], id="it runs late"),
        pytest.param([LAUNCHED], LATE_S, ["Launched"], id="it does not run"),
        pytest.param([LAUNCHED, CANNOT_START, RUNS], 0.1, ["Launched", "ImagePullBackOff", "Running"], id="trouble"),
        pytest.param([LAUNCHED, (Phase.FAILED, "Error")], 0.1, ["Launched", "Error"], id="it fails"),
        pytest.param([RUNS, (Phase.SUCCEEDED, "Succeeded")], 0.1, ["Running", "Succeeded"], id="it is done soon"),
    ],
)
async def test_that_a_gang_is_on_its_way_is_told_only_when_it_does_not_run_soon(
    news: list[tuple[Phase, str]], after_s: float, expected: list[str]
) -> None:
    api = FakeCluster()
    job, other = (api.item(api.submit(name)) for name in ("mine", "other"))
    assert job["metadata"]["uid"] != other["metadata"]["uid"]
    recorder = Recorder(api, "operator-0")
    running = asyncio.create_task(recorder.run())
    recorder.record(other, Progress(phase=Phase.LAUNCHED, reason="Launched"))
    for phase, reason in news:
        recorder.record(job, Progress(phase=phase, reason=reason))
        await asyncio.sleep(after_s)
    await asyncio.sleep(2 * EVENT_DELAY_S)
    told = [(event["involvedObject"]["name"], event["reason"]) for _, event in api.history("events")]
    assert [reason for name, reason in told if name == "mine"] == expected
    assert [reason for name, reason in told if name == "other"] == ["Launched"]
    running.cancel()
    await asyncio.wait({running})


class SickNamespace(FakeCluster):
    """While `sick`, a webhook of the namespace `sick` lets each event wait for 10 s and then fails."""

    def __init__(self) -> None:
        super().__init__()
        self.sick = True
        self.told: list[str] = []

    async def create(self, path: str, body: Json, query: Mapping[str, str] | None = None) -> Json:
        if self.sick and path == "/api/v1/namespaces/sick/events":
            await asyncio.sleep(10)
            raise Outage("HTTP 500: failed calling webhook")
        self.told.append(f"{body['involvedObject']['name']} {body['reason']}")
        return body


@asynccontextmanager
async def recording(api: FakeCluster) -> AsyncIterator[Recorder]:
    recorder = Recorder(api, "operator-0")
    running = asyncio.create_task(recorder.run())
    try:
        yield recorder
    finally:
        running.cancel()
        await asyncio.wait({running})


def tell(recorder: Recorder, namespace: str, name: str, reason: str) -> None:
    metadata = {"namespace": namespace, "name": name, "uid": f"{namespace}-{name}", "resourceVersion": "1"}
    recorder.record({"metadata": metadata}, Progress(phase=Phase.FAILED, reason=reason))


async def test_a_namespace_whose_events_cannot_be_posted_silences_no_other() -> None:
    api = SickNamespace()
    async with recording(api) as recorder:
        for number in range(3):
            tell(recorder, "sick", f"s{number}", "NodeLost")
        await asyncio.sleep(15)
        for reason in ("NodeLost", "Error"):
            tell(recorder, "well", "w", reason)
        await asyncio.sleep(0.1)
        assert api.told == ["w NodeLost", "w Error"]


async def test_the_first_failure_of_a_namespace_delays_others_by_one_request() -> None:
    api = SickNamespace()
    async with recording(api) as recorder:
        tell(recorder, "sick", "s", "NodeLost")
        tell(recorder, "well", "w", "NodeLost")
        await asyncio.sleep(10.1)
        assert api.told == ["w NodeLost"]


async def test_events_that_had_to_wait_come_in_their_order() -> None:
    api = SickNamespace()
    async with recording(api) as recorder:
        for reason in ("NodeLost", "Queued", "Error"):
            tell(recorder, "sick", "s", reason)
        await asyncio.sleep(60)
        api.sick = False
        tell(recorder, "sick", "s", "Later")
        await asyncio.sleep(20)
        assert api.told == ["s NodeLost", "s Queued", "s Error", "s Later"]
        tell(recorder, "sick", "s", "Soon")
        await asyncio.sleep(0.1)
        assert api.told[4:] == ["s Soon"]


async def test_events_of_a_sick_namespace_leave_room_for_others_and_are_lost_in_the_end() -> None:
    api = SickNamespace()
    async with recording(api) as recorder:
        tell(recorder, "sick", "s", "First")
        await asyncio.sleep(11)
        for number in range(5000):
            tell(recorder, "sick", "s", f"E{number}")
        tell(recorder, "well", "w", "NodeLost")
        await asyncio.sleep(0.1)
        assert api.told == ["w NodeLost"]
        await asyncio.sleep(KEPT_S + 30)
        api.sick = False
        tell(recorder, "sick", "s", "New")
        await asyncio.sleep(30)
        assert api.told == ["w NodeLost", "s New"]
