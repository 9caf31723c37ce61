"""Writing the agent's own state so that it survives a power cut: nothing returns before it is on the disk.

What must not live here: what the state means (`journal`, `bandwidth.peak`).
"""

from __future__ import annotations

import os
from pathlib import Path

from coda.errors import Outage


class StateDir:
    """The agent's state directory, made if it is missing. Every method may raise OSError."""

    def __init__(self, directory: Path) -> None:
        """Outage: there can be no such directory."""
        try:
            directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise Outage(f"the state directory {directory} cannot be made: {error}") from error
        self.directory = directory

    def read(self, name: str, *, most_bytes: int) -> bytes:
        """At most the last `most_bytes` of a file; empty when there is none."""
        try:
            with (self.directory / name).open("rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - most_bytes))
                return file.read(most_bytes)
        except FileNotFoundError:
            return b""

    def append(self, name: str, record: bytes) -> None:
        """`record` is the end of the file, on the disk. After an error a part of it may be there."""
        descriptor = os.open(self.directory / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if os.write(descriptor, record) != len(record):
                raise OSError(f"only a part of a record fitted into {self.directory / name}")
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def replace(self, name: str, content: bytes) -> None:
        """`content` is all of the file, or after an error or a crash the old content still is."""
        fresh = self.directory / f"{name}.new"
        descriptor = os.open(fresh, os.O_WRONLY | os.O_TRUNC | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            written = 0
            while written < len(content):
                written += os.write(descriptor, content[written:])
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        fresh.rename(self.directory / name)
        self._sync_names()

    def _sync_names(self) -> None:
        descriptor = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
