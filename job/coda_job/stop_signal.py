"""Whether this process is to end: SIGTERM, as Kubernetes and torchrun send it, or the file `stop`."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType

from coda_job.progress_file import DIRECTORY

NAME = "stop"


class StopSignal:
    """Listens from the first question on."""

    def __init__(self) -> None:
        self._is_set = False
        self._listens = False

    def is_set(self) -> bool:
        """Return whether the process is to end. Once true, always true."""
        if not self._listens and threading.current_thread() is threading.main_thread():
            self._listens = True
            self._listen()
        directory = os.environ.get(DIRECTORY)
        if not self._is_set and directory and os.path.lexists(os.path.join(directory, NAME)):  # noqa: PTH118
            self._is_set = True
        return self._is_set

    def _listen(self) -> None:
        before = signal.getsignal(signal.SIGTERM)

        def note(number: int, frame: FrameType | None) -> None:
            self._is_set = True
            if callable(before):
                before(number, frame)

        if before is not None:  # None: not Python's to replace
            signal.signal(signal.SIGTERM, note)
