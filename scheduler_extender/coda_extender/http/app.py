"""The HTTP application: which path is served by what.

`/filter` and `/prioritize` are plain ASGI applications, and FastAPI serves everything else. All scheduling waits for
these two calls, so they do not pass through FastAPI.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI, Response
from starlette.routing import Route

from coda_extender.guard.guard import Guard
from coda_extender.http.endpoints import Endpoint, Endpoints, Receive, Send
from coda_extender.metrics import Metrics

Asgi = Callable[[Any, Receive, Send], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dependencies:
    """Everything that the routes need. `leads` is asked for every answer: true only while the Lease is held."""

    guard: Guard
    metrics: Metrics
    leads: Callable[[], bool]
    synced: Callable[[], bool]
    body_limit_bytes: int


def create_app(dependencies: Dependencies) -> Asgi:
    """Return the ASGI application."""
    endpoints = Endpoints(
        dependencies.guard, dependencies.metrics, dependencies.leads, body_limit_bytes=dependencies.body_limit_bytes
    )
    endpoint_by_path = {"/filter": endpoints.filter, "/prioritize": endpoints.prioritize}
    app = _create_fastapi(dependencies, endpoint_by_path)

    async def serve(scope: Any, receive: Receive, send: Send) -> None:
        is_post = scope["type"] == "http" and scope["method"] == "POST"
        endpoint = endpoint_by_path.get(scope["path"]) if is_post else None
        await (endpoint or app)(scope, receive, send)

    return serve


def _create_fastapi(dependencies: Dependencies, endpoint_by_path: Mapping[str, Endpoint]) -> FastAPI:
    app = FastAPI(title="Coda extender", docs_url=None, redoc_url=None, openapi_url=None)
    for path, endpoint in endpoint_by_path.items():  # FastAPI answers all methods other than POST
        app.router.routes.append(Route(path, endpoint=endpoint, methods=["POST"]))

    @app.get("/healthz")
    async def healthz() -> Response:
        return Response("ok\n", media_type="text/plain")

    @app.get("/readyz")
    async def readyz() -> Response:
        if dependencies.synced():
            return Response("ok\n", media_type="text/plain")
        return Response("the caches are not filled yet\n", status_code=503, media_type="text/plain")

    @app.get("/metrics")
    async def metrics() -> Response:
        in_flight = dependencies.guard.in_flight
        dependencies.metrics.in_flight.set(len(in_flight))
        dependencies.metrics.in_flight_timeouts.set(in_flight.timed_out)
        return Response(dependencies.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    return app
