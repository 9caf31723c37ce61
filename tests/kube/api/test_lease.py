"""The Lease of a holder that gets no answer for a while."""

from __future__ import annotations

import asyncio
import copy
import time
from typing import Any, cast

import pytest

from coda.errors import Outage
from coda_kube.api.client import Client, NotFound, Rejected
from coda_kube.api.lease import Elector, LeaseTimes

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


async def test_after_an_outage_its_own_lease_is_its_own_again_at_once_and_in_the_same_epoch() -> None:
    api = OneLease()
    elector = Elector(cast(Client, api), "ns", "lease", "me", TIMES)
    epoch = await elector.acquire()
    api.failures = [Outage("nobody answers")] * 10
    await elector.keep()
    api.failures = []
    async with asyncio.timeout(TIMES.renew_deadline_s / 2):
        assert await elector.acquire() == epoch
    assert elector.held()


async def test_a_restarted_replica_takes_the_lease_that_its_dead_process_left_at_once_and_as_a_new_epoch() -> None:
    api = OneLease()
    dead = Elector(cast(Client, api), "ns", "lease", "coda-0", LeaseTimes(duration_s=1000))
    assert await dead.acquire() == 1
    async with asyncio.timeout(5):
        assert await Elector(cast(Client, api), "ns", "lease", "coda-0").acquire() == 2


async def test_another_replica_waits_for_it() -> None:
    api = OneLease()
    await Elector(cast(Client, api), "ns", "lease", "coda-0", LeaseTimes(duration_s=1000)).acquire()
    for name in ("coda-1", "coda", "coda-0_1"):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await Elector(cast(Client, api), "ns", "lease", name, TIMES).acquire()


async def test_two_processes_that_share_an_identity_by_mistake_do_not_take_it_in_turns() -> None:
    api = OneLease()
    first = Elector(cast(Client, api), "ns", "lease", "coda-0", TIMES)
    second = Elector(cast(Client, api), "ns", "lease", "coda-0", LeaseTimes(duration_s=1000))
    await first.acquire()
    await second.acquire()
    async with asyncio.timeout(5):
        await first.keep()  # it sees that another holds it
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await first.acquire()
    assert second.held()
