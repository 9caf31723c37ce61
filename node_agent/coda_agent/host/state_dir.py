"""The agent's state files: nothing returns before it is on the disk, so state survives a power cut."""

from __future__ import annotations

import os
from pathlib import Path

from coda.errors import Outage


class StateDir:
    """The agent's state directory, created if it is missing. Every method may raise OSError."""

    def __init__(self, directory: Path) -> None:
        """Raises Outage if the directory cannot be created."""
        try:
            directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise Outage(f"the state directory {directory} cannot be made: {error}") from error
        self.directory = directory

    def read(self, name: str, *, most_bytes: int) -> bytes:
        """Return at most the last `most_bytes` of a file; empty if there is no such file."""
        try:
            with (self.directory / name).open("rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - most_bytes))
                return file.read(most_bytes)
        except FileNotFoundError:
            return b""

    def append(self, name: str, record: bytes) -> None:
        """Add `record` at the end of the file, on the disk. After an error a part of it may be there."""
        descriptor = os.open(self.directory / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if os.write(descriptor, record) != len(record):
                raise OSError(f"only a part of a record fitted into {self.directory / name}")
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def replace(self, name: str, content: bytes) -> None:
        """Make `content` the whole file. After an error or a crash the old content is still there."""
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
