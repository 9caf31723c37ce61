"""`python -m coda_extender.planner_process`: the planner process. The extender starts it; its socket is file 0.

It ends when the extender does: the kernel kills it then, and the end of the stream ends it where the kernel does not.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import pickle
import resource
import signal
import socket
import sys
import time
from typing import Final

from coda_extender.planner_process.answering import Answering
from coda_extender.planner_process.messages import PREFIX, Message, Question, frame

_PR_SET_PDEATHSIG: Final = 1
_COLLECT_ALL_EVERY: Final = 1000  # questions; between them only new objects are collected
_MOST_UNCOLLECTED: Final = 20_000  # as in the extender


def main() -> int:
    """Answer until the stream ends. Arguments: the extender's process id, and the most bytes of memory to use."""
    parent, memory_bytes = int(sys.argv[1]), int(sys.argv[2])
    _end_with(parent)
    resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is for the extender
    gc.set_threshold(_MOST_UNCOLLECTED, 1_000, 1_000)
    with socket.socket(fileno=0) as stream, contextlib.suppress(BrokenPipeError, ConnectionResetError):
        _serve(stream)
    return 0


def _serve(stream: socket.socket) -> None:
    answering = Answering(time.thread_time)  # not a clock of the wall: neighbours on a node make no demand costly
    questions = 0
    while (message := _receive(stream)) is not None:
        for answer in answering.take(message):
            stream.sendall(frame(answer))
        if isinstance(message, Question):
            questions += 1
            _collect(whole=questions % _COLLECT_ALL_EVERY == 0)


def _receive(stream: socket.socket) -> Message | None:
    """The next message; None at the end of the stream."""
    prefix = _receive_bytes(stream, PREFIX.size)
    content = _receive_bytes(stream, PREFIX.unpack(prefix)[0]) if prefix is not None else None
    if content is None:
        return None
    message: Message = pickle.loads(content)  # noqa: S301 - from the extender, over a socket that nobody else has
    return message


def _receive_bytes(stream: socket.socket, count: int) -> bytearray | None:
    content = bytearray(count)
    view, got = memoryview(content), 0
    while got < count:
        more = stream.recv_into(view[got:])
        if not more:
            return None
        got += more
    return content


def _collect(*, whole: bool) -> None:
    """Collect new objects, and walk over the copy of the cluster only now and then."""
    if whole:
        gc.unfreeze()
        gc.collect()
    else:
        gc.collect(1)
    gc.freeze()


def _end_with(parent: int) -> None:
    """Let the kernel kill this process when the extender ends, however it ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it ended before
        sys.exit(0)


if __name__ == "__main__":
    sys.exit(main())
