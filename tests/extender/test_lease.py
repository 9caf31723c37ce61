"""The Lease of a holder that gets no answer for a while."""

from __future__ import annotations

import asyncio
import copy
import time
from typing import Any, cast

import pytest

from coda.errors import Outage
from coda_kube.client import Client, NotFound, Rejected
from coda_kube.lease import Elector, LeaseTimes

TIMES = LeaseTimes(duration_s=2.4, renew_deadline_s=1.7, retry_s=1.0)


class OneLease:
    """An API server with one Lease, that fails the next requests with what is in `failures`."""

    def __init__(self) -> None:
        self.failures: list[Exception] = []
        self.renewals = 0
        self.renewed = asyncio.Event()
        self._lease: dict[str, Any] | None = None

    async def get(self, path: str) -> dict[str, Any]:
        if self.failures:
            raise self.failures.pop(0)
        if self._lease is None:
            raise NotFound(404, "NotFound", path)
        return copy.deepcopy(self._lease)

    async def create(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        self._lease = copy.deepcopy(body)
        return body

    async def replace(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        self._lease = copy.deepcopy(body)
        self.renewals += 1
        self.renewed.set()
        return body


@pytest.mark.parametrize(
    "failure",
    [
        pytest.param(Outage("nobody answers"), id="nobody answers"),
        pytest.param(Rejected(403, "Forbidden", "no roles yet"), id="a starting API server"),
    ],
)
async def test_an_outage_shorter_than_the_deadline_costs_no_lease(failure: Exception) -> None:
    """A usual pause after the failed renewal would end after the deadline."""
    api = OneLease()
    elector = Elector(cast(Client, api), "ns", "lease", "me", TIMES)
    await elector.acquire()
    api.failures = [failure]
    keeping = asyncio.create_task(elector.keep())
    async with asyncio.timeout(5):
        await api.renewed.wait()
    assert elector.held()
    assert not keeping.done()
    keeping.cancel()


async def test_an_outage_longer_than_the_deadline_does() -> None:
    api = OneLease()
    elector = Elector(cast(Client, api), "ns", "lease", "me", TIMES)
    await elector.acquire()
    api.failures = [Outage("nobody answers")] * 100
    async with asyncio.timeout(5):
        await elector.keep()
    assert not elector.held()
    assert api.renewals == 0


async def test_a_lease_is_taken_over_when_it_runs_out_and_not_a_usual_pause_later() -> None:
    api = OneLease()
    times = LeaseTimes(duration_s=1.0, renew_deadline_s=0.8, retry_s=0.7)
    await Elector(cast(Client, api), "ns", "lease", "dead", times).acquire()
    began_s = time.monotonic()
    async with asyncio.timeout(5):
        assert await Elector(cast(Client, api), "ns", "lease", "next", times).acquire() == 2
    assert 1.0 <= time.monotonic() - began_s < 1.35
