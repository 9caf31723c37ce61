"""What could not be read, and when to try it again: after pauses that grow, each key on its own."""

from __future__ import annotations

from collections.abc import Collection
from typing import Generic, TypeVar

from coda_kube.api.retry_pauses import growing_s

_K = TypeVar("_K")


class PutOff(Generic[_K]):
    """The keys that were put off. Their pauses grow from `first_s` to `longest_s`."""

    def __init__(self, first_s: float, longest_s: float) -> None:
        self._first_s = first_s
        self._longest_s = longest_s
        self._known: dict[_K, tuple[int, float]] = {}  # by key: failures in a row, and when to try again

    def is_due(self, key: _K, now_s: float) -> bool:
        """True unless the key was put off to a later time."""
        return key not in self._known or now_s >= self._known[key][1]

    def put_off(self, key: _K, now_s: float) -> bool:
        """Put the key off, for longer each time. Return whether this is the first time."""
        failures = self._known[key][0] if key in self._known else 0
        self._known[key] = failures + 1, now_s + growing_s(failures, self._first_s, self._longest_s)
        return failures == 0

    def forget_all_except(self, keys: Collection[_K], now_s: float) -> None:
        """Keep these keys, and others until their pause is over: a key that comes back soon is not new."""
        self._known = {key: known for key, known in self._known.items() if key in keys or now_s < known[1]}
