"""The HTTP applications: which path is served by what.

`/filter`, `/prioritize` and `/preempt` are plain ASGI applications on a port of their own. All scheduling waits for
these calls, so they do not pass through FastAPI, and only kube-scheduler may reach them. Another port has the rest.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Annotated, Any

from fastapi import FastAPI, Header, Response

from coda_extender.guard.guard import Guard
from coda_extender.http.endpoints import Endpoints, Receive, Send
from coda_extender.metrics import Metrics
from coda_kube.api.probes import CHALLENGE
from coda_kube.metrics_access import Judge, anybody

Asgi = Callable[[Any, Receive, Send], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dependencies:
    """Everything that the routes need. `leads` is asked for every answer: true only while the Lease is held."""

    guard: Guard
    metrics: Metrics
    leads: Callable[[], bool]
    synced: Callable[[], bool]
    body_limit_bytes: int
    alive: Callable[[], bool] = lambda: True
    judge: Judge = anybody  # who may read the metrics


def create_app(dependencies: Dependencies) -> Asgi:
    """Return the application that answers kube-scheduler, and nothing else."""
    endpoints = Endpoints(
        dependencies.guard, dependencies.metrics, dependencies.leads, body_limit_bytes=dependencies.body_limit_bytes
    )
    endpoint_by_path = {
        "/filter": endpoints.filter,
        "/prioritize": endpoints.prioritize,
        "/preempt": endpoints.preempt,
    }

    async def serve(scope: Any, receive: Receive, send: Send) -> None:
        endpoint = endpoint_by_path.get(scope["path"])
        if endpoint is not None and scope["method"] == "POST":
            await endpoint(scope, receive, send)
            return
        headers = [(b"content-length", b"0")] + ([(b"allow", b"POST")] if endpoint is not None else [])
        await send({"type": "http.response.start", "status": 404 if endpoint is None else 405, "headers": headers})
        await send({"type": "http.response.body", "body": b""})

    return serve


def create_status_app(dependencies: Dependencies) -> FastAPI:
    """Return the application of the other port: probes and metrics."""
    app = FastAPI(title="Coda extender", docs_url=None, redoc_url=None, openapi_url=None)

    @app.get("/healthz")
    async def healthz() -> Response:
        if dependencies.alive():
            return Response("ok\n", media_type="text/plain")
        return Response("the planner hangs\n", status_code=503, media_type="text/plain")

    @app.get("/readyz")
    async def readyz() -> Response:
        if dependencies.synced():
            return Response("ok\n", media_type="text/plain")
        return Response(
            "the caches are not filled yet, or crds/ is older than this version (see the log)\n",
            status_code=503,
            media_type="text/plain",
        )

    @app.get("/metrics")
    async def metrics(authorization: Annotated[str | None, Header()] = None) -> Response:
        status = await dependencies.judge(authorization)
        if status is not HTTPStatus.OK:
            return Response(
                f"{status.phrase.lower()}\n", status_code=status, media_type="text/plain", headers=CHALLENGE
            )
        in_flight = dependencies.guard.in_flight
        dependencies.metrics.in_flight.set(len(in_flight))
        dependencies.metrics.in_flight_timeouts.set(in_flight.timed_out)
        return Response(dependencies.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    return app
