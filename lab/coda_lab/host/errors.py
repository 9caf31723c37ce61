"""Failures of the lab, each as one sentence for the user, and the end of a log."""

from __future__ import annotations

import errno
from pathlib import Path

from coda.errors import Outage

_TAIL_BYTES = 16_384


class LabFailure(Outage):
    """Something on this machine is not as the lab needs it. `log` has the details; None: there is no log."""

    def __init__(self, sentence: str, *, log: Path | None = None, last_lines: str = "") -> None:
        text = sentence
        if log is not None:
            text += f" Its log is {log}"
            text += f"; the last lines:\n{last_lines}" if last_lines else "."
        super().__init__(text)
        self.log = log


def last_lines(log: Path, count: int = 8) -> str:
    """The end of a log, indented; empty if there is no log."""
    try:
        with log.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - _TAIL_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
    except FileNotFoundError:
        return ""
    return "\n".join(f"    {line[:300]}" for line in lines[-count:])


def failure_from_os_error(error: OSError, doing: str) -> LabFailure:
    """One sentence about the error. `doing` says what was done, such as "building Helm"."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return LabFailure(f"The disk is full: {doing}. Free some space (or set CODA_CACHE_DIR to another disk).")
    where = f" {error.filename}" if error.filename else ""
    return LabFailure(f"{doing} failed:{where}: {error.strerror or error}.")
