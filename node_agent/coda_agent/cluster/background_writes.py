"""Writes to the API server in the background, so that a slow server delays nothing on the node."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final

from coda.errors import CodaError, Conflict, Outage
from coda_kube.api.retry_pauses import write_pause_s
from coda_kube.say_again import SayAgain

log = logging.getLogger(__name__)

AGAIN_S: Final = 5.0
LONGEST_S: Final = 60.0
"""The most seconds before a failed write is tried again, and their bound. Our choice: thousands of nodes must not flood
an API server that comes back."""


class BackgroundWrites:
    """At most one write at a time about the same thing.

    `count_failure` is called for each failed write. `now_s`: a clock that never jumps. `muted`: write nothing."""

    def __init__(self, count_failure: Callable[[], None], now_s: Callable[[], float], *, muted: bool) -> None:
        self.muted = muted
        self._count_failure = count_failure
        self.now_s = now_s
        self._under_way: dict[str, asyncio.Task[None]] = {}
        self._again_s: dict[str, float] = {}  # by `about`, for what failed lately
        self._failures: dict[str, int] = {}  # in a row, by `about`
        self._failing: dict[str, SayAgain] = {}  # kinds whose last write failed: an outage is not logged at each try

    def may_begin(self, about: str) -> bool:
        """True if no write about it is under way, and none failed a moment ago."""
        return about not in self._under_way and self.now_s() >= self._again_s.get(about, 0.0)

    def begin(
        self,
        about: str,
        write: Callable[[], Coroutine[Any, Any, None]],
        *,
        on_success: Callable[[], None] | None = None,
        on_failure: Callable[[], None] | None = None,
    ) -> None:
        """Start `write`, unless `may_begin` says no. `about`: a kind and, after a space, which one.

        A failure is counted and logged; the caller tries again when it finds the write missing. After a Conflict it may
        do so at once, because it decides again."""
        if self.muted or not self.may_begin(about):
            return
        kind = about.partition(" ")[0]

        async def attempt() -> None:
            try:
                await write()
            except CodaError as error:
                self._failed(about, kind, error)
                if on_failure is not None:
                    on_failure()
            else:
                self._failing.pop(kind, None)
                self._failures.pop(about, None)
                if on_success is not None:
                    on_success()
            finally:
                self._under_way.pop(about, None)

        self._under_way[about] = asyncio.create_task(attempt())

    async def cancel(self) -> None:
        """End all writes under way."""
        tasks = list(self._under_way.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _failed(self, about: str, kind: str, error: CodaError) -> None:
        self._count_failure()
        if isinstance(error, Conflict):
            log.info("%s not written: %s", about, error)
            return
        now_s = self.now_s()
        self._again_s = {one: until_s for one, until_s in self._again_s.items() if until_s > now_s - LONGEST_S}
        self._failures = {one: count for one, count in self._failures.items() if one in self._again_s}
        failures, asked_s = self._failures.get(about, 0), error.retry_after_s if isinstance(error, Outage) else 0.0
        self._again_s[about] = now_s + write_pause_s(failures, asked_s, first_s=AGAIN_S, longest_s=LONGEST_S)
        self._failures[about] = failures + 1
        if self._failing.setdefault(kind, SayAgain(self.now_s)).is_due():
            log.warning("%s not written: %s", about, error)
