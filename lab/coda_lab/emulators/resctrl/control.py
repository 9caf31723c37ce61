"""Controls a running emulator: a unix socket, one JSON object per line each way.

`{"do": "advance", "seconds": 5}` is answered by `{"ok": ...}` or `{"error": "..."}`. The verbs are the methods of
`Verbs`. `Remote` is the other end.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from coda_lab.emulators.load import Load
from coda_lab.emulators.resctrl.machine import Group, Machine
from coda_lab.emulators.resctrl.tasks import FakeTasks, RealTasks
from coda_lab.emulators.resctrl.traffic import advance, served_shares


class Verbs:
    """The possible requests. Bad ones raise ValueError, KeyError or TypeError; the answer says so."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def advance(self, seconds: float) -> float:
        """Let time pass; the time then, seconds."""
        advance(self._machine, seconds)
        return self._machine.now_s

    def load(self, **load: Any) -> None:
        """Set one load (the fields of `Load`); its threads come with `spawn` or `claim`."""
        one = Load(**load)
        self._machine.loads[one.name] = one

    def unload(self, name: str) -> None:
        """The load is no more; its threads stay."""
        self._machine.loads.pop(name, None)

    def spawn(self, load: str, threads: int = 1, cgroup: str = "") -> list[int]:
        """Invented threads of one new process; their tids."""
        return list(self._fake().spawn(load, threads, cgroup))

    def clone(self, tid: int, count: int = 1) -> list[int]:
        """Threads cloned from one; their tids."""
        return list(self._fake().clone(tid, count))

    def exit(self, tid: int) -> None:
        """A thread ends."""
        self._fake().exit(tid)

    def claim(self, process: int, load: str) -> None:
        """A real process works on a load."""
        if not isinstance(self._machine.tasks, RealTasks):
            raise ValueError("the emulator was started with invented threads")
        self._machine.tasks.loads[process] = load

    def tids(self, load: str) -> list[int]:
        """The living threads of a load."""
        return [task.tid for task in self._machine.tasks.all() if task.load == load]

    def shares(self) -> dict[str, float]:
        """By load: the part of its demand it got in the last step."""
        return dict(served_shares(self._machine))

    def rates(self) -> dict[str, float]:
        """By load: bytes/s in the last step."""
        return dict(self._machine.rates)

    def switch(self, **switches: Any) -> None:
        """Change fields of `Switches`: errors and words are replaced whole."""
        for name, value in switches.items():
            if not hasattr(self._machine.switches, name):
                raise ValueError(f"there is no switch {name}")
            setattr(self._machine.switches, name, value)

    def hold(self, closids: int | None = None, rmids: int | None = None, counters: int | None = None) -> None:
        """Leave at most this many hardware ids free."""
        if closids is not None:
            self._machine.closids.hold(closids)
        if rmids is not None:
            self._machine.rmids.hold(rmids)
        if counters is not None:
            self._machine.counters.hold(counters)

    def fall(self, path: str, by_bytes: float) -> None:
        """The counters of the group at `path` lose bytes."""
        self._machine.counters.fall(self._group(path).rmid, by_bytes)

    def forget_counts(self) -> None:
        """All counters start again at 0, without a word."""
        self._machine.counters.reset()

    def log(self) -> list[str]:
        """Every command that succeeded, in order."""
        return list(self._machine.log)

    def _fake(self) -> FakeTasks:
        if not isinstance(self._machine.tasks, FakeTasks):
            raise ValueError("the emulator was started with real threads")
        return self._machine.tasks

    def _group(self, path: str) -> Group:
        groups = [child for group in self._machine.controls() for child in (group, *group.children.values())]
        return next(group for group in groups if group.path == path)


def answer(machine: Machine, line: str) -> str:
    """The reply to one request, as a line without its end."""
    try:
        request = json.loads(line)
        verb = request.pop("do")
        if verb.startswith("_"):
            raise ValueError(f"there is no verb {verb}")
        with machine.lock:
            return json.dumps({"ok": getattr(Verbs(machine), verb)(**request)})
    except (ValueError, KeyError, TypeError, AttributeError, StopIteration) as failure:
        return json.dumps({"error": f"{type(failure).__name__}: {failure}"})


@contextmanager
def serving(machine: Machine, path: Path) -> Iterator[None]:
    """Answers at `path` until the block ends; a socket left by a dead process is replaced."""

    class Visitor(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            for line in self.rfile:
                self.wfile.write(answer(machine, line.decode(errors="replace")).encode() + b"\n")

    with contextlib.suppress(FileNotFoundError):
        path.unlink()
    with socketserver.ThreadingUnixStreamServer(str(path), Visitor) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), name="control", daemon=True)
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)  # noqa: PTH108  # as the server made it


class Remote:
    """A connection to a running emulator. Raises OSError when there is none."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.connect(str(path))
        self._lines = self._socket.makefile("rw")

    def call(self, verb: str, **arguments: object) -> Any:
        """The answer of a verb. Raises ValueError with the emulator's words."""
        self._lines.write(json.dumps({"do": verb, **arguments}) + "\n")
        self._lines.flush()
        reply = json.loads(self._lines.readline())
        if "error" in reply:
            raise ValueError(reply["error"])
        return reply["ok"]

    def close(self) -> None:
        """Hang up."""
        self._lines.close()
        self._socket.close()
