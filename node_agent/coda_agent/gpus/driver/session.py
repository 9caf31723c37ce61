"""The NVML session of this process: open or not, and when to open it again, with growing pauses.

A session ends when the driver is reloaded or a device is lost. Only a new session sees devices that came back."""

from __future__ import annotations

from collections.abc import Callable

from coda_agent.gpus.devices import LibraryState
from coda_agent.gpus.driver import nvml
from coda_agent.gpus.driver.nvml import NvmlFailure, Trouble


class NvmlSession:
    """NVML's session of this process. `state`, `why` (if it is not READY) and `driver` describe it.

    `first_pause_s` doubles with every attempt after which something is still lost: up to `longest_pause_s`, or
    `longest_search_s` while other devices are healthy, because a new session takes theirs from them.
    `before_end`: gives back what the session was asked for; it must not raise."""

    def __init__(
        self,
        *,
        first_pause_s: float,
        longest_pause_s: float,
        longest_search_s: float,
        before_end: Callable[[], None],
    ) -> None:
        self.state = LibraryState.ABSENT
        self.why: str | None = "NVML was not opened yet"
        self.driver: str | None = None
        self._first_pause_s = first_pause_s
        self._longest_pause_s = longest_pause_s
        self._longest_search_s = longest_search_s
        self._before_end = before_end
        self._pause_s = self._search_s = first_pause_s
        self._due_s: float | None = float("-inf")  # when to open; None: not planned

    @property
    def is_open(self) -> bool:
        """True while handles are valid."""
        return self.state is LibraryState.READY

    def open_if_due(self, now_s: float) -> bool:
        """Open, or close and open again, if that is due. True if a new session began. Never raises.

        This may take seconds on a node where nothing else keeps the GPUs initialised."""
        if self._due_s is None or now_s < self._due_s:
            return False
        self._end()
        self._due_s = now_s + self._pause_s
        self._pause_s = min(2 * self._pause_s, self._longest_pause_s)
        try:
            self.driver = nvml.open_session()
        except NvmlFailure as failure:
            self.state, self.why = _state_after(failure.trouble), str(failure)
            return False
        self.state, self.why, self._due_s = LibraryState.READY, None, None
        return True

    def plan_search(self, now_s: float) -> None:
        """Some devices are lost: open again after the pause of searches, unless that is planned already."""
        if self._due_s is None:
            self._due_s = now_s + self._search_s
            self._search_s = min(2 * self._search_s, self._longest_search_s)

    def plan_reopening(self, now_s: float) -> None:
        """Nothing answers: open again after the pause, unless that is planned for earlier."""
        due_s = now_s + self._pause_s
        self._due_s = due_s if self._due_s is None else min(self._due_s, due_s)

    def mark_broken(self, now_s: float, why: str) -> None:
        """The session ended: no handle is valid any more."""
        self.state, self.why = LibraryState.FAILED, why
        self.plan_reopening(now_s)

    def mark_healthy(self) -> None:
        """All is well: the next failure begins with the first pause again."""
        self._pause_s = self._search_s = self._first_pause_s
        self._due_s = None

    def close(self) -> None:
        """End the session in any state; the next `open_if_due` begins another."""
        self._end()
        self._due_s = float("-inf")

    def _end(self) -> None:
        self._before_end()
        try:
            nvml.close_session()
        except NvmlFailure as failure:
            self.why = str(failure)
        if self.state is LibraryState.READY:
            self.state, self.why = LibraryState.FAILED, "NVML is closed"


def _state_after(trouble: Trouble) -> LibraryState:
    states = {Trouble.OUTDATED: LibraryState.OUTDATED, Trouble.ABSENT: LibraryState.ABSENT}
    return states.get(trouble, LibraryState.FAILED)
