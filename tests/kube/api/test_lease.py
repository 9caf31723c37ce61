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
from coda_kube.api.steady_clock import boot_time_s
from coda_kube.objects.quantities import seconds_from_time

TIMES = LeaseTimes(duration_s=2.4, renew_deadline_s=1.7, retry_s=1.0)


class OneLease:
    """An API server with one Lease, that fails the next requests with what is in `failures`."""

    def __init__(self) -> None:
        self.failures: list[Exception] = []
        self.renewals = 0
        self.renewed = asyncio.Event()
        self.clock = time.time
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
    times = LeaseTimes(duration_s=4.0, renew_deadline_s=3.9, retry_s=3.8)
    await Elector(cast(Client, api), "ns", "lease", "dead", times).acquire()
    began_s = time.monotonic()
    async with asyncio.timeout(60):
        assert await Elector(cast(Client, api), "ns", "lease", "next", times).acquire() == 2
    assert 4.0 <= time.monotonic() - began_s < 7.6  # it asks every 3.8 s


async def test_who_takes_a_lease_over_knows_for_how_long_nobody_renewed_it() -> None:
    """The first holder has nobody before it."""
    api = EditedLease()
    first, next_one = candidate(api, "a"), candidate(api, "b")
    await first.acquire()
    assert first.since_last_holder_s() is None
    await next_one.acquire()
    assert QUICK.duration_s <= (next_one.since_last_holder_s() or 0.0) < 5.0
    restarted = candidate(api, "b")
    api.clock = lambda: time.time() + 100
    await restarted.acquire()
    assert 100 <= (restarted.since_last_holder_s() or 0.0) < 105


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


class EditedLease(OneLease):
    """Somebody edits or deletes the record."""

    def delete(self) -> None:
        self._lease = None

    def edit(self, **spec: Any) -> None:
        assert self._lease is not None
        self._lease["spec"] |= spec

    @property
    def spec(self) -> dict[str, Any]:
        assert self._lease is not None
        return dict(self._lease["spec"])


QUICK = LeaseTimes(duration_s=0.6, renew_deadline_s=0.4, retry_s=0.1)


def candidate(api: OneLease, name: str, known_epoch: int = 0) -> Elector:
    return Elector(cast(Client, api), "ns", "lease", name, QUICK, known_epoch=lambda: known_epoch)


async def test_a_deleted_lease_makes_no_second_leader_and_no_epoch_twice() -> None:
    api = EditedLease()
    a, b = candidate(api, "a"), candidate(api, "b")
    assert await a.acquire() == 1
    waiting = asyncio.create_task(b.acquire())
    await asyncio.sleep(0.05)
    api.delete()
    while not waiting.done():
        assert not (a.held() and b.held())
        await asyncio.sleep(0.01)
    assert await waiting == 2  # `a` did not renew


async def test_a_holder_makes_its_deleted_lease_again_and_keeps_its_epoch() -> None:
    api = EditedLease()
    a, b = candidate(api, "a"), candidate(api, "b")
    await a.acquire()
    keeping, waiting = asyncio.create_task(a.keep()), asyncio.create_task(b.acquire())
    await asyncio.sleep(0.05)
    for _ in range(5):
        api.delete()
        await asyncio.sleep(0.25)
        assert a.held()
        assert not b.held()
    assert (a.epoch, api.spec["leaseTransitions"]) == (1, 1)
    for task in (keeping, waiting):
        task.cancel()


async def test_a_holder_that_lost_its_lease_and_has_it_again_begins_a_term_of_its_own() -> None:
    api = EditedLease()
    a = candidate(api, "a")
    await a.acquire()
    first = api.spec["acquireTime"]
    keeping = asyncio.create_task(a.keep())
    await asyncio.sleep(QUICK.retry_s * 2)
    assert (a.held(), api.spec["acquireTime"]) == (True, first)
    keeping.cancel()
    while a.held():
        await asyncio.sleep(0.01)
    assert await a.acquire() == 1
    assert api.spec["acquireTime"] > first


async def test_a_new_candidate_goes_on_from_the_epochs_that_the_cluster_shows() -> None:
    """It has never seen the record that was deleted, and its holder may not know of the deletion yet."""
    api = EditedLease()
    began_s = time.monotonic()
    assert await candidate(api, "new", known_epoch=7).acquire() == 8
    assert time.monotonic() - began_s >= QUICK.duration_s


@pytest.mark.parametrize(
    ("edit", "epoch"),
    [
        pytest.param({"leaseTransitions": 0}, 6, id="lowered"),
        pytest.param({"leaseTransitions": None}, 6, id="removed"),
        pytest.param({"leaseTransitions": 2**31 - 1}, 6, id="as high as it can be"),
        pytest.param({"leaseTransitions": 90}, 91, id="raised"),
        pytest.param({"leaseDurationSeconds": 2**31 - 1, "holderIdentity": ""}, 6, id="lasting for ever, of nobody"),
    ],
)
async def test_an_edited_lease_gives_no_epoch_twice(edit: dict[str, Any], epoch: int) -> None:
    api = EditedLease()
    for number in range(4):
        elector = candidate(api, f"old-{number}")
        await elector.acquire()
        await elector.release()
    a, b = candidate(api, "a"), candidate(api, "b")
    assert await a.acquire() == 5
    waiting = asyncio.create_task(b.acquire())
    await asyncio.sleep(0.02)
    api.edit(**edit)
    async with asyncio.timeout(3):
        assert await waiting == epoch


async def test_a_holder_mends_an_epoch_that_was_lowered() -> None:
    api = EditedLease()
    await candidate(api, "first").acquire()
    api.edit(leaseTransitions=5)
    a = candidate(api, "first")  # its next process
    assert await a.acquire() == 6
    keeping = asyncio.create_task(a.keep())
    api.edit(leaseTransitions=1)
    await asyncio.sleep(0.3)
    assert (a.epoch, api.spec["leaseTransitions"]) == (6, 6)
    keeping.cancel()


async def test_a_forged_record_does_not_keep_the_lease_for_years() -> None:
    api = EditedLease()
    await candidate(api, "gone").acquire()
    api.edit(holderIdentity="nobody", leaseDurationSeconds=10**9)
    elector = candidate(api, "a")
    assert not await elector._try()
    assert elector._expires_s - boot_time_s() <= 60.0


@pytest.mark.parametrize("renewed", ["0000-01-01T00:00:00.000000Z", "0001-01-01T00:00:00.000000Z", None])
async def test_a_record_that_was_never_renewed_keeps_nobody_out(renewed: str | None) -> None:
    """The API server stores the year 0, which Python does not know."""
    api = EditedLease()
    await candidate(api, "gone").acquire()
    api.edit(renewTime=renewed)
    async with asyncio.timeout(3):
        assert await candidate(api, "a").acquire() == 2


async def test_a_lease_says_times_by_the_api_servers_clock() -> None:
    api = EditedLease()
    api.clock = lambda: time.time() - 7200.0
    first = candidate(api, "a")
    await first.acquire()
    for _ in range(2):
        for field in ("acquireTime", "renewTime"):
            assert abs(seconds_from_time(api.spec[field]) - api.clock()) < 5.0
        await first._try()


async def test_an_older_record_that_a_backup_brings_back_makes_no_second_leader() -> None:
    """The first holder has lost the Lease since, and the second one believes for seconds that it still holds it."""
    api = OneLease()
    times = LeaseTimes(duration_s=1.0, renew_deadline_s=0.8, retry_s=0.2)
    first, second = (Elector(cast(Client, api), "ns", "lease", name, times) for name in ("coda-0", "coda-1"))
    await first.acquire()
    backup = await api.get("")
    api.failures = [Outage("nobody answers")] * 1000
    await first.keep()
    api.failures = []
    assert await second.acquire() == 2
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await first.acquire()  # it sees the other one
    await api.replace("", backup)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await first.acquire()
    async with asyncio.timeout(5):
        assert await first.acquire() == 3
