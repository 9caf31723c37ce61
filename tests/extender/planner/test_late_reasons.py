"""A first reason comes soon also while the API server is slow, and while others write to the same objects."""

import asyncio
import time
from typing import Any

import pytest

from coda_extender import write_slots
from coda_kube.objects.json_types import Json
from tests.extender.fake_api import FakeApi
from tests.extender.objects import JOBS, job_json
from tests.extender.replicas import replica, status

TOO_LATE_S = 5.0  # design (g)


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
async def test_a_first_reason_is_not_late_because_writes_are_slow(
    monkeypatch: pytest.MonkeyPatch, jobs: int, overtaken: int
) -> None:
    """Ten times as fast as where a write is slow after half a second. Until now 60 jobs took 17 and 63 s."""
    monkeypatch.setattr(write_slots, "PATIENCE_S", 0.05)
    api = Slow(0.07, overtaken=overtaken)
    for number in range(jobs):
        api.set(JOBS, job_json(f"waits-{number}", gpus=16))
    async with replica(api):
        began_s = time.monotonic()
        for number in range(jobs):
            await api.until(lambda: "pending" in status(api, f"waits-{number}"), timeout_s=60.0)  # noqa: B023
        assert time.monotonic() - began_s < TOO_LATE_S
