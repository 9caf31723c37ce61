"""The exceptions of Coda, split by whose fault it is and what to do.

CodaError
├── InvalidInput          the user's or the cluster's input is wrong: say where, change nothing
│   └── InvalidQuantity   a Kubernetes quantity that cannot be read
├── Outage                something outside failed for now: try again later
│   └── Conflict          somebody else wrote first: read again, decide again
└── InconsistentWorld     a snapshot that cannot exist: our bug, or a breach worth reporting

"Does not fit" is not an exception: it is a `Refusal` in the `Decision`.
"""

from __future__ import annotations


class CodaError(Exception):
    """Root of every exception that Coda raises on purpose; `str()` is one clear sentence."""


class InvalidInput(CodaError):
    """Input that no retry can repair; the sentence says what is wrong, where, and what to do."""


class InvalidQuantity(InvalidInput):
    """A string that is not a Kubernetes quantity."""

    def __init__(self, text: object) -> None:
        super().__init__(f"{str(text)[:60]!r} is not a Kubernetes quantity such as 500m, 2 or 16Gi")
        self.text = text


class Outage(CodaError):
    """A part outside Coda did not answer as expected; the same call may work later.

    `may_have_worked`: a write may have been carried out, or may still be. `retry_after_s`: the least seconds until the
    next call, as the other side asked; 0: it did not."""

    def __init__(self, message: str, *, may_have_worked: bool = True, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.may_have_worked = may_have_worked
        self.retry_after_s = retry_after_s


class Conflict(Outage):
    """The object has changed since it was read; nothing was written."""


class InconsistentWorld(CodaError):
    """A world that breaks its own rules; `breaches` lists every broken rule."""

    def __init__(self, breaches: tuple[str, ...]) -> None:
        super().__init__("; ".join(breaches))
        self.breaches = breaches


def require(holds: bool, rule: str, value: object) -> None:
    """Return if `holds`; else raise InvalidInput with the rule and the value that breaks it."""
    if not holds:
        raise InvalidInput(f"{rule}, got {value}")
