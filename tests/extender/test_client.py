"""The client where the event loop itself refuses a connection."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from kubernetes.aio.client import Configuration

from coda.errors import Outage
from coda_kube.client import Client

CLASH = "File descriptor 14 is used by transport <TCPTransport closed=False>"


@pytest.mark.parametrize(("said", "raised"), [(CLASH, Outage), ("something of our own", RuntimeError)])
async def test_a_descriptor_that_the_loop_has_not_let_go_of_is_an_outage(
    monkeypatch: pytest.MonkeyPatch, said: str, raised: type[Exception]
) -> None:
    """As uvloop says after connections were reset; seen in chaos, where it ended the process."""

    async def refuse(*_: Any) -> None:
        raise RuntimeError(said)

    monkeypatch.setattr(asyncio.get_running_loop(), "sock_connect", refuse)
    configuration = Configuration()
    configuration.host = "http://127.0.0.1:9"
    client = Client(configuration)
    with pytest.raises(raised):
        await client.get("/api/v1/nodes")
    with pytest.raises(raised):
        async with client.watch("/api/v1/nodes", {}, idle_s=1.0):
            pass
    await client.close()
