"""Whether NVML is open, and when to open it again: a session, with growing pauses between attempts.

A session ends when the driver is reloaded or a device is lost, and only a new one can see devices that came back."""

from __future__ import annotations

from coda_agent.gpus import nvml
from coda_agent.gpus.devices import LibraryState
from coda_agent.gpus.nvml import NvmlFailure, Trouble


class NvmlSession:
    """NVML's session of this process. `state`, `why` (where it is not READY) and `driver` say how it stands.

    `first_pause_s` doubles with every attempt that did not end in health, up to `longest_pause_s`."""

    def __init__(self, *, first_pause_s: float, longest_pause_s: float) -> None:
        self.state = LibraryState.ABSENT
        self.why: str | None = "NVML was not opened yet"
        self.driver: str | None = None
        self._first_pause_s = first_pause_s
        self._longest_pause_s = longest_pause_s
        self._pause_s = first_pause_s
        self._due_s: float | None = float("-inf")  # when to open; None: nothing to mend

    @property
    def is_open(self) -> bool:
        """Whether handles are valid."""
        return self.state is LibraryState.READY

    def open_if_due(self, now_s: float) -> bool:
        """Open, or close and open again, if that is due; True when a new session began. Never raises.

        May take seconds on a node whose GPUs nobody else keeps initialised."""
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

    def plan_reopening(self, now_s: float) -> None:
        """Something is lost: open again after the pause, unless that is planned already."""
        if self._due_s is None:
            self._due_s = now_s + self._pause_s

    def mark_broken(self, now_s: float, why: str) -> None:
        """The session ended under us: no handle is valid any more."""
        self.state, self.why = LibraryState.FAILED, why
        self.plan_reopening(now_s)

    def mark_healthy(self) -> None:
        """All is well: the next trouble starts with the first pause again."""
        self._pause_s, self._due_s = self._first_pause_s, None

    def close(self) -> None:
        """End the session, whatever state it is in; the next `open_if_due` begins another."""
        self._end()
        self._due_s = float("-inf")

    def _end(self) -> None:
        try:
            nvml.close_session()
        except NvmlFailure as failure:
            self.why = str(failure)
        if self.state is LibraryState.READY:
            self.state, self.why = LibraryState.FAILED, "NVML is closed"


def _state_after(trouble: Trouble) -> LibraryState:
    states = {Trouble.OUTDATED: LibraryState.OUTDATED, Trouble.ABSENT: LibraryState.ABSENT}
    return states.get(trouble, LibraryState.FAILED)
