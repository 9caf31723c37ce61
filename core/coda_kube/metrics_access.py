"""Who may read a program's /metrics: whom the API server lets `get` that path, as for Kubernetes' own programs.

A TokenReview says who asks, a SubjectAccessReview whether he may. Verdicts are kept, so that a scrape costs no request
most of the time, and so that metrics can still be read while the API server is away.
"""

from __future__ import annotations

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
        self._under_way = {False: 0, True: 0}  # reviews, by whether the token was allowed before

    async def judge(self, authorization: str | None) -> HTTPStatus:
        """OK, UNAUTHORIZED (no valid token), FORBIDDEN (not allowed), or SERVICE_UNAVAILABLE (nobody can say now).

        `authorization`: the header of the request."""
        scheme, _, token = (authorization or "").partition(" ")
        token = token.strip()
        if scheme.lower() != "bearer" or not token or len(token) > LONGEST_TOKEN:
            return HTTPStatus.UNAUTHORIZED
        digest = hashlib.sha256(token.encode()).digest()
        kept, now_s = self._kept.get(digest), self._clock()
        if kept is not None and now_s - kept.reviewed_s < FRESH_S:
            return kept.status
        known = kept is not None and kept.status is HTTPStatus.OK
        old = known and kept is not None and now_s - kept.reviewed_s < OUTAGE_S
        if self._under_way[known] >= MOST_AT_ONCE:
            return HTTPStatus.OK if old else HTTPStatus.SERVICE_UNAVAILABLE
        self._under_way[known] += 1
        try:
            status = await self._review(token)
        except CodaError as error:
            log.warning("who asks for metrics cannot be reviewed: %s", error)
            return HTTPStatus.OK if old else HTTPStatus.SERVICE_UNAVAILABLE
        finally:
            self._under_way[known] -= 1
        self._keep(digest, _Verdict(status, now_s))
        return status

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
