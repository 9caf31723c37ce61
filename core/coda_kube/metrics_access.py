"""Who may read a program's /metrics: whom the API server lets `get` that path, as for Kubernetes' own programs.

A TokenReview says who asks, a SubjectAccessReview whether he may. Verdicts are kept, so that a scrape costs no request
most of the time, and so that metrics can still be read while the API server is away.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from coda.errors import CodaError
from coda_kube.api.client import Client
from coda_kube.objects.json_types import Json

log = logging.getLogger(__name__)

PATH: Final = "/metrics"
TOKEN_REVIEWS: Final = "/apis/authentication.k8s.io/v1/tokenreviews"  # noqa: S105  a path
ACCESS_REVIEWS: Final = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
FRESH_S: Final = 60.0
"""Our choice, as of Kubernetes' own programs: whoever loses the right reads for a minute more."""
OUTAGE_S: Final = 3600.0
"""Our choice: so long an allowed token is believed while the API server does not answer."""
MOST_KEPT: Final = 64
MOST_AT_ONCE: Final = 2
"""Reviews under way, of tokens that were allowed before and as many of others. Anybody may send tokens that he made up:
these must not become a flood for the API server, nor keep those out who were allowed."""
MOST_WAITING: Final = 16
"""Requests that wait for a review, in order, of either kind: more are turned away at once. Our choice."""
REVIEW_S: Final = 4.0
TURN_S: Final = 5.0
"""So long a review takes, and a request waits for its review: whoever is next has his turn, however slow the API server
is with those before him. Together less than a scrape may take (Prometheus: 10 s). Our choice."""
LONGEST_TOKEN: Final = 8192


Judge = Callable[[str | None], Awaitable[HTTPStatus]]
"""Answers what becomes of a request with this Authorization header."""


@dataclass(frozen=True, slots=True)
class _Verdict:
    status: HTTPStatus
    reviewed_s: float


class MetricsAccess:
    """Judges the requests to one program. `clock`: seconds that only grow."""

    def __init__(self, client: Client, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._clock = clock
        self._kept: dict[bytes, _Verdict] = {}  # by the token's digest, the oldest first
        self._turns = {known: asyncio.Semaphore(MOST_AT_ONCE) for known in (False, True)}  # known: allowed before
        self._waiting = {False: 0, True: 0}

    async def judge(self, authorization: str | None) -> HTTPStatus:
        """OK, UNAUTHORIZED (no valid token), FORBIDDEN (not allowed), or SERVICE_UNAVAILABLE (nobody can say now).

        `authorization`: the header of the request."""
        scheme, _, token = (authorization or "").partition(" ")
        token = token.strip()
        if scheme.lower() != "bearer" or not token or len(token) > LONGEST_TOKEN:
            return HTTPStatus.UNAUTHORIZED
        digest = hashlib.sha256(token.encode()).digest()
        if (fresh := self._fresh(digest)) is not None:
            return fresh
        kept = self._kept.get(digest)
        known = kept is not None and kept.status is HTTPStatus.OK
        old = known and kept is not None and self._clock() - kept.reviewed_s < OUTAGE_S
        unsaid = HTTPStatus.OK if old else HTTPStatus.SERVICE_UNAVAILABLE
        if self._turns[known].locked() and (old or self._waiting[known] >= MOST_WAITING):
            return unsaid
        try:
            return await self._in_turn(token, digest, known=known)
        except (CodaError, TimeoutError) as error:
            log.warning("who asks for metrics cannot be reviewed: %s", str(error) or "no answer in time")
            return unsaid

    def _fresh(self, digest: bytes) -> HTTPStatus | None:
        kept = self._kept.get(digest)
        return kept.status if kept is not None and self._clock() - kept.reviewed_s < FRESH_S else None

    async def _in_turn(self, token: str, digest: bytes, *, known: bool) -> HTTPStatus:
        """Wait for a review, and have it. Raises TimeoutError, and CodaError."""
        self._waiting[known] += 1
        try:
            async with asyncio.timeout(TURN_S):
                await self._turns[known].acquire()
        finally:
            self._waiting[known] -= 1
        try:
            if (fresh := self._fresh(digest)) is not None:  # somebody else with this token was before us
                return fresh
            now_s = self._clock()
            async with asyncio.timeout(REVIEW_S):
                status = await self._review(token)
            self._keep(digest, _Verdict(status, now_s))
            return status
        finally:
            self._turns[known].release()

    def _keep(self, digest: bytes, verdict: _Verdict) -> None:
        """The allowed are kept before the refused, so that made-up tokens push nobody out."""
        self._kept.pop(digest, None)
        if len(self._kept) >= MOST_KEPT:
            refused = (key for key, kept in self._kept.items() if kept.status is not HTTPStatus.OK)
            del self._kept[next(refused, next(iter(self._kept)))]
        self._kept[digest] = verdict

    async def _review(self, token: str) -> HTTPStatus:
        review = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}}
        who = (await self._client.create(TOKEN_REVIEWS, review)).get("status") or {}
        if not who.get("authenticated"):
            return HTTPStatus.UNAUTHORIZED
        answer = await self._client.create(ACCESS_REVIEWS, _access_review(who.get("user") or {}))
        allowed = bool((answer.get("status") or {}).get("allowed"))
        return HTTPStatus.OK if allowed else HTTPStatus.FORBIDDEN


def _access_review(user: Json) -> Json:
    asked = {"user": user.get("username") or "", "nonResourceAttributes": {"path": PATH, "verb": "get"}}
    more = {name: user[name] for name in ("uid", "groups", "extra") if user.get(name)}
    return {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": asked | more}


async def anybody(_authorization: str | None) -> HTTPStatus:
    """The judge of a program whose metrics are open."""
    return HTTPStatus.OK


def judge_of(access: str, client: Client) -> Judge:
    """Return the judge for a setting: `open` or `authorized`."""
    return MetricsAccess(client).judge if access == "authorized" else anybody
