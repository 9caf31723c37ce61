"""A status is stored, and its answer is lost: events and counts are as without the loss, and none comes twice."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from coda.errors import Outage
from coda_kube.objects.json_types import Json
from tests.operator_tests.fake_cluster import FakeCluster
from tests.operator_tests.operators import Operator, Wire, operator
from tests.operator_tests.rest_of_cluster import rest_of_cluster
from tests.operator_tests.test_accidents import events
from tests.operator_tests.test_lost_ranks import reaches


class Lossy(FakeCluster):
    """Loses the answer to the first write of each phase in `lost`; with `stores` false, the write, too."""

    def __init__(self, *lost: str, stores: bool = True) -> None:
        super().__init__()
        self.lost = set(lost)
        self._stores = stores

    async def apply(self, path: str, body: Json, **options: Any) -> Json:
        phase = (body.get("status") or {}).get("phase")
        if phase not in self.lost:
            return await super().apply(path, body, **options)
        self.lost.remove(phase)
        if self._stores:
            await super().apply(path, body, **options)
        raise Outage("no answer in 5 s")


def counts(process: Operator) -> dict[str, float]:
    found = {}
    for family in process.registry.collect():
        for sample in family.samples:
            if sample.name.startswith("coda_operator_") and sample.name.endswith(("_total", "_count")):
                found[f"{sample.name}{sorted(sample.labels.items())}"] = sample.value
    return found


def run_s(attempt: int, rank: int) -> float:
    return 60.0


def exit_code(attempt: int, rank: int) -> int:
    return 1


async def told_of_a_failure(api: Lossy) -> tuple[list[str], dict[str, float]]:
    async with rest_of_cluster(api, run_s=run_s, exit_code=exit_code), operator(api) as process:
        job = api.submit(retries=0)
        await reaches(api, job, "Failed")
        await api.until(lambda: "RankFailed" in events(api, job), timeout_s=900)
    assert not api.lost
    return events(api, job), counts(process)


@pytest.mark.parametrize("stores", [True, False], ids=["stored", "lost as a whole"])
@pytest.mark.parametrize("lost", [("Failed",), ("Running",), ("Starting", "Running", "Failed")])
async def test_a_lost_answer_costs_no_event_and_no_count(lost: tuple[str, ...], stores: bool) -> None:
    api = Lossy(*lost, stores=stores)
    without, expected = await told_of_a_failure(Lossy())
    told, counted = await told_of_a_failure(api)
    assert [reason for reason in told if reason != "Starting"] == without  # it may run only after a moment
    ends = {
        name: value
        for name, value in expected.items()
        if "attempts_ended" in name or "launch" in name or "wait" in name
    }
    assert {name: counted[name] for name in ends} == ends
    assert any(value == 1 for name, value in ends.items() if "RankFailed" in name)


@pytest.mark.parametrize("last_write", range(8, 20))
async def test_the_next_process_does_not_tell_again(last_write: int) -> None:
    """The first one dies while a write is in doubt, or after it: an event may be lost, and none comes twice."""
    api = Lossy("Running", "Failed")
    wire = Wire(api, last_write=last_write)
    async with rest_of_cluster(api, run_s=run_s, exit_code=exit_code):
        async with operator(api, wire=wire):
            job = api.submit(retries=0)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(300):
                    await wire.dead.wait()
        async with operator(api):
            await reaches(api, job, "Failed")
            await asyncio.sleep(900)
    told = events(api, job)
    assert len(told) == len(set(told))
