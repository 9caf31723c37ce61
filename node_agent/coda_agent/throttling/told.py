"""Which throttles were told as made: only these are told as over."""

from __future__ import annotations

from coda.contention import Action, Means

ThrottleKey = tuple[Means, int, tuple[str, ...]]
"""The means, the socket, and for cores the pod: a throttle over its steps."""


def throttle_of(action: Action) -> ThrottleKey:
    """Return which throttle an action is about."""
    return action.means, action.socket, action.pods if action.means is Means.CORES else ()


class ToldThrottles:
    """The throttles that were in force and have not ended."""

    def __init__(self) -> None:
        self._made: set[ThrottleKey] = set()

    def to_tell(self, done: tuple[Action, ...]) -> tuple[Action, ...]:
        """Return what to tell of `done`: all, but the ends of throttles that were never in force."""
        told: list[Action] = []
        for action in done:
            key = throttle_of(action)
            if action.ends and key not in self._made:
                continue
            self._made = self._made - {key} if action.ends else self._made | {key}
            told.append(action)
        return tuple(told)

    def forget_absent(self, present: frozenset[str]) -> None:
        """Forget the throttles of cores of pods that are gone: these have no end."""
        self._made = {key for key in self._made if present.issuperset(key[2])}
