"""Which events are posted, and in which order."""

from __future__ import annotations

import asyncio

import pytest

from coda.lifecycle import Progress
from coda.lifecycle.event_rules import EVENT_DELAY_S
from coda.lifecycle.transitions import STARTING
from coda.model import Phase
from coda_operator.reconcile.events import Recorder
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
