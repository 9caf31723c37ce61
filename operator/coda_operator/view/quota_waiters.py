"""Jobs that no ResourceQuota admits now: some of them are tried again as soon as a pod of their namespace ends.

Quotas themselves are not watched: their use is counted late, and the API server's answer is the only one that counts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import islice
from typing import Final

GATHER_S: Final = 0.5  # the pods of a gang end together, and the API server counts them a moment later
AT_ONCE: Final = 8  # our choice: as many as are accepted at the same time; the others have timers


class QuotaWaiters:
    """The keys (namespace/name) of the waiting jobs by namespace, in the order in which they began to wait."""

    def __init__(self, wake: Callable[[str], None]) -> None:
        self._wake = wake
        self._keys_by_namespace: dict[str, dict[str, None]] = {}
        self._timer_by_namespace: dict[str, asyncio.TimerHandle] = {}

    def add(self, key: str) -> None:
        """The job waits; it keeps its place if it waited already."""
        self._keys_by_namespace.setdefault(key.partition("/")[0], {}).setdefault(key)

    def discard(self, key: str) -> None:
        """The job waits no more."""
        namespace = key.partition("/")[0]
        keys = self._keys_by_namespace.get(namespace)
        if keys is not None:
            keys.pop(key, None)
            if not keys:
                del self._keys_by_namespace[namespace]

    def on_freed(self, namespace: str) -> None:
        """A pod of this namespace ended or went."""
        if namespace in self._keys_by_namespace and namespace not in self._timer_by_namespace:
            timer = asyncio.get_running_loop().call_later(GATHER_S, self._wake_first, namespace)
            self._timer_by_namespace[namespace] = timer

    def _wake_first(self, namespace: str) -> None:
        del self._timer_by_namespace[namespace]
        for key in list(islice(self._keys_by_namespace.get(namespace, ()), AT_ONCE)):
            self._wake(key)
