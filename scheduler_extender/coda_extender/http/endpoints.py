"""The calls that all scheduling waits for, as plain ASGI: no router, middleware, pydantic or thread is between
kube-scheduler and the guard. No bytes of a request cause a 500."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Generic, TypeVar

import orjson
from prometheus_client import Histogram

from coda_extender.guard.guard import NOT_LEADER, Guard
from coda_extender.metrics import Metrics
from coda_extender.protocol import (
    LARGE_BYTES,
    Malformed,
    Preemption,
    Question,
    body_from_answer,
    body_from_error,
    body_from_scores,
    body_from_victims,
    preemption_from_body,
    question_from_body,
)

Scope = Mapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
Call = TypeVar("Call")

_MOST_LARGE: Final = 4  # a scheduler sends one request at a time
_BUSY: Final = "coda: too many large requests at once"
_TOO_LARGE: Final = "coda: the request is larger than %d bytes: set nodeCacheCapable in the scheduler"


@dataclass(frozen=True, slots=True)
class _Reply:
    """One answer; `outcome` is the metrics' word for it."""

    outcome: str
    body: bytes
    status: int = 200
    closes: bool = (
        False  # the connection: the next call must reach another replica, or the rest of the body is not read
    )


class _TooLarge(Exception):
    """The body is above the limit; the rest of it is not read."""


class _Disconnected(Exception):
    """The client went away before its request was whole."""


class _Busy(Exception):
    """Too many large bodies are being read already."""


class _NotLeader(Exception):
    """Another replica must be asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fault:
    """How a call that cannot be answered ends."""

    outcome: str
    status: int
    in_error_field: bool = False  # of the filter's answer, which then is a 200: kube-scheduler writes it to the pod
    closes: bool = False


_FAULT_BY_ERROR: Final[Mapping[type[Exception], _Fault]] = {
    _TooLarge: _Fault(outcome="too_large", status=413, closes=True),
    _Disconnected: _Fault(outcome="disconnected", status=400),
    Malformed: _Fault(outcome="malformed", status=400, in_error_field=True),
    _Busy: _Fault(outcome="busy", status=503, in_error_field=True, closes=True),
    _NotLeader: _Fault(outcome="not_leader", status=503, in_error_field=True, closes=True),
}
_ERRORS: Final = tuple(_FAULT_BY_ERROR)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Verb(Generic[Call]):
    """What is particular to one of the calls."""

    read: Callable[[bytes], Call]  # raises Malformed
    body_of: Callable[[Call], bytes]
    duration_s: Histogram
    has_error_field: bool  # without one, a 4xx or 503 makes the scheduler go on without an answer


class Endpoints:
    """Answers `filter`, `prioritize` and `preempt`. `leads` is asked for every answer."""

    def __init__(self, guard: Guard, metrics: Metrics, leads: Callable[[], bool], *, body_limit_bytes: int) -> None:
        self._guard = guard
        self._leads = leads
        self._limit = body_limit_bytes
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="large-bodies")
        self._large_bodies = 0
        filters = _Verb(
            read=question_from_body, body_of=self._passed_nodes, duration_s=metrics.filter_s, has_error_field=True
        )
        prioritizes = _Verb(
            read=question_from_body, body_of=self._scores, duration_s=metrics.prioritize_s, has_error_field=False
        )
        preempts = _Verb(
            read=preemption_from_body, body_of=self._victims, duration_s=metrics.preempt_s, has_error_field=False
        )
        self.filter = Endpoint(partial(self._reply, filters), partial(metrics.count_answer, "filter"))
        self.prioritize = Endpoint(partial(self._reply, prioritizes), partial(metrics.count_answer, "prioritize"))
        self.preempt = Endpoint(partial(self._reply, preempts), partial(metrics.count_answer, "preempt"))

    async def _reply(self, verb: _Verb[Call], scope: Scope, receive: Receive) -> _Reply:
        """Answer one call, or end it as `_FAULT_BY_ERROR` says."""
        try:
            body = await _read(scope, receive, self._limit)
            started_s = time.perf_counter()
            call = await self._read_call(verb.read, body)
            if not self._leads():
                raise _NotLeader(NOT_LEADER)
        except _ERRORS as error:
            return _reply_to(error, verb)
        content = verb.body_of(call)
        verb.duration_s.observe(time.perf_counter() - started_s)
        return _Reply("ok", content)

    def _passed_nodes(self, question: Question) -> bytes:
        return body_from_answer(self._guard.filter(question), question)

    def _scores(self, question: Question) -> bytes:
        return body_from_scores(self._guard.scores(question))

    def _victims(self, preemption: Preemption) -> bytes:
        return body_from_victims(preemption, self._guard.evictable_nodes(preemption))

    async def _read_call(self, read: Callable[[bytes], Call], body: bytes) -> Call:
        """Return the request in `body`. A large one is read in a thread, so that others are answered meanwhile."""
        if len(body) <= LARGE_BYTES:
            return read(body)
        if self._large_bodies >= _MOST_LARGE:
            raise _Busy(_BUSY)
        self._large_bodies += 1
        try:
            found = await asyncio.get_running_loop().run_in_executor(self._executor, _call_or_fault, read, body)
        finally:
            self._large_bodies -= 1
        if isinstance(found, _Unread):
            raise Malformed(found.sentence)
        return found


class Endpoint:
    """One of the calls, as an ASGI application that sends the reply of `answer`."""

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


@dataclass(frozen=True, slots=True)
class _Unread:
    """Why a request could not be read."""

    sentence: str


def _call_or_fault(read: Callable[[bytes], Call], body: bytes) -> Call | _Unread:
    """Return the request, or its fault. A raised error would keep all that was read until the event loop drops it."""
    try:
        return read(body)
    except Malformed as error:
        return _Unread(str(error))


def _reply_to(error: Exception, verb: _Verb[Any]) -> _Reply:
    fault, sentence = _FAULT_BY_ERROR[type(error)], str(error)
    if fault.in_error_field and verb.has_error_field:
        return _Reply(fault.outcome, body_from_error(sentence), closes=fault.closes)
    body = orjson.dumps({"Error": sentence}) if sentence else b""
    return _Reply(fault.outcome, body, fault.status, fault.closes)


async def _read(scope: Scope, receive: Receive, limit: int) -> bytes:
    """Return the body. Raises _TooLarge at once if the announced length says so, else once too much has arrived."""
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit() and (len(value) > 18 or int(value) > limit):
            raise _TooLarge(_TOO_LARGE % limit)
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
            raise _TooLarge(_TOO_LARGE % limit)
        chunks.append(chunk)
        more = message.get("more_body", False)
    return b"".join(chunks)
