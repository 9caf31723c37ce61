"""Whether this process is to end: SIGTERM, as Kubernetes and torchrun send it, or the file `stop`."""

from __future__ import annotations

import os
import re
import signal
import threading
from types import FrameType
from typing import Callable

from coda_job.progress_file import DIRECTORY

NAME = "stop"

_ID = re.compile(r"^id=([0-9A-Za-z-]{1,64})$", re.MULTILINE)
_SECONDS = re.compile(r"^notice_s=([0-9]{1,6})$", re.MULTILINE)


class StopSignal:
    """Listens from the first question on."""

    def __init__(self) -> None:
        self._is_set = False
        self._listens = False
        self._before: Callable[[int, FrameType | None], object] | int | None = None  # what SIGTERM did before
        self._forking = threading.local()  # the thread's own mask of signals, while it forks
        if hasattr(os, "register_at_fork"):  # not on Windows
            os.register_at_fork(before=self._fork, after_in_parent=self._go_on, after_in_child=self._begin_as_a_child)
        self.id = ""  # of the announcement that was heard: the answer repeats it; "": none was

    def is_set(self) -> bool:
        """Return whether the process is to end. Once true, always true."""
        if not self._listens and threading.current_thread() is threading.main_thread():
            self._listens = True
            self._listen()
        path = self._path()
        if path and not self.id and os.path.lexists(path):
            self._is_set = True
            self.id = self._read(path, _ID)
        return self._is_set

    def notice_s(self) -> int | None:
        """Return how many seconds of notice the file gives, from when it appeared; None if it does not say."""
        path = self._path()
        text = self._read(path, _SECONDS) if path else ""
        return int(text) if text else None

    def _path(self) -> str:
        directory = os.environ.get(DIRECTORY)
        return os.path.join(directory, NAME) if directory else ""  # noqa: PTH118

    def _read(self, path: str, pattern: re.Pattern[str]) -> str:
        """What the file says; "" if it says nothing, or is none of the agent's: a pipe that a script made, perhaps."""
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
            try:
                content = os.read(descriptor, 4096)
            finally:
                os.close(descriptor)
        except OSError:
            return ""
        found = pattern.search(content.decode("ascii", "replace"))
        return found.group(1) if found else ""

    def _listen(self) -> None:
        self._before = signal.getsignal(signal.SIGTERM)
        if self._before is not None:  # None: not Python's to replace
            signal.signal(signal.SIGTERM, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._is_set = True
        if callable(self._before):
            self._before(number, frame)

    def _fork(self) -> None:
        """Hold SIGTERM back until the child no longer listens: Python drops what a child gets before."""
        if self._listens:
            self._forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

    def _go_on(self) -> None:
        mask = self._forking.__dict__.pop("mask", None)
        if mask is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def _begin_as_a_child(self) -> None:
        """Let SIGTERM end the child as before: most children never ask, and `Pool.terminate` waits for their end."""
        if signal.getsignal(signal.SIGTERM) == self._note:
            signal.signal(signal.SIGTERM, self._before)
            self._listens = False  # a child that asks listens itself
        self._go_on()
