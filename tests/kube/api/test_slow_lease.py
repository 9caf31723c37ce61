"""A Lease at API servers that answer late: somebody leads, and never two at once."""

from __future__ import annotations

import asyncio
import copy
import random
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from coda.errors import Conflict
from coda_kube.api import lease
from coda_kube.api.client import AlreadyExists, Client, NotFound
from coda_kube.api.lease import Elector
from tests.virtual_time import VirtualLoop

MONTH_S = 30 * 86400.0


class Store:
    """One Lease, with its resourceVersion."""

    def __init__(self) -> None:
        self.lease: dict[str, Any] | None = None
        self.version = 0

    def put(self, body: dict[str, Any]) -> dict[str, Any]:
        if self.lease is None or body["metadata"].get("resourceVersion") != str(self.version):
            raise Conflict("the object has been modified")
        return self.set(body)

    def set(self, body: dict[str, Any]) -> dict[str, Any]:
        self.version += 1
        self.lease = copy.deepcopy(body)
        self.lease["metadata"]["resourceVersion"] = str(self.version)
        return copy.deepcopy(self.lease)

    def spec(self) -> dict[str, Any]:
        assert self.lease is not None
        return dict(self.lease["spec"])

    def edit(self, **fields: Any) -> None:
        """Somebody edits the record."""
        assert self.lease is not None
        self.set(self.lease | {"spec": self.spec() | fields})


class Way:
    """One candidate's way to the Lease: each request is stored after `there_s`, and answered `back_s` later.

    A request whose sender gives up is stored all the same."""

    def __init__(
        self, store: Store, there_s: float = 0.0, back_s: float = 0.01, *, read_s: float | None = None
    ) -> None:
        self.store, self.there_s, self.back_s = store, there_s, back_s
        self.read_s = read_s
        self.requests = 0
        self.clock = lambda: MONTH_S + now_s()

    async def get(self, path: str) -> dict[str, Any]:
        def read() -> dict[str, Any]:
            if self.store.lease is None:
                raise NotFound(404, "NotFound", path)
            return copy.deepcopy(self.store.lease)

        return await self._send(read, self.read_s)

    async def create(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        def make() -> dict[str, Any]:
            if self.store.lease is not None:
                raise AlreadyExists(409, "AlreadyExists", path)
            return self.store.set(body)

        return await self._send(make)

    async def replace(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        body = copy.deepcopy(body)
        return await self._send(lambda: self.store.put(body))

    async def _send(self, act: Callable[[], dict[str, Any]], all_s: float | None = None) -> dict[str, Any]:
        self.requests += 1
        there_s, back_s = (self.there_s, self.back_s) if all_s is None else (all_s / 2, all_s / 2)

        async def carry() -> dict[str, Any]:
            await asyncio.sleep(there_s)
            answer = act()
            await asyncio.sleep(back_s)
            return answer

        return await asyncio.shield(asyncio.ensure_future(carry()))


def now_s() -> float:
    return asyncio.get_running_loop().time()


@pytest.fixture(autouse=True)
def steady_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "boot_time_s", now_s)


def in_virtual_time(story: Callable[[], Awaitable[None]]) -> None:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(cast(Any, story()))


def elector(way: Way, name: str) -> Elector:
    return Elector(cast(Client, way), "ns", "lease", name)


async def run(candidate: Elector) -> None:
    while True:
        await candidate.acquire()
        await candidate.keep()


async def shares_of(*candidates: Elector, during_s: float, from_s: float = 0.0) -> list[float]:
    """Run candidates, and return which share of the time each held the Lease, from a moment on. Never two at once."""
    tasks = [asyncio.create_task(run(one)) for one in candidates]
    held = [0] * len(candidates)
    began_s, looks = now_s(), 0
    while now_s() - began_s < from_s + during_s:
        await asyncio.sleep(0.05)
        now = [one.held() for one in candidates]
        assert sum(now) <= 1
        if now_s() - began_s < from_s:
            continue
        held = [count + is_holder for count, is_holder in zip(held, now, strict=True)]
        looks += 1
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return [count / looks for count in held]


SLOW_ANSWERS = [
    pytest.param({"there_s": 0.0, "back_s": 3.2, "read_s": 0.02}, id="answers to writes are late"),
    pytest.param({"there_s": 1.6, "back_s": 1.6, "read_s": 0.02}, id="writes are late, too"),
    pytest.param({"there_s": 5.0, "back_s": 5.0, "read_s": 0.02}, id="writes are stored long after they are given up"),
    pytest.param({"there_s": 1.6, "back_s": 1.6, "read_s": 2.9}, id="reads are nearly as late"),
]


@pytest.mark.parametrize("slow", SLOW_ANSWERS)
def test_a_holder_whose_writes_are_stored_but_not_answered_in_time_leaves_the_lease_to_another(
    slow: dict[str, float],
) -> None:
    async def story() -> None:
        store = Store()
        ill, well = Way(store), Way(store)
        a, b = elector(ill, "a"), elector(well, "b")
        await a.acquire()
        for name, value in slow.items():
            setattr(ill, name, value)
        slow_share, share = await shares_of(a, b, during_s=40.0)
        assert slow_share < 0.2
        assert share > 0.3
        assert await shares_of(a, b, during_s=600.0) == [0.0, 1.0]

    in_virtual_time(story)


@pytest.mark.parametrize("slow", SLOW_ANSWERS)
def test_so_does_a_slow_replica_that_restarts(slow: dict[str, float]) -> None:
    """A Lease that its dead process left behind is taken at once, but only once."""

    async def story() -> None:
        store = Store()
        ill, well = Way(store), Way(store)
        await elector(ill, "a").acquire()
        for name, value in slow.items():
            setattr(ill, name, value)
        a, b = elector(ill, "a"), elector(well, "b")
        await shares_of(a, b, during_s=40.0)
        assert await shares_of(a, b, during_s=600.0) == [0.0, 1.0]

    in_virtual_time(story)


def test_who_is_alone_takes_its_lease_back_after_a_write_that_was_stored_without_an_answer() -> None:
    """Nobody else wants it: once that record would have expired for others, it is free for its own writer, too."""

    async def story() -> None:
        way = Way(Store(), read_s=0.02)
        a = elector(way, "a")
        assert await a.acquire() == 1
        way.back_s = 60.0
        await a.keep()
        way.back_s = 0.01
        began_s = now_s()
        assert await a.acquire() == 2
        assert 10.0 < now_s() - began_s <= 16.0

    in_virtual_time(story)


@pytest.mark.parametrize("answer_s", [0.01, 1.0, 1.4, 1.6, 2.5, 2.9])
def test_at_an_api_server_that_answers_everything_late_somebody_leads_without_a_break(answer_s: float) -> None:
    async def story() -> None:
        store = Store()
        ways = [Way(store, answer_s / 2, answer_s / 2) for _ in range(3)]
        candidates = [elector(way, name) for way, name in zip(ways, "abc", strict=True)]
        shares = await shares_of(*candidates, during_s=600.0, from_s=20.0)
        assert sorted(shares) == [0.0, 0.0, 1.0]

    in_virtual_time(story)


def test_a_renewal_is_one_request() -> None:
    async def story() -> None:
        way = Way(Store())
        a = elector(way, "a")
        await a.acquire()
        asked = way.requests
        assert await shares_of(a, during_s=100.0) == [1.0]
        assert way.requests - asked <= 52

    in_virtual_time(story)


def test_a_renewal_of_a_lease_that_somebody_edited_or_deleted_reads_it_first() -> None:
    async def story() -> None:
        store = Store()
        a = elector(Way(store), "a")
        assert await a.acquire() == 1
        store.edit(leaseTransitions=7)
        assert await a._try()
        assert (a.epoch, store.spec()["leaseTransitions"]) == (7, 7)
        store.lease = None
        assert await a._try()
        assert (a.epoch, store.spec()["leaseTransitions"]) == (7, 7)
        store.edit(holderIdentity="another")
        assert not await a._try()

    in_virtual_time(story)


def test_candidates_whose_ways_change_at_random_never_lead_at_once() -> None:
    async def story() -> None:
        store, chance = Store(), random.Random(7)
        ways = [Way(store) for _ in range(3)]
        candidates = [elector(way, name) for way, name in zip(ways, "abc", strict=True)]

        async def weather() -> None:
            while True:
                way = chance.choice(ways)
                way.there_s, way.back_s = (chance.choice([0.0, 0.1, 1.4, 2.9, 4.0, 9.0]) for _ in range(2))
                way.read_s = chance.choice([None, 0.02, 2.8])
                await asyncio.sleep(chance.uniform(0.0, 8.0))

        changing = asyncio.create_task(weather())
        shares = await shares_of(*candidates, during_s=7200.0)
        changing.cancel()
        assert sum(shares) > 0.3

    in_virtual_time(story)
