"""The two calls that hold up all of scheduling, as plain ASGI: no router, no middleware, no pydantic and no thread
stand between kube-scheduler and the guard. Knows no policy; whatever the bytes, never a 500."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import orjson

from coda_extender.guard.guard import NOT_LEADER, Guard
from coda_extender.metrics import Metrics
from coda_extender.protocol import (
    LARGE_BYTES,
    Malformed,
    Question,
    body_from_answer,
    body_from_error,
    body_from_scores,
    question_from_body,
)

Scope = Mapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]

_MOST_LARGE: Final = 4  # a scheduler sends one request at a time
_BUSY: Final = "coda: too many large requests at once"


@dataclass(frozen=True, slots=True)
class _Reply:
    """One answer; `outcome` is what the metrics call it."""

    outcome: str
    body: bytes
    status: int = 200
    closes: bool = False  # the connection: the next call must find another replica, or what is left is not read


class _TooLarge(Exception):
    """The body is above the limit; what is left of it is not read."""


class _Disconnected(Exception):
    """The client went away before its request was whole."""


class _Busy(Exception):
    """Too many large bodies are being read already."""


class Endpoints:
    """Answers `filter` and `prioritize`. `leads` is asked for every answer."""

    def __init__(self, guard: Guard, metrics: Metrics, leads: Callable[[], bool], *, body_limit_bytes: int) -> None:
        self._guard = guard
        self._metrics = metrics
        self._leads = leads
        self._limit = body_limit_bytes
        self._aside = ThreadPoolExecutor(max_workers=1, thread_name_prefix="large-bodies")
        self._large_bodies = 0
        self.filter = Endpoint(self._filter, partial(metrics.count_answer, "filter"))
        self.prioritize = Endpoint(self._prioritize, partial(metrics.count_answer, "prioritize"))

    async def _filter(self, scope: Scope, receive: Receive) -> _Reply:
        """Which nodes the pod may take. Errors go into the protocol's error field, which ends up on the pod."""
        try:
            body = await _read(scope, receive, self._limit)
            started_s = time.perf_counter()
            question = await self._question(body)
        except _TooLarge:
            return self._too_large()
        except _Disconnected:
            return _Reply("disconnected", b"", 400)
        except Malformed as error:
            return _Reply("malformed", body_from_error(str(error)))
        except _Busy:
            return _Reply("busy", body_from_error(_BUSY), closes=True)
        if not self._leads():
            return _Reply("not_leader", body_from_error(NOT_LEADER), closes=True)
        content = body_from_answer(self._guard.filter(question), question)
        self._metrics.filter_s.observe(time.perf_counter() - started_s)
        return _Reply("ok", content)

    async def _prioritize(self, scope: Scope, receive: Receive) -> _Reply:
        """Scores of nodes. This answer has no error field: a 4xx or 503 makes the scheduler go on without scores."""
        try:
            body = await _read(scope, receive, self._limit)
            started_s = time.perf_counter()
            question = await self._question(body)
        except _TooLarge:
            return self._too_large()
        except _Disconnected:
            return _Reply("disconnected", b"", 400)
        except Malformed as error:
            return _Reply("malformed", _error(str(error)), 400)
        except _Busy:
            return _Reply("busy", _error(_BUSY), 503, closes=True)
        if not self._leads():
            return _Reply("not_leader", _error(NOT_LEADER), 503, closes=True)
        content = body_from_scores(self._guard.scores(question))
        self._metrics.prioritize_s.observe(time.perf_counter() - started_s)
        return _Reply("ok", content)

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

    def _too_large(self) -> _Reply:
        sentence = f"coda: the request is larger than {self._limit} bytes: set nodeCacheCapable in the scheduler"
        return _Reply("too_large", _error(sentence), 413, closes=True)


class Endpoint:
    """One of the calls, as an ASGI application that sends what `answer` returns."""

    def __init__(self, answer: Callable[[Scope, Receive], Awaitable[_Reply]], count: Callable[[str], None]) -> None:
        self._answer = answer
        self._count = count

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """Serve one request."""
        reply = await self._answer(scope, receive)
        self._count(reply.outcome)
        headers = [(b"content-length", b"%d" % len(reply.body)), (b"content-type", b"application/json")]
        if reply.closes:
            headers.append((b"connection", b"close"))
        await send({"type": "http.response.start", "status": reply.status, "headers": headers})
        await send({"type": "http.response.body", "body": reply.body})


def _question_or_fault(body: bytes) -> Question | str:
    """The request, or what is wrong with it: a raised error would keep what was read until the event loop drops it."""
    try:
        return question_from_body(body)
    except Malformed as error:
        return str(error)


def _error(sentence: str) -> bytes:
    return orjson.dumps({"Error": sentence})


async def _read(scope: Scope, receive: Receive, limit: int) -> bytes:
    """The body. Raises _TooLarge: at once by the announced length, else as soon as more has arrived."""
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit() and (len(value) > 18 or int(value) > limit):
            raise _TooLarge
    chunks: list[bytes] = []
    size = 0
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise _Disconnected
        chunk: bytes = message.get("body", b"")
        size += len(chunk)
        if size > limit:
            raise _TooLarge
        chunks.append(chunk)
        more = message.get("more_body", False)
    return b"".join(chunks)
