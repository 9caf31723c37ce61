"""The file `progress` in the directory of CODA_JOB_DIR: it is replaced whole, so no reader sees a half of it."""

from __future__ import annotations

import atexit
import errno
import logging
import os
import threading
import time
from typing import Callable, Mapping

log = logging.getLogger("coda_job")

DIRECTORY = "CODA_JOB_DIR"
NAME = "progress"
EVERY_S = 1.0  # between two writes; who reads looks less often

_WHOLE = frozenset(("step", "total_steps", "total_epochs", "saved", "loss_epoch"))


class ProgressFile:
    """What was said, and when it was written. Any thread may speak."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.RLock()  # the handler of a signal may speak in the middle of what is said here
        self._texts: dict[str, str] = {}
        self._times_said = 0
        self._writes = 0  # under way: one, and those of handlers in the middle of it
        self._written_s: float | None = None
        self._is_unwritten = False
        self._pid = 0  # who writes the rest at its end: a forked child has this state too, and nothing to say
        self._warned: set[str] = set()
        if hasattr(os, "register_at_fork"):  # not on Windows
            os.register_at_fork(after_in_child=self._forked)

    def say(self, values: Mapping[str, object]) -> None:
        """Take over what is not None; write it unless that was done a moment ago."""
        if self._directory() is not None:
            self._say(values, at_once=False)

    def say_saved(self, step: object, answer: str = "") -> None:
        """Say what is saved, at once. `answer`: the id of the stop that it answers; "": it answers none."""
        if self._directory() is None:
            return
        step = self._texts.get("step") if step is None else step
        if step is None and not answer:
            self._warn("saved() needs a step, saved(step=...), where none was reported")
            return
        self._say({"saved": step}, at_once=True, answer=answer)

    def flush(self) -> None:
        """Write what was said since the last write. Called at the end of the process."""
        with self._lock:
            if self._is_unwritten and self._pid == os.getpid():
                self._write()

    def _say(self, values: Mapping[str, object], *, at_once: bool, answer: str = "") -> None:
        said = {name: text for name, value in values.items() if (text := self._text(name, value)) is not None}
        if answer:
            said["answer"] = answer
        if not said:
            return
        with self._lock:
            if self._pid != os.getpid():
                self._pid = os.getpid()
                atexit.register(self.flush)
            self._texts.update(said)
            if "loss" in said and "epoch" in self._texts:
                self._texts["loss_epoch"] = str(int(float(self._texts["epoch"])))
            self._times_said += 1
            self._is_unwritten = True
            if at_once or self._written_s is None or self._clock() - self._written_s >= EVERY_S:
                self._write()

    def _text(self, name: str, value: object) -> str | None:
        if value is None:
            return None
        try:
            number = int(value) if name in _WHOLE else float(value)  # type: ignore[call-overload,arg-type]
            if name == "epoch" and not 0 <= number < 1e9:
                raise ValueError(number)
            return repr(number)
        except Exception:  # a tensor may raise anything
            self._warn(f"{name} is {_shown(value)}: a number is needed, and it was left out")
            return None

    def _write(self) -> None:
        """Write all that is known. It does so again if a handler said more meanwhile: its file was then replaced."""
        directory = self._directory()
        if directory is None:
            return
        said = -1
        while said != self._times_said:
            said = self._times_said
            self._written_s, self._is_unwritten = self._clock(), False
            text = "".join(f"{name}={value}\n" for name, value in sorted(self._texts.items()))
            try:
                self._replace(directory, text)
            except OSError as error:
                self._warn(f"progress cannot be written to {directory}: {error.strerror}")

    def _replace(self, directory: str, text: str) -> None:
        self._writes += 1  # a write within a write has a file of its own
        try:
            part = os.path.join(directory, f".{NAME}.{os.getpid()}.{self._writes}")  # noqa: PTH118  older Pythons
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK
            descriptor = os.open(part, flags, 0o644)
            try:
                os.fchmod(descriptor, 0o644)  # whatever the umask: its reader has no right to read what it may not
                taken = os.write(descriptor, text.encode())
            finally:
                os.close(descriptor)
            if taken < len(text):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.replace(part, os.path.join(directory, NAME))  # noqa: PTH105, PTH118
        finally:
            self._writes -= 1

    def _forked(self) -> None:
        """Another thread of the parent may have held the lock, and is not here to release it."""
        self._lock, self._writes = threading.RLock(), 0

    def _directory(self) -> str | None:
        """None where nobody listens: not rank 0, or not under Coda. torchrun gives each of its workers a RANK."""
        directory = os.environ.get(DIRECTORY)
        return directory if directory and os.environ.get("RANK", "0") == "0" else None

    def _warn(self, sentence: str) -> None:
        """Each once: a script reports for days."""
        if sentence not in self._warned and len(self._warned) < 10:
            self._warned.add(sentence)
            log.warning("%s", sentence)


def _shown(value: object) -> str:
    kind = type(value).__name__
    try:
        return f"{kind} {value!r:.40}"
    except Exception:  # a tensor of a device that failed, a number of 5000 digits
        return kind
