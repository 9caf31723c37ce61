"""Talks to the program in the virtual machine: runs commands, starts programs, signals and reads them.

Each request is one JSON line on a connection of its own to a port of this machine's loopback, which qemu forwards. A
token, readable only with the machine's folder, keeps others out.
"""

from __future__ import annotations

import asyncio
import base64
import json
import signal
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from coda_lab.host.errors import LabFailure
from coda_lab.host.ports import LOOPBACK

_POLL_S = 0.1  # only an answer tells that the machine is up
_HELLO_S = 2.0  # qemu takes a connection before the machine does, and retries slowly: connect again instead
_GRACE_S = 30.0  # for an answer to come, beyond the command's own time
_ENDING_S = 60.0  # for a program to end by SIGTERM under emulation
_LONGEST_ANSWER_BYTES = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The end of a command. `code`: its exit code, negative for the signal that ended it."""

    code: int
    out: str
    err: str

    def check(self) -> str:
        """Return its output. Raises LabFailure when it failed."""
        if self.code != 0:
            raise LabFailure(f"A command in the virtual machine ended with {self.code}: {self.err.strip()[-500:]}")
        return self.out


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """A program that keeps running in the machine; `log` is a path there.

    `restarts`: it is started again if it ends before the host signals it, as by systemd's `Restart=always`.
    `watchdog_s`: it is aborted after so many seconds without a word, as by `WatchdogSec`; 0: never.
    """

    name: str
    argv: tuple[str, ...]
    log: str
    environ: Mapping[str, str] = field(default_factory=dict)
    restarts: bool = False
    watchdog_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Guest:
    """The way to reach the machine."""

    port: int
    token: str

    def save(self, path: Path) -> None:
        """Write it where `load` finds it, readable for this user only."""
        path.touch(mode=0o600)
        path.write_text(json.dumps({"port": self.port, "token": self.token}))

    @classmethod
    def load(cls, path: Path) -> Guest:
        """Return the machine that was saved there. Raises LabFailure."""
        try:
            return cls(**json.loads(path.read_text()))
        except (OSError, ValueError, TypeError) as error:
            raise LabFailure(f"There is no virtual machine that wrote {path}.") from error

    async def answers(self) -> None:
        """Wait, without limit, until the machine takes commands: the caller knows how long is too long."""
        while True:
            try:
                await self._ask({"op": "hello"}, timeout_s=0.0, grace_s=_HELLO_S)
            except LabFailure:
                await asyncio.sleep(_POLL_S)
            else:
                return

    async def run(
        self,
        *argv: str,
        timeout_s: float = 60.0,
        stdin: bytes = b"",
        environ: Mapping[str, str] | None = None,
    ) -> Ended:
        """Run a command to its end, as root. Raises LabFailure if it takes longer, and then kills it."""
        request = {"op": "run", "argv": argv, "input": _text(stdin), "environ": dict(environ or {})}
        answer = await self._ask(request, timeout_s=timeout_s)
        if answer["timed_out"]:
            raise LabFailure(f"{' '.join(argv)[:200]} in the virtual machine: not done after {timeout_s:.0f} s.")
        return Ended(code=answer["code"], out=_decoded(answer["out"]), err=_decoded(answer["err"]))

    async def read(self, path: str) -> str:
        """The content of a file in the machine. Raises LabFailure."""
        return (await self.run("/bin/cat", path)).check()

    async def start(self, service: Service) -> int:
        """Start a program that keeps running; return its pid there. Raises LabFailure."""
        request = {"op": "start", **asdict(service), "environ": dict(service.environ)}
        return int((await self._ask(request))["pid"])

    async def end(self, name: str, number: signal.Signals = signal.SIGTERM) -> int:
        """Signal a program and wait for its end; return its exit code, negative for a signal. Raises LabFailure."""
        answer = await self._ask({"op": "signal", "name": name, "signal": int(number)}, timeout_s=_ENDING_S)
        return int(answer["code"])

    async def signal(self, name: str, number: signal.Signals) -> None:
        """Signal a program without waiting. Raises LabFailure."""
        await self._ask({"op": "signal", "name": name, "signal": int(number)}, timeout_s=0.0)

    async def is_running(self, name: str) -> bool:
        """True if a started program runs now. Raises LabFailure for one that was never started."""
        return bool((await self._ask({"op": "look", "name": name}))["running"])

    async def _ask(
        self, request: Mapping[str, Any], *, timeout_s: float = 30.0, grace_s: float = _GRACE_S
    ) -> dict[str, Any]:
        line = json.dumps({**request, "token": self.token, "timeout_s": timeout_s}).encode() + b"\n"
        try:
            async with asyncio.timeout(timeout_s + grace_s):
                said = await self._exchange(line)
        except TimeoutError:
            raise LabFailure(f"The virtual machine gave no answer within {timeout_s + grace_s:.0f} s.") from None
        except OSError as error:
            raise LabFailure(f"The virtual machine cannot be reached: {error.strerror or error}.") from error
        if not said:
            raise LabFailure("The virtual machine closed the connection: it is coming up, or going down.")
        answer: dict[str, Any] = json.loads(said)
        if answer.get("error"):
            raise LabFailure(f"The virtual machine refused: {answer['error']}.")
        return answer

    async def _exchange(self, line: bytes) -> bytes:
        reader, writer = await asyncio.open_connection(LOOPBACK, self.port, limit=_LONGEST_ANSWER_BYTES)
        try:
            writer.write(line)
            await writer.drain()
            return await reader.readline()
        finally:
            writer.close()


def _text(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _decoded(text: str | None) -> str:
    return base64.b64decode(text or "").decode(errors="replace")
