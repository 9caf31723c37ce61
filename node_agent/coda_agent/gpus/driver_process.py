"""Asks the process that talks to the driver, and never waits long for it.

A call into the driver may hang, even where SIGKILL does not end it (a GPU that fell off the bus). Such a process holds
no file of the agent: only the GPUs are then not measured."""

from __future__ import annotations

import select
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from coda_agent.gpus.devices import Health, LibraryState, Snapshot, lost_reading
from coda_agent.gpus.messages import content_of, message_of
from coda_agent.gpus.samples import Moment

SILENT = "the GPU driver does not answer"
OPENS = "the GPU driver is being opened, which takes minutes without persistence mode"
COMMAND = (sys.executable, "-m", "coda_agent.gpus.driver")


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverPatience:
    """How long the driver may take. All are our choice."""

    answer_s: float = 0.5
    """Seconds to wait for an answer in one round. A later answer serves the round in which it comes: a window takes
    1 s, and eight GPUs answer within a tenth of that."""

    lost_s: float = 5.0
    """Seconds without an answer until all GPUs count as lost."""

    kill_s: float = 30.0
    """Seconds without an answer until the process is killed."""

    open_s: float = 300.0
    """The same of its first answer. Without persistence mode NVML sets up each GPU when it is opened: that takes
    seconds of each, and there may be 16. Who is killed meanwhile begins again, and never comes to its end."""

    first_pause_s: float = 1.0
    """Seconds from a process's end to the next one; doubled while none answers."""

    longest_pause_s: float = 60.0


class DriverProcess:
    """The process of `coda_agent.gpus.driver`, started when it is first asked. One thread at a time."""

    def __init__(self, patience: DriverPatience | None = None, command: Sequence[str] = COMMAND) -> None:
        """`command`: the program, which gets the descriptor of its socket as last argument."""
        self._patience = patience or DriverPatience()
        self._command = tuple(command)
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._received = bytearray()
        self._asked_s: float | None = None  # when the question was asked that is not answered yet
        self._has_answered = False  # this process
        self._was_killed = False
        self._pause_s = self._patience.first_pause_s
        self._due_s = float("-inf")  # when the next process may start
        self._silent_since_s: float | None = None
        self._why = OPENS
        self._last = Snapshot(at_s=0.0, library=LibraryState.SILENT)

    def sense(self, now: Moment) -> Snapshot:
        """Return what the driver says of all GPUs. Without an answer in time: what is known, without measurements.

        Never raises. Cost: a process of its own, and the wait for it, at most `answer_s`."""
        try:
            self._keep_running(now.monotonic_s)
            answer = self._answer(now)
        except OSError as error:  # it has just ended, or cannot be started
            self._end()
            self._why, answer = f"the process that asks the GPU driver is gone: {error}", None
        if answer is None:
            return self._without_answer(now.monotonic_s)
        self._last, self._silent_since_s, self._why, self._has_answered = answer, None, SILENT, True
        self._pause_s = self._patience.first_pause_s
        if answer.library is LibraryState.OUTDATED:  # perhaps a new process finds the new library
            self._pause_s = self._patience.longest_pause_s
            self._end()
        return answer

    def close(self) -> None:
        """End the process, without waiting for it: it may hang in the kernel."""
        self._end()

    def _keep_running(self, now_s: float) -> None:
        if self._process is not None and self._process.poll() is not None:
            self._end()
            self._process, self._was_killed = None, False
            self._plan_next(now_s)
        if self._process is None and now_s >= self._due_s:
            self._plan_next(now_s)  # for a program that cannot be started
            self._start()

    def _start(self) -> None:
        self._has_answered = False
        self._socket, theirs = socket.socketpair()
        self._socket.setblocking(False)
        with theirs:
            number = theirs.fileno()
            self._process = subprocess.Popen(  # noqa: S603  our own
                [*self._command, str(number)], pass_fds=(number,), stdin=subprocess.DEVNULL, start_new_session=True
            )

    def _answer(self, now: Moment) -> Snapshot | None:
        if self._socket is None:
            return None
        if self._asked_s is None:
            self._socket.sendall(message_of(now))
            self._asked_s = now.monotonic_s
        answer: Snapshot | None = self._receive(self._socket)
        if answer is not None:
            self._received.clear()
            self._asked_s = None
        elif now.monotonic_s - self._asked_s >= (
            self._patience.kill_s if self._has_answered else self._patience.open_s
        ):
            self._why = SILENT
            self._end()
        return answer

    def _receive(self, source: socket.socket) -> Snapshot | None:
        until_s = time.monotonic() + self._patience.answer_s
        ready = select.poll()  # select.select takes no descriptor above 1023
        ready.register(source, select.POLLIN)
        while (answer := content_of(self._received)) is None:
            if not ready.poll(1e3 * max(0.0, until_s - time.monotonic())):
                return None
            piece = source.recv(1 << 16)
            if not piece:
                raise BrokenPipeError("it ended")
            self._received += piece
        found: Snapshot = answer
        return found

    def _without_answer(self, now_s: float) -> Snapshot:
        """A driver that is only slow once loses nobody a GPU, and is not worth a sentence."""
        if self._last.library is LibraryState.OUTDATED:  # told by a process that was ended for it
            return replace(self._last, at_s=now_s, xids=())
        if self._silent_since_s is None:
            self._silent_since_s = now_s
        if now_s - self._silent_since_s < self._patience.lost_s:
            readings = tuple(replace(one, samples=(), share=None) for one in self._last.readings)
            return replace(self._last, at_s=now_s, readings=readings, xids=())
        why = self._why
        if self._was_killed and self._process is not None:
            why = f"{why}, and its process {self._process.pid} cannot be ended"
        lost = tuple(one if one.health is Health.LOST else lost_reading(one.gpu, why) for one in self._last.readings)
        return replace(
            self._last, at_s=now_s, library=LibraryState.SILENT, why=why, driver=None, readings=lost, xids=()
        )

    def _end(self) -> None:
        """Kill it. It counts as ended only when the kernel says so; until then no other one starts."""
        if self._process is not None:
            self._process.kill()
            self._was_killed = True
        if self._socket is not None:
            self._socket.close()
        self._socket, self._asked_s = None, None
        self._received.clear()

    def _plan_next(self, now_s: float) -> None:
        self._due_s = now_s + self._pause_s
        self._pause_s = min(2 * self._pause_s, self._patience.longest_pause_s)
