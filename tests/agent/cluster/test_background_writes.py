"""Writes in the background: one at a time about a thing; an outage is logged once, and tried again without haste."""

from __future__ import annotations

import asyncio

import pytest
from prometheus_client import CollectorRegistry

from coda.errors import Conflict, Outage
from coda_agent.cluster.background_writes import AGAIN_S, LONGEST_S, BackgroundWrites
from coda_agent.report.metrics import Metrics


class Server:
    """Takes writes, or is away."""

    def __init__(self) -> None:
        self.taken: list[str] = []
        self.tried = 0
        self.is_away = False
        self.asks_s = 0.0  # how long it asks to wait

    async def write(self, what: str) -> None:
        self.tried += 1
        await asyncio.sleep(0)
        if self.is_away or self.asks_s:
            raise Outage("the API server is away", retry_after_s=self.asks_s)
        self.taken.append(what)


class Scene:
    """Writes on a clock that stands."""

    def __init__(self, *, muted: bool = False) -> None:
        self.now_s = 100.0
        self.server = Server()
        self.writes = BackgroundWrites(
            Metrics(CollectorRegistry(), "n1").count_failed_write, lambda: self.now_s, muted=muted
        )

    async def write(self, about: str, what: str = "x") -> None:
        self.writes.begin(about, lambda: self.server.write(what))
        for _ in range(5):
            await asyncio.sleep(0)


async def test_one_at_a_time_about_a_thing() -> None:
    scene = Scene()
    for what in ("first", "second"):
        scene.writes.begin("tuning a", lambda what=what: scene.server.write(what))  # type: ignore[misc]
    await scene.write("tuning b", "other")
    assert scene.server.taken == ["first", "other"]
    await scene.write("tuning a", "third")
    assert scene.server.taken[-1] == "third"


async def test_what_failed_is_tried_again_with_growing_pauses_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene()
    scene.server.is_away = True
    tried: list[int] = []
    for _ in range(600):
        await scene.write("tuning a")
        await scene.write("tuning b")
        tried.append(scene.server.tried)
        scene.now_s += 1.0
    assert 4 <= tried[19] <= 8  # the first pauses: 5 and 10 s, or half of it
    assert 2 * 300 / LONGEST_S <= tried[-1] - tried[299] <= 4 * 300 / LONGEST_S + 2
    assert caplog.text.count("not written: the API server is away") == 1
    scene.server.is_away = False
    scene.now_s += LONGEST_S
    await scene.write("tuning a")
    assert scene.server.taken == ["x"]
    scene.server.is_away = True
    await scene.write("tuning b")
    assert caplog.text.count("not written: the API server is away") == 2


async def test_a_pause_that_the_server_asks_for_comes_first() -> None:
    scene = Scene()
    scene.server.asks_s = 30.0
    await scene.write("profile")
    scene.now_s += 30.0
    assert not scene.writes.may_begin("profile")
    scene.now_s += AGAIN_S
    assert scene.writes.may_begin("profile")


async def test_what_somebody_changed_meanwhile_may_be_tried_again_at_once() -> None:
    """The next decision sees the change, and no server is away."""
    scene = Scene()

    async def clash() -> None:
        raise Conflict("the job is not as it was read")

    scene.writes.begin("tuning a", clash)
    for _ in range(5):
        await asyncio.sleep(0)
    assert scene.writes.may_begin("tuning a")


async def test_cancelled_writes_leave_nothing_under_way() -> None:
    scene = Scene()
    forever = asyncio.Event()

    async def hang() -> None:
        await forever.wait()

    scene.writes.begin("profile", hang)
    await asyncio.sleep(0)
    await scene.writes.cancel()
    assert scene.writes.may_begin("profile")


async def test_muted_it_writes_nothing() -> None:
    scene = Scene(muted=True)
    await scene.write("profile")
    assert scene.server.tried == 0
