"""A small HTTP server for a daemon's /healthz, /readyz and /metrics."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from http import HTTPStatus

from aiohttp import web
from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from coda_kube.listening import listening_socket

CHALLENGE = {"WWW-Authenticate": "Bearer"}


class Probes:
    """Serves probes and metrics between `start` and `stop`."""

    def __init__(
        self,
        *,
        ready: Callable[[], bool],
        alive: Callable[[], bool] = lambda: True,
        judge: Callable[[str | None], Awaitable[HTTPStatus]] | None = None,
    ) -> None:
        """`alive`: whether the daemon's work goes on. An answer alone says nothing about its other threads.

        `judge`: who may read the metrics, by the header Authorization; None: everybody. Probes are open."""
        self._judge = judge
        self._ready = ready
        self._alive = alive
        self._runner: web.AppRunner | None = None

    async def start(self, host: str, port: int) -> None:
        """Listen. Raises OSError if the address cannot be used."""
        bound = listening_socket(host, port)
        app = web.Application()
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/metrics", self._metrics)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        await web.SockSite(self._runner, bound).start()

    async def stop(self) -> None:
        """Close the listener."""
        if self._runner is not None:
            await self._runner.cleanup()

    async def _healthz(self, _: web.Request) -> web.Response:
        alive = self._alive()
        return web.Response(text="ok\n" if alive else "hangs\n", status=200 if alive else 503)

    async def _readyz(self, _: web.Request) -> web.Response:
        ready = self._ready()
        return web.Response(
            text="ok\n" if ready else "not synced yet, or crds/ is older than this version (see the log)\n",
            status=200 if ready else 503,
        )

    async def _metrics(self, request: web.Request) -> web.Response:
        status = HTTPStatus.OK if self._judge is None else await self._judge(request.headers.get("Authorization"))
        if status is not HTTPStatus.OK:
            return web.Response(status=status, text=f"{status.phrase.lower()}\n", headers=CHALLENGE)
        return web.Response(body=generate_latest(), headers={"Content-Type": CONTENT_TYPE_LATEST})
