"""What the API server's refusals and failures are to us: errors, made of an answer's status and body."""

from __future__ import annotations

from collections.abc import Collection

import orjson

from coda.errors import CodaError, Conflict, Outage
from coda_kube.objects.json_types import Json

_CAUSES_LIMIT = 300  # characters, of those in a message


class Rejected(CodaError):
    """The request is refused. `status` is HTTP's, `reason` is Kubernetes' (Invalid, Forbidden, ...).

    `is_judged`: by an API server, which says so in a Status. A proxy's refusal says nothing of the object."""

    def __init__(self, status: int, reason: str, message: str, *, is_judged: bool = True) -> None:
        super().__init__(message)
        self.is_judged = is_judged
        self.status = status
        self.reason = reason


class NotFound(Rejected):
    """The object does not exist: the API server says so, and names it (404)."""


class NotServed(Outage):
    """A 404 that is about no object: this API server does not know the kind, or something before it answers.

    One API server of several may answer so for a moment, or a balancer that reloads. So it proves nothing of an
    object; of a kind, only once it repeats."""


class AlreadyExists(Rejected):
    """An object of that name exists already (409 on create)."""


class TooSlow(Outage):
    """The API server sent nothing for too long, though it was reached."""


class TooBusy(Outage):
    """The API server takes no more requests for now (429): nothing was stored, and the object is not to blame.

    `causes`: the kinds of causes that it gives, in Kubernetes' words; a disruption budget answers so too."""

    def __init__(
        self,
        message: str,
        *,
        may_have_worked: bool = False,
        retry_after_s: float = 0.0,
        causes: Collection[str] = (),
    ) -> None:
        super().__init__(message, may_have_worked=may_have_worked, retry_after_s=retry_after_s)
        self.causes = frozenset(causes)


class Expired(Outage):
    """A watch or list cannot continue from its resourceVersion: that is too old (410), or the next event cannot be
    read. List again."""


def _may_have_worked(message: str) -> bool:
    """False if the API server says that it stored nothing: the object is refused as it is."""
    return not any(words in message for words in ("request is too large", "failed calling webhook"))


def error_from_answer(code: int, text: str, reason: str = "", retry_after_s: float = 0.0) -> CodaError:
    """Return what the client raises for an answer of this HTTP status, body, reason and Retry-After.

    Its message has the causes that the API server gives, as far as it does not name them itself."""
    try:
        status = orjson.loads(text)
    except orjson.JSONDecodeError:
        status = {}
    status = status if isinstance(status, dict) else {}
    reason = str(status.get("reason") or reason)
    message = str(status.get("message") or text[:300] or f"HTTP {code}")
    causes = _causes(status)
    said = "; ".join([cause for _, cause in causes if cause and cause not in message])[:_CAUSES_LIMIT]
    message = f"{message} ({said})" if said else message
    if code == 404:
        if _is_of_an_object(status):
            return NotFound(404, reason, message)
        return NotServed(f"HTTP 404: {message}", may_have_worked=False)
    if code == 409:
        return AlreadyExists(409, reason, message) if reason == "AlreadyExists" else Conflict(message)
    if code == 410:
        return Expired(message)
    if code == 429:
        kinds = [kind for kind, _ in causes]
        return TooBusy(f"HTTP 429: {message}", retry_after_s=retry_after_s, causes=kinds)
    if code >= 500:
        worked = _may_have_worked(message)
        return Outage(f"HTTP {code}: {message}", may_have_worked=worked, retry_after_s=retry_after_s)
    return Rejected(code, reason, message, is_judged=status.get("kind") == "Status")


def _is_of_an_object(status: Json) -> bool:
    """True if a Status names what was not found. An API server that lacks a route names nothing, and one without a
    definition, or a proxy, answers with a text."""
    details = status.get("details")
    name = details.get("name") if isinstance(details, dict) else None
    return status.get("kind") == "Status" and status.get("reason") == "NotFound" and bool(name)


def _causes(status: Json) -> list[tuple[str, str]]:
    """The kind and the message of each cause in a Status. Whatever else is there is no cause."""
    details = status.get("details")
    causes = details.get("causes") if isinstance(details, dict) else None
    found = [cause for cause in causes if isinstance(cause, dict)] if isinstance(causes, list) else []
    return [(str(cause.get("reason") or ""), str(cause.get("message") or "")) for cause in found]
