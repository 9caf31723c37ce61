"""Locks between processes. The kernel frees them when their holder ends, also when it is killed."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from coda.errors import Outage


class Locked(Outage):
    """Another process holds the lock."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"{path} is locked by another process")
        self.path = path


@contextmanager
def locked(path: Path, *, wait: bool) -> Iterator[None]:
    """Lock the file `path` inside the block; it and its folders are created. Raises Locked at once, unless `wait`.

    The holder may delete the file. A process that waits for the deleted file then locks the new one."""
    descriptor = _acquire(path, wait=wait)
    try:
        yield
    finally:
        os.close(descriptor)


def is_locked(path: Path) -> bool:
    """True while a process holds the lock. Creates no file."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _acquire(path: Path, *, wait: bool) -> int:
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:  # the folder was removed between the two calls
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            if _is_still(descriptor, path):
                return descriptor
        except BlockingIOError as error:
            os.close(descriptor)
            raise Locked(path) from error
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _is_still(descriptor: int, path: Path) -> bool:
    try:
        return os.fstat(descriptor).st_ino == path.stat().st_ino
    except FileNotFoundError:
        return False
