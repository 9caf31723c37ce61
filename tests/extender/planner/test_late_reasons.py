"""A first reason comes soon also while the API server is slow, and while others write to the same objects."""

import asyncio
import math
import time
from typing import Any

import pytest

from coda.placements.failed_writes import SLOW_PER_NAMESPACE
from coda_kube.objects.json_types import Json
from tests.extender.fake_api import FakeApi
from tests.extender.objects import JOBS, job_json
from tests.extender.replicas import replica, status
from tests.virtual_time import VirtualLoop

WRITE_S = 0.7  # longer than the patience with a write


class Slow(FakeApi):
    """Every write of a reason takes long, and somebody overtakes the first ones for a job."""

    def __init__(self, seconds: float, *, overtaken: int = 0) -> None:
        super().__init__()
        self._seconds, self._overtaken = seconds, overtaken
        self._tries: dict[str, int] = {}

    async def apply(self, path: str, body: Json, **how: Any) -> Json:
        name = path.split("/")[-2]
        await asyncio.sleep(self._seconds)
        self._tries[name] = self._tries.get(name, 0) + 1
        if self._tries[name] <= self._overtaken:
            item = self.item(f"{JOBS}/{name}")
            item["metadata"]["labels"] = {"overtaken": str(self._tries[name])}
            self.set(JOBS, item)
        return await super().apply(path, body, **how)


@pytest.mark.parametrize(("jobs", "overtaken"), [(1, 3), (8, 2), (60, 0), (60, 1)])
def test_a_first_reason_is_not_late_because_writes_are_slow(
    monkeypatch: pytest.MonkeyPatch, jobs: int, overtaken: int
) -> None:
    """When slow writes counted as failures, 60 jobs took 42 and 102 s, and one job 6."""

    async def last_reason_s() -> float:
        loop = asyncio.get_running_loop()
        monkeypatch.setattr(time, "monotonic", loop.time)
        api = Slow(WRITE_S, overtaken=overtaken)
        for number in range(jobs):
            api.set(JOBS, job_json(f"waits-{number}", gpus=16))
        async with replica(api, clock=loop.time):
            began_s = loop.time()
            for number in range(jobs):
                await api.until(lambda: "pending" in status(api, f"waits-{number}"), timeout_s=90.0)  # noqa: B023
            return loop.time() - began_s

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        took_s = runner.run(last_reason_s())
    assert took_s < 1.2 * WRITE_S * (1 + overtaken) * math.ceil(jobs / SLOW_PER_NAMESPACE) + 0.5
