"""The agent's trees on an emulated machine in another process. The agent's own path checks stay in force."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

from coda.errors import Outage
from coda_agent.host.files import MOST_BYTES, Files, Tree


class Line:
    """The connection to one machine. Any thread may ask; one question at a time."""

    def __init__(self, path: Path, *, lost: Callable[[], NoReturn]) -> None:
        """`lost`: called when the machine is gone. Raises Outage when it is not there."""
        self._lost = lost
        self._lock = threading.Lock()
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(str(path))
        except OSError as error:
            connection.close()
            raise Outage(f"the emulated machine at {path} does not answer: {error.strerror}") from error
        self._stream = connection.makefile("rwb")
        connection.close()  # closed with the stream

    def ask(self, tree: str, operation: str, *arguments: Any) -> Any:
        """The result of the operation there. Raises OSError as the machine's kernel does."""
        with self._lock:
            try:
                self._stream.write(json.dumps([tree, operation, arguments]).encode() + b"\n")
                self._stream.flush()
                line = self._stream.readline()
            except OSError:
                line = b""
        if not line:
            self._lost()
        told = json.loads(line)
        if "errno" in told:
            raise OSError(told["errno"], told["says"], arguments[0])
        return told["is"]

    def close(self) -> None:
        """Hang up."""
        with suppress(OSError):  # unsent requests to a machine that is gone
            self._stream.close()


class RemoteTree(Tree):
    """One root of the machine; every method as in the agent's own tree."""

    __slots__ = ("_line", "_name")

    _line: Line
    _name: str

    def __init__(self, line: Line, name: str) -> None:
        super().__init__(Path("/emulated") / name)
        object.__setattr__(self, "_line", line)
        object.__setattr__(self, "_name", name)

    def read_bytes(self, relative: str, *, most_bytes: int = MOST_BYTES) -> bytes:
        """As the agent's own tree."""
        return str(self._ask("read", relative, most_bytes)).encode()

    def write(self, relative: str, text: str) -> None:
        """As the agent's own tree."""
        self._ask("write", relative, text)

    def listdir(self, relative: str = ".") -> tuple[str, ...]:
        """As the agent's own tree."""
        return tuple(self._ask("listdir", relative))

    def directories(self, relative: str = ".") -> tuple[str, ...]:
        """As the agent's own tree."""
        return tuple(self._ask("directories", relative))

    def mkdir(self, relative: str) -> None:
        """As the agent's own tree."""
        self._ask("mkdir", relative)

    def rmdir(self, relative: str) -> None:
        """As the agent's own tree."""
        self._ask("rmdir", relative)

    def rename(self, old: str, new: str) -> None:
        """As the agent's own tree."""
        self._absolute(new)
        self._ask("rename", old, new)

    def exists(self, relative: str) -> bool:
        """As the agent's own tree."""
        return bool(self._ask("exists", relative))

    @contextmanager
    def locked(self, relative: str = ".") -> Iterator[None]:
        """True: no other agent can be there."""
        self._ask("listdir", relative)
        yield

    def _ask(self, operation: str, relative: str, *more: Any) -> Any:
        self._absolute(relative)  # refuses paths that leave the root
        return self._line.ask(self._name, operation, relative, *more)


def remote_files(line: Line, sys: Path) -> Files:
    """The trees of the machine at the other end; `sys` is a real folder."""
    files = Files(sys=sys)
    files.proc, files.cgroup, files.resctrl = (RemoteTree(line, name) for name in ("proc", "cgroup", "resctrl"))
    return files
