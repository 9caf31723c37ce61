"""The open suspicions and their clocks: when a state is old enough to be a breach, and whether it was reported."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from coda_lab.checker.report import Invariant
from coda_lab.checker.suspicion import Part, Suspicion
from coda_lab.checker.view import Scope

LOST_AFTER_S: Final = 6.0  # the renew deadline of a Lease: a holder that is silent for longer no longer leads

Key = tuple[Invariant, tuple[str, ...]]


class Service:
    """How long a part has been at work without a break, by the renewals of its Lease.

    Time counts up to the last renewal seen. So a stopped or dead leader is never charged for work it could not do, and
    a new leader starts with its whole allowance.
    """

    def __init__(self) -> None:
        self.seen = False
        self._since_s: float | None = None
        self._until_s = 0.0
        self._last: tuple[str, str] | None = None

    def renewed(self, term: str, time: str, now_s: float) -> None:
        """Take in one state of the Lease. The first one may be old: only the next one proves a living holder.

        `term`: who holds it, and since when; empty if nobody does. Who lost it and has it again began anew."""
        if (term, time) == self._last:
            return
        known, self._last = self._last, (term, time)
        if not term or known is None or known[0] != term or now_s - self._until_s > LOST_AFTER_S:
            self._since_s = now_s if term else None
        elif self._since_s is not None:
            self.seen = True
        self._until_s = now_s

    def interrupted(self) -> None:
        """The API server was away: nobody is charged for that time."""
        self._last = None

    def worked_s(self, since_s: float) -> float:
        """The part of the time since `since_s` in which the present holder was at work."""
        return 0.0 if self._since_s is None else max(0.0, self._until_s - max(since_s, self._since_s))


class OpenSuspicions:
    """Suspicions by scope, with the time each was first seen. One loop owns it."""

    def __init__(self) -> None:
        self.services: Mapping[Part, Service] = {part: Service() for part in Part}
        self._open: dict[Scope, dict[Key, Suspicion]] = {}
        self._first_seen_s: dict[Key, float] = {}
        self._reported: set[Key] = set()
        self._quiet_until_s = 0.0

    def enter(self, scope: Scope, suspicions: Iterable[Suspicion], now_s: float) -> None:
        """Replace the suspicions of `scope`; one that is not repeated is closed and its clock forgotten."""
        new = {suspicion.key: suspicion for suspicion in suspicions}
        for key in self._open.pop(scope, {}).keys() - new.keys():
            self._first_seen_s.pop(key, None)
            self._reported.discard(key)
        if new:
            self._open[scope] = new
            for key in new:
                self._first_seen_s.setdefault(key, now_s)

    def due(self, now_s: float) -> dict[Key, tuple[Scope, Suspicion]]:
        """The suspicions whose allowance is used up and that were not reported yet."""
        return {key: found for key, found in self.pending().items() if self._is_due(found[1], now_s)}

    def pending(self) -> dict[Key, tuple[Scope, Suspicion]]:
        """All suspicions that were not reported yet."""
        return {
            key: (scope, suspicion)
            for scope, suspicions in self._open.items()
            for key, suspicion in suspicions.items()
            if key not in self._reported
        }

    def scopes(self) -> set[Scope]:
        """The scopes with an open suspicion."""
        return set(self._open)

    def unjudged(self) -> list[Suspicion]:
        """The open suspicions whose part was never seen at work."""
        found = [suspicion for _, suspicion in self.pending().values()]
        return [each for each in found if each.duty is not None and not self.services[each.duty].seen]

    def report(self, key: Key) -> None:
        """Mark it as a breach: not due again until the trouble has ended and begun again."""
        self._reported.add(key)

    def restart(self, key: Key, now_s: float) -> None:
        """Start its clock again: the fresh list did not confirm it."""
        self._first_seen_s[key] = now_s

    def interrupted(self, now_s: float) -> None:
        """The API server was away until `now_s`: all clocks start again."""
        for service in self.services.values():
            service.interrupted()
        for key in self._first_seen_s:
            self._first_seen_s[key] = now_s
        self._quiet_until_s = now_s

    def _is_due(self, suspicion: Suspicion, now_s: float) -> bool:
        since_s = max(self._first_seen_s[suspicion.key], suspicion.not_before_s, self._quiet_until_s)
        if suspicion.duty is None:
            return now_s - since_s >= suspicion.allowance_s
        return self.services[suspicion.duty].worked_s(since_s) >= suspicion.allowance_s
