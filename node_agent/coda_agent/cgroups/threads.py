"""All threads of a pod: those of every cgroup below its own, because runtimes put processes at different depths."""

from __future__ import annotations

import errno

from coda_agent.cgroups.layout import ENDED, Layout, Version
from coda_agent.host import Files


def threads_of(files: Files, layout: Layout, path: str) -> frozenset[int]:
    """Return the ids of all threads below cgroup `path`, as of now; empty if it is gone. Lines without an id are
    skipped.

    A thread forked meanwhile may be missing: list again until nothing is new. Raises OSError if they cannot be
    listed."""
    return _ids(files, layout, path, "cgroup.threads" if layout.version is Version.V2 else "tasks")


def processes_of(files: Files, layout: Layout, path: str) -> frozenset[int]:
    """Return the ids of all processes below cgroup `path`; otherwise as `threads_of`."""
    return _ids(files, layout, path, "cgroup.procs")


def _ids(files: Files, layout: Layout, path: str, name: str) -> frozenset[int]:
    ids: set[int] = set()
    waiting = [path]
    while waiting:
        at = waiting.pop()
        try:
            ids |= _read(files, layout.cpu_file(at, name))
            waiting += [f"{at}/{child}" for child in files.cgroup.directories(f"{layout.cpu}/{at}")]
        except OSError as error:
            if error.errno not in ENDED:
                raise
    return frozenset(ids)


def _read(files: Files, path: str) -> set[int]:
    try:
        words = files.cgroup.read_text(path).split()
    except OSError as error:
        if error.errno == errno.EOPNOTSUPP:  # a threaded cgroup lists its processes only at its domain
            return set()
        raise
    return {int(word) for word in words if word.isascii() and word.isdigit() and word != "0"}
