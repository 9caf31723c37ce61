"""Many new jobs at once: they are accepted by and by, and hold up none that was accepted before."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from coda_kube.objects.json_types import Json
from coda_operator.reconcile import reconciler
from tests.operator_tests.fake_cluster import FakeCluster
from tests.operator_tests.operators import operator
from tests.operator_tests.rest_of_cluster import rest_of_cluster

AT_ONCE = 2
BURST = 12


class SlowToAdmit(FakeCluster):
    """While `slow`, a dry run waits for somebody's webhook."""

    def __init__(self) -> None:
        super().__init__()
        self.slow = False
        self.asked = 0
        self.answers = asyncio.Event()

    async def create(self, path: str, body: Json, query: Mapping[str, str] | None = None) -> Json:
        if self.slow and (query or {}).get("dryRun"):
            self.asked += 1
            await self.answers.wait()
        return await super().create(path, body, query)


async def test_a_burst_is_accepted_by_and_by_and_holds_up_no_job_accepted_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reconciler, "ACCEPTED_AT_ONCE", AT_ONCE)
    api = SlowToAdmit()
    async with rest_of_cluster(api) as rest, operator(api):
        rest.plans = False
        first = api.submit("first")
        await api.until(lambda: api.status(first).get("phase") == "Queued")
        api.slow = True
        burst = [api.submit(f"new-{number}") for number in range(BURST)]
        await asyncio.sleep(1)
        assert api.asked == AT_ONCE
        rest.plans = True
        rest.act()
        await api.until(lambda: api.status(first).get("phase") == "Succeeded")
        assert api.asked == AT_ONCE
        api.answers.set()
        await api.until(lambda: all(api.status(job).get("phase") == "Succeeded" for job in burst), timeout_s=60)
        assert api.asked == BURST
