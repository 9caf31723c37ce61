"""Who may read metrics: the API server's verdicts, kept for a while."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Any

from coda.errors import Outage
from coda_kube.api.client import Client
from coda_kube.metrics_access import (
    ACCESS_REVIEWS,
    FRESH_S,
    MOST_AT_ONCE,
    MOST_KEPT,
    MOST_WAITING,
    OUTAGE_S,
    REVIEW_S,
    TOKEN_REVIEWS,
    TURN_S,
    MetricsAccess,
)
from coda_kube.objects.json_types import Json
from tests.virtual_time import VirtualLoop

READER = {"username": "prometheus", "groups": ["scrapers"], "uid": "u1", "extra": {"k": ["v"]}}


class Reviewer(Client):
    """An API server that knows tokens, and whom it lets read."""

    def __init__(self, *allowed: str) -> None:
        self.user_by_token: dict[str, Json] = {"good": READER, "other": {"username": "other"}}
        self.allowed = set(allowed)
        self.asked: list[Json] = []
        self.is_away = False
        self.at_once = self.most_at_once = 0
        self.slow_with = ""  # tokens that begin so
        self.answering = asyncio.Event()
        self.answering.set()

    async def create(self, path: str, body: Json, query: Any = None) -> Json:
        self.asked.append(body)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            if body["spec"].get("token", "").startswith(self.slow_with):
                await self.answering.wait()
        finally:
            self.at_once -= 1
        if self.is_away:
            raise Outage("away")
        if path == TOKEN_REVIEWS:
            user = self.user_by_token.get(body["spec"]["token"])
            return {"status": {"authenticated": user is not None, "user": user}}
        assert path == ACCESS_REVIEWS
        return {"status": {"allowed": body["spec"]["user"] in self.allowed}}


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


async def test_a_verdict_is_the_api_servers() -> None:
    server = Reviewer("prometheus")
    access = MetricsAccess(server, clock=Clock())
    assert await access.judge("Bearer good") is HTTPStatus.OK
    assert server.asked[1]["spec"] == {
        "user": "prometheus",
        "groups": ["scrapers"],
        "uid": "u1",
        "extra": {"k": ["v"]},
        "nonResourceAttributes": {"path": "/metrics", "verb": "get"},
    }
    assert await access.judge("Bearer other") is HTTPStatus.FORBIDDEN
    assert await access.judge("bearer made-up") is HTTPStatus.UNAUTHORIZED


async def test_what_is_no_token_costs_no_request() -> None:
    server = Reviewer()
    for header in (None, "", "Bearer", "Bearer ", "Basic good", f"Bearer {'x' * 10_000}"):
        assert await MetricsAccess(server).judge(header) is HTTPStatus.UNAUTHORIZED
    assert server.asked == []


async def test_it_is_asked_again_only_after_a_while_and_then_a_right_that_was_lost_counts() -> None:
    server, clock = Reviewer("prometheus"), Clock()
    access = MetricsAccess(server, clock=clock)
    for _ in range(3):
        assert await access.judge("Bearer good") is HTTPStatus.OK
    assert len(server.asked) == 2
    server.allowed.clear()
    clock.now_s += FRESH_S
    assert await access.judge("Bearer good") is HTTPStatus.FORBIDDEN


async def test_metrics_are_read_while_the_api_server_is_away_but_not_by_strangers() -> None:
    server, clock = Reviewer("prometheus"), Clock()
    access = MetricsAccess(server, clock=clock)
    await access.judge("Bearer good")
    await access.judge("Bearer other")
    server.is_away = True
    clock.now_s += OUTAGE_S - 1
    assert await access.judge("Bearer good") is HTTPStatus.OK
    assert await access.judge("Bearer other") is HTTPStatus.SERVICE_UNAVAILABLE
    assert await access.judge("Bearer new") is HTTPStatus.SERVICE_UNAVAILABLE
    clock.now_s += 1
    assert await access.judge("Bearer good") is HTTPStatus.SERVICE_UNAVAILABLE


async def test_made_up_tokens_are_no_flood_and_push_nobody_out() -> None:
    server, clock = Reviewer("prometheus"), Clock()
    access = MetricsAccess(server, clock=clock)
    await access.judge("Bearer good")
    for number in range(2 * MOST_KEPT):
        await access.judge(f"Bearer made-up-{number}")
    server.asked.clear()
    assert await access.judge("Bearer good") is HTTPStatus.OK
    assert server.asked == []
    server.answering.clear()
    asking = [
        asyncio.create_task(access.judge(f"Bearer x{number}")) for number in range(MOST_AT_ONCE + MOST_WAITING + 10)
    ]
    done, under_way = await asyncio.wait(asking, timeout=0.1)
    assert (len(done), len(under_way), len(server.asked)) == (10, MOST_AT_ONCE + MOST_WAITING, MOST_AT_ONCE)
    assert {task.result() for task in done} == {HTTPStatus.SERVICE_UNAVAILABLE}
    assert await access.judge("Bearer good") is HTTPStatus.OK
    server.answering.set()
    assert {await task for task in under_way} == {HTTPStatus.UNAUTHORIZED}
    assert server.most_at_once == MOST_AT_ONCE


async def test_who_was_allowed_is_reviewed_again_beside_made_up_tokens() -> None:
    """Else whoever keeps all reviews busy for an hour would keep Prometheus out."""
    server, clock = Reviewer("prometheus"), Clock()
    access = MetricsAccess(server, clock=clock)
    await access.judge("Bearer good")
    server.answering.clear()
    strangers = [asyncio.create_task(access.judge(f"Bearer x{number}")) for number in range(MOST_AT_ONCE)]
    await asyncio.sleep(0)
    clock.now_s += OUTAGE_S
    asking = asyncio.create_task(access.judge("Bearer good"))
    await asyncio.sleep(0)
    server.answering.set()
    assert await asking is HTTPStatus.OK
    assert {await task for task in strangers} == {HTTPStatus.UNAUTHORIZED}


async def busy(server: Reviewer, access: MetricsAccess) -> list[asyncio.Task[HTTPStatus]]:
    """As many reviews as may be are under way, of tokens that somebody made up."""
    server.answering.clear()
    strangers = [asyncio.create_task(access.judge(f"Bearer made-up-{number}")) for number in range(MOST_AT_ONCE)]
    await asyncio.sleep(0)
    return strangers


async def test_a_token_that_replaces_an_allowed_one_waits_for_its_turn_beside_made_up_ones() -> None:
    """A kubelet gives Prometheus a new one every hour or so: nobody was allowed with it before."""
    server = Reviewer("prometheus")
    access = MetricsAccess(server, clock=Clock())
    await access.judge("Bearer good")
    server.user_by_token["rotated"] = READER
    strangers = await busy(server, access)
    asking = [asyncio.create_task(access.judge("Bearer rotated")) for _ in range(2)]
    await asyncio.sleep(0)
    server.answering.set()
    assert [await task for task in asking] == [HTTPStatus.OK, HTTPStatus.OK]
    assert {await task for task in strangers} == {HTTPStatus.UNAUTHORIZED}


def test_reviews_that_are_never_answered_keep_nobody_out_for_longer_than_a_scrape() -> None:
    """As of an API server that asks somebody else who a token is."""

    async def ask() -> None:
        server, loop = Reviewer("prometheus"), asyncio.get_running_loop()
        access = MetricsAccess(server)
        strangers, since_s = await busy(server, access), loop.time()
        waiting = [asyncio.create_task(access.judge(f"Bearer x{number}")) for number in range(MOST_WAITING)]
        assert {await task for task in [*strangers, *waiting]} == {HTTPStatus.SERVICE_UNAVAILABLE}
        assert loop.time() - since_s <= TURN_S + REVIEW_S < 10.0  # Prometheus' scrape_timeout
        server.slow_with = "made-up"
        strangers = await busy(server, access)
        assert await access.judge("Bearer good") is HTTPStatus.OK
        assert {await task for task in strangers} == {HTTPStatus.SERVICE_UNAVAILABLE}

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(ask())
