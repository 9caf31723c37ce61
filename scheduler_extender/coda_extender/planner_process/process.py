"""The extender's end of the planner process: starts it, talks to it without blocking, and kills it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Final

from coda.history import RunGroup
from coda.policy import PolicyConfig
from coda_extender.planner_process.messages import (
    MOST_BYTES,
    PREFIX,
    AnswerEnd,
    Failure,
    Message,
    Setup,
    frame,
    past_in_messages,
)

_READ_BYTES: Final = 64 << 10
_ENDS_IN_S: Final = 5.0  # a killed process, unless the machine is in trouble


class ProcessFailed(Exception):
    """The planner process gave no answer. `cause`: one word for the metric."""

    def __init__(self, cause: str, message: str) -> None:
        super().__init__(message)
        self.cause = cause


class PlannerProcess:
    """One planner process. After an error or a cancelled question only `kill` may be called."""

    def __init__(self, process: subprocess.Popen[bytes], stream: socket.socket) -> None:
        self._process = process
        self._stream = stream
        self._received = bytearray()

    @classmethod
    async def start(cls, config: PolicyConfig, *, memory_bytes: int, past: Sequence[RunGroup] = ()) -> PlannerProcess:
        """Start a process that may use so much memory, and tell it how long jobs ran in the past."""
        started = cls(*_spawn(memory_bytes))
        try:
            await started._send(Setup(config))
            for message in past_in_messages(past):
                await started._send(message)
        except BaseException:
            started.kill()
            raise
        return started

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    async def ask(self, question: Iterable[Message]) -> AsyncIterator[Message]:
        """Send the messages of a question, and yield those of the answer. Raises ProcessFailed.

        Between two messages everything else of the event loop has its turn."""
        try:
            for message in question:
                await self._send(message)
            while True:
                answer = await self._receive()
                if isinstance(answer, Failure):
                    raise ProcessFailed("error", f"a cycle failed: {answer.text}")
                yield answer
                if isinstance(answer, AnswerEnd):
                    return
        except (BrokenPipeError, ConnectionResetError, EOFError):
            raise ProcessFailed("died", f"the planner process {await self._end()}") from None

    def kill(self) -> None:
        """End the process. Nothing is lost with it."""
        self._process.kill()
        self._stream.close()
        if self._process.poll() is None:
            threading.Thread(target=self._process.wait, name="reaper", daemon=True).start()

    async def _send(self, message: Message) -> None:
        await asyncio.get_running_loop().sock_sendall(self._stream, frame(message))
        await asyncio.sleep(0)

    async def _receive(self) -> Message:
        (length,) = PREFIX.unpack(await self._receive_bytes(PREFIX.size))
        if length > MOST_BYTES:
            raise ProcessFailed("garbage", f"the planner process announces a message of {length} bytes")
        message: Message = pickle.loads(await self._receive_bytes(length))  # noqa: S301 - from our own child
        await asyncio.sleep(0)
        return message

    async def _receive_bytes(self, count: int) -> bytes:
        received, loop = self._received, asyncio.get_running_loop()
        while len(received) < count:
            more = await loop.sock_recv(self._stream, _READ_BYTES)
            if not more:
                raise EOFError("the planner process closed its stream")
            received += more
        content = bytes(received[:count])
        del received[:count]
        return content

    async def _end(self) -> str:
        """How the process ended, once it has."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = await asyncio.to_thread(self._process.wait, _ENDS_IN_S)
            return f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        return "closed its stream"


def _spawn(memory_bytes: int) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Start a process, and return it with our end of its socket. It inherits nothing else but our standard error.

    Not from another thread: the kernel ends it when the thread ends that it comes from."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with theirs:
        process = subprocess.Popen(  # noqa: S603 - ourselves
            [sys.executable, "-m", __package__, str(os.getpid()), str(memory_bytes)],
            stdin=theirs.fileno(),
            start_new_session=True,  # signals to our group are not for it
        )
    return process, ours
