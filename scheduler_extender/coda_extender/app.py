"""The HTTP side: routes, size limits and error answers. Knows no policy; whatever the bytes, never a 500.

`/filter` and `/prioritize` read the raw body in an async route: no pydantic and no thread between kube-scheduler and
the guard, because each call holds up all of scheduling.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

import orjson
from fastapi import FastAPI, Request, Response
from starlette.requests import ClientDisconnect

from coda_extender.guard import NOT_LEADER, Guard
from coda_extender.metrics import Metrics
from coda_extender.wire import (
    LARGE_BYTES,
    Malformed,
    Question,
    body_from_answer,
    body_from_error,
    body_from_scores,
    question_from_body,
)

_CLOSE: Final = {"Connection": "close"}
_JSON: Final = "application/json"
_MOST_LARGE: Final = 4  # a scheduler sends one request at a time
_BUSY: Final = "coda: too many large requests at once"


@dataclass(frozen=True, slots=True, kw_only=True)
class Dependencies:
    """What the routes need. `leads` is asked for every answer: true only while the Lease is held."""

    guard: Guard
    metrics: Metrics
    leads: Callable[[], bool]
    synced: Callable[[], bool]
    body_limit_bytes: int


class _TooLarge(Exception):
    """The body is above the limit; what is left of it is not read."""


class _Busy(Exception):
    """Too many large bodies are being read already."""


def create_app(dependencies: Dependencies) -> FastAPI:
    """The ASGI application."""
    app = FastAPI(title="Coda extender", docs_url=None, redoc_url=None, openapi_url=None)
    verbs = _Verbs(dependencies)
    app.add_route("/filter", verbs.filter, methods=["POST"])  # plain routes: no validation on the hot path
    app.add_route("/prioritize", verbs.prioritize, methods=["POST"])

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
        ledger = dependencies.guard.ledger
        dependencies.metrics.in_flight.set(len(ledger))
        dependencies.metrics.in_flight_timeouts.set(ledger.timed_out)
        return Response(dependencies.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    return app


class _Verbs:
    def __init__(self, dependencies: Dependencies) -> None:
        self._guard = dependencies.guard
        self._metrics = dependencies.metrics
        self._leads = dependencies.leads
        self._limit = dependencies.body_limit_bytes
        self._aside = ThreadPoolExecutor(max_workers=1, thread_name_prefix="large-bodies")
        self._large_bodies = 0

    async def filter(self, request: Request) -> Response:
        """Which nodes the pod may take. Errors go into the protocol's error field, which ends up on the pod."""
        try:
            body = await _read(request, self._limit)
        except _TooLarge:
            return self._too_large("filter")
        except ClientDisconnect:
            return self._answered("filter", "disconnected", Response(status_code=400))
        started_s = time.perf_counter()
        try:
            question = await self._question(body)
        except Malformed as error:
            return self._answered("filter", "malformed", Response(body_from_error(str(error)), media_type=_JSON))
        except _Busy:
            return self._answered("filter", "busy", Response(body_from_error(_BUSY), 200, _CLOSE, _JSON))
        if not self._leads():
            return self._answered("filter", "not_leader", Response(body_from_error(NOT_LEADER), 200, _CLOSE, _JSON))
        content = body_from_answer(self._guard.filter(question), question)
        self._metrics.filter_s.observe(time.perf_counter() - started_s)
        return self._answered("filter", "ok", Response(content, media_type=_JSON))

    async def prioritize(self, request: Request) -> Response:
        """A score per node. This answer has no error field: a 4xx or 503 makes the scheduler go on without scores."""
        try:
            body = await _read(request, self._limit)
        except _TooLarge:
            return self._too_large("prioritize")
        except ClientDisconnect:
            return self._answered("prioritize", "disconnected", Response(status_code=400))
        started_s = time.perf_counter()
        try:
            question = await self._question(body)
        except Malformed as error:
            return self._answered("prioritize", "malformed", Response(_error(str(error)), 400, media_type=_JSON))
        except _Busy:
            return self._answered("prioritize", "busy", Response(_error(_BUSY), 503, _CLOSE, _JSON))
        if not self._leads():
            return self._answered("prioritize", "not_leader", Response(_error(NOT_LEADER), 503, _CLOSE, _JSON))
        content = body_from_scores(self._guard.scores(question))
        self._metrics.prioritize_s.observe(time.perf_counter() - started_s)
        return self._answered("prioritize", "ok", Response(content, media_type=_JSON))

    async def _question(self, body: bytes) -> Question:
        """The request in `body`; a large one is read aside, so that others are answered meanwhile."""
        if len(body) <= LARGE_BYTES:
            return question_from_body(body)
        if self._large_bodies >= _MOST_LARGE:
            raise _Busy
        self._large_bodies += 1
        try:
            found = await asyncio.get_running_loop().run_in_executor(self._aside, _question_or_fault, body)
        finally:
            self._large_bodies -= 1
        if isinstance(found, str):
            raise Malformed(found)
        return found

    def _too_large(self, verb: str) -> Response:
        sentence = f"coda: the request is larger than {self._limit} bytes: set nodeCacheCapable in the scheduler"
        return self._answered(verb, "too_large", Response(_error(sentence), 413, _CLOSE, _JSON))

    def _answered(self, verb: str, outcome: str, response: Response) -> Response:
        self._metrics.answers.labels(verb, outcome).inc()
        return response


def _question_or_fault(body: bytes) -> Question | str:
    """The request, or what is wrong with it: a raised error would keep what was read until the event loop drops it."""
    try:
        return question_from_body(body)
    except Malformed as error:
        return str(error)


def _error(sentence: str) -> bytes:
    return orjson.dumps({"Error": sentence})


async def _read(request: Request, limit: int) -> bytes:
    """The body. Raises _TooLarge: at once by the announced length, else as soon as more has arrived."""
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and (len(announced) > 18 or int(announced) > limit):
        raise _TooLarge
    chunks: list[bytes] = []
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > limit:
            raise _TooLarge
        chunks.append(chunk)
    return b"".join(chunks)
