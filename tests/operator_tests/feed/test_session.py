"""kopf's connections: those that it closed are kept no longer."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import aiohttp

from coda_operator.feed.session import Connections
from tests.extender.fake_api import FakeApi


class Api(FakeApi):
    """A server that remembers which connections are still kept."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: weakref.WeakSet[aiohttp.ClientSession] = weakref.WeakSet()

    @property
    def server(self) -> str:
        return "http://127.0.0.1:1"

    async def new_session(self, **options: Any) -> aiohttp.ClientSession:
        session = aiohttp.ClientSession(**options)
        self.kept.add(session)
        return session


async def test_connections_that_kopf_closed_are_forgotten_at_the_next_login() -> None:
    """It logs in again whenever its token is refused, for months."""
    api = Api()
    connections = Connections(api)
    for _ in range(5):
        login = await connections.log_in()
        await login.aiohttp_session.close()
    login = await connections.log_in()
    del login
    gc.collect()
    assert [session.closed for session in api.kept] == [False]
    await connections.close()
    assert [session.closed for session in api.kept] == [True]
