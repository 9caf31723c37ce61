"""Runs the work of each key: never twice at once, again if it was woken meanwhile, later if the work asks for it.

An idle key has no task and at most one timer. Work of the far future shares timers: a finished job waits for days.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from coda.errors import CodaError, Conflict, Outage

log = logging.getLogger(__name__)

FIRST_DELAY_S = 1.0
LAST_DELAY_S = 30.0
GATHER_S = 0.05  # our choice: most pods of a gang change within it, and a user is told within 2 s
LAST_OUTAGE_DELAY_S = 4.0  # nothing says when an outage is over, and pods of a suspended job must end soon after
LONGEST_DELAY_S = 300.0
PATIENT_TRIES = 8
"""After this many failures the object itself is to blame: in an outage that lasts as long the Lease is lost, and the
next term begins from nothing."""
FAR_S = 900.0
SLOT_S = 300.0
"""Work that is due later than `FAR_S` is looked at when its slot begins, and gets a timer of its own then."""

Work = Callable[[str], Awaitable[float | None]]
"""Does what `key` needs; returns when to do it again (by the clock), or None."""


def retry_delay_s(failures: int, limit_s: float) -> float:
    """Return how long to wait after one more failure: doubled each time up to `limit_s`, and later up to minutes."""
    if failures < PATIENT_TRIES:
        return min(limit_s, FIRST_DELAY_S * 2.0**failures)
    return min(LONGEST_DELAY_S, limit_s * 2.0 ** min(failures - PATIENT_TRIES + 1, 30))


class WorkQueue:
    """Work by key, on the running loop. `clock` counts in seconds; only its differences matter."""

    def __init__(self, work: Work, *, clock: Callable[[], float] = time.time) -> None:
        self._work = work
        self._clock = clock
        self._task_by_key: dict[str, asyncio.Task[None]] = {}
        self._woken: set[str] = set()
        self._gathers_until_s: dict[str, float] = {}
        self._timer_by_key: dict[str, asyncio.TimerHandle] = {}
        self._far_keys_by_slot: dict[int, set[str]] = {}
        self._far_timer_by_slot: dict[int, asyncio.TimerHandle] = {}
        self._failures_by_key: dict[str, int] = {}
        self._waits_until_s: dict[str, float] = {}  # of the keys that failed last time
        self._stopped = False
        self.done = 0  # pieces of work that have ended, with success or not

    def is_busy(self) -> bool:
        """True while any work is under way."""
        return bool(self._task_by_key)

    def wake(self, key: str) -> None:
        """Do the work of `key` soon, once for any number of calls before it begins: the object has changed.

        A change may be what the work waited for, so it is tried often again."""
        if self._failures_by_key.get(key, 0) > PATIENT_TRIES:
            self._failures_by_key.pop(key)
            self._waits_until_s.pop(key, None)
        self._begin(key)

    def _begin(self, key: str) -> None:
        if self._stopped:
            return
        self._woken.add(key)
        if key not in self._task_by_key:
            self._task_by_key[key] = asyncio.get_running_loop().create_task(self._run(key))

    def wake_soon(self, key: str) -> None:
        """Do it within `GATHER_S`, once for all calls until then.

        The pods of a gang change together, and each step costs time in proportion to them."""
        if self._stopped or key in self._woken or key in self._gathers_until_s:
            return
        self._gathers_until_s[key] = self._clock() + GATHER_S
        if key not in self._task_by_key and not self._is_due_within(key, GATHER_S):
            self._set_timer(key, self._gathers_until_s[key])

    def start(self) -> None:
        """Work again after a stop. Work that was due before it is forgotten."""
        self._stopped = False

    async def stop(self) -> None:
        """Cancel all work and wait until it has ended. None begins until the next start."""
        self._stopped = True
        for timer in (*self._timer_by_key.values(), *self._far_timer_by_slot.values()):
            timer.cancel()
        self._timer_by_key.clear()
        self._far_timer_by_slot.clear()
        self._far_keys_by_slot.clear()
        self._woken.clear()
        self._gathers_until_s.clear()
        self._failures_by_key.clear()
        self._waits_until_s.clear()
        tasks = list(self._task_by_key.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._task_by_key.clear()  # a task that was cancelled before it began has not removed itself

    async def _run(self, key: str) -> None:
        again_s: float | None = None
        try:
            while key in self._woken:
                self._woken.discard(key)
                self._gathers_until_s.pop(key, None)
                again_s = await self._once(key)
        finally:
            del self._task_by_key[key]
            moments_s = (again_s, self._gathers_until_s.get(key))
            self._set_timer(key, min((moment_s for moment_s in moments_s if moment_s is not None), default=None))

    async def _once(self, key: str) -> float | None:
        try:
            again_s = await self._work_on(key)
        except CodaError as error:
            is_away = isinstance(error, Outage) and not isinstance(error, Conflict)
            return self._after_outage(key, f"{error}") if is_away else self._after_failure(key, f"{error}")
        except Exception:  # outermost: one broken job must not stop the others
            log.exception("%s", key)
            return self._after_failure(key, "an error of our own")
        self._failures_by_key.pop(key, None)
        self._waits_until_s.pop(key, None)
        return again_s

    async def _work_on(self, key: str) -> float | None:
        try:
            return await self._work(key)
        finally:
            self.done += 1

    def _after_outage(self, key: str, sentence: str) -> float:
        """Return when to try again. A try that an event caused before its time does not count.

        Without the Lease for a second, events of all pods of a gang would otherwise drive up the delay of their job."""
        until_s = self._waits_until_s.get(key, 0.0)
        return until_s if self._clock() < until_s else self._after_failure(key, sentence, LAST_OUTAGE_DELAY_S)

    def _after_failure(self, key: str, sentence: str, limit_s: float = LAST_DELAY_S) -> float:
        failures = self._failures_by_key.get(key, 0)
        self._failures_by_key[key] = failures + 1
        delay_s = retry_delay_s(failures, limit_s)
        log.warning("%s: %s; trying again in %.0f s", key, sentence, delay_s)
        self._waits_until_s[key] = self._clock() + delay_s
        return self._waits_until_s[key]

    def _is_due_within(self, key: str, delay_s: float) -> bool:
        timer = self._timer_by_key.get(key)
        return timer is not None and timer.when() <= asyncio.get_running_loop().time() + delay_s

    def _set_timer(self, key: str, again_s: float | None) -> None:
        timer = self._timer_by_key.pop(key, None)
        if timer is not None:
            timer.cancel()
        if again_s is None or self._stopped:
            return
        delay_s = max(0.0, again_s - self._clock()) + 0.001
        if delay_s > FAR_S:
            self._add_to_slot(key, again_s)
        else:
            self._timer_by_key[key] = asyncio.get_running_loop().call_later(delay_s, self._on_timer, key)

    def _add_to_slot(self, key: str, again_s: float) -> None:
        """A key that was put into several slots is looked at in each of them: once too often does no harm."""
        slot = int(again_s // SLOT_S)
        if slot not in self._far_keys_by_slot:
            self._far_keys_by_slot[slot] = set()
            delay_s = slot * SLOT_S - self._clock()
            self._far_timer_by_slot[slot] = asyncio.get_running_loop().call_later(delay_s, self._on_slot, slot)
        self._far_keys_by_slot[slot].add(key)

    def _on_slot(self, slot: int) -> None:
        del self._far_timer_by_slot[slot]
        for key in sorted(self._far_keys_by_slot.pop(slot)):
            self._begin(key)

    def _on_timer(self, key: str) -> None:
        self._timer_by_key.pop(key, None)
        self._begin(key)
