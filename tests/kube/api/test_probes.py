"""What a daemon's /healthz and /readyz say, over real HTTP."""

from __future__ import annotations

import random
import socket

import aiohttp
import pytest

from coda_kube.api.probes import Probes
from coda_lab.host.ports import free_ports


@pytest.mark.parametrize(
    ("path", "alive", "ready", "status", "text"),
    [
        pytest.param("healthz", True, False, 200, "ok\n", id="alive, though not ready"),
        pytest.param("healthz", False, True, 503, "hangs\n", id="it answers, but its work does not go on"),
        pytest.param("readyz", True, True, 200, "ok\n", id="ready"),
        pytest.param("readyz", True, False, 503, None, id="not ready"),
    ],
)
async def test_probes_say_how_the_daemon_is(path: str, alive: bool, ready: bool, status: int, text: str | None) -> None:
    probes = Probes(ready=lambda: ready, alive=lambda: alive)
    (port,) = free_ports(1, random.Random())
    await probes.start("127.0.0.1", port)
    try:
        async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}/{path}") as response:
            assert response.status == status
            assert text in (None, await response.text())
    finally:
        await probes.stop()


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
async def test_it_answers_on_both_families_where_pods_may_have_both() -> None:
    """kubelet and Prometheus use a pod's first address, and `::` is what serves it whichever that is."""
    probes = Probes(ready=lambda: True)
    (port,) = free_ports(1, random.Random())
    await probes.start("::", port)
    try:
        async with aiohttp.ClientSession() as session:
            for host in ("127.0.0.1", "[::1]"):
                async with session.get(f"http://{host}:{port}/healthz") as response:
                    assert response.status == 200
    finally:
        await probes.stop()
