"""A client that is closed leaves nothing open, whatever becomes of its last requests."""

from __future__ import annotations

import asyncio
import gc
import socket
import ssl
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import yaml

from coda.errors import Outage
from coda_kube.api.client import Client, connect
from coda_kube.certificates import new_authority, new_leaf


@pytest.fixture
def silent_server(tmp_path: Path) -> Iterator[str]:
    """A kubeconfig of a server that agrees on a key with everybody, and never says a word after that.

    A stopped API server does the same, and one that is busy for a while."""
    now_s = time.time()
    pair = new_leaf(new_authority(now_s), serves=True, now_s=now_s)
    (tmp_path / "certificate").write_bytes(pair.certificate)
    (tmp_path / "key").write_bytes(pair.key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "certificate", tmp_path / "key")
    listener = socket.create_server(("127.0.0.1", 0))
    accepted: list[socket.socket] = []

    def serve() -> None:
        with suppress(OSError):
            while True:
                accepted.append(context.wrap_socket(listener.accept()[0], server_side=True))

    server = threading.Thread(target=serve)
    server.start()
    cluster = {"server": f"https://127.0.0.1:{listener.getsockname()[1]}", "insecure-skip-tls-verify": True}
    config = {
        "current-context": "one",
        "contexts": [{"name": "one", "context": {"cluster": "one", "user": "one"}}],
        "clusters": [{"name": "one", "cluster": cluster}],
        "users": [{"name": "one", "user": {"token": "secret"}}],
    }
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(config))
    yield str(path)
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    server.join()
    for connection in accepted:
        connection.close()


async def cancelled(client: Client) -> None:
    asking = asyncio.create_task(client.get("/version"))
    await asyncio.sleep(0.3)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)


async def timed_out(client: Client) -> None:
    with pytest.raises(Outage):
        await client.get("/version")


@pytest.mark.parametrize("end", [cancelled, timed_out])
def test_a_request_without_an_answer_leaves_no_connection_open(silent_server: str, end: type) -> None:
    async def story() -> None:
        client = await connect(silent_server, timeout_s=0.3)
        await end(client)
        await client.close()

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        with asyncio.Runner() as runner:
            runner.run(story())
        gc.collect()
    assert [str(warning.message) for warning in seen] == []
