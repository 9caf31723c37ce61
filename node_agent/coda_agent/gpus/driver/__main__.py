"""`python -m coda_agent.gpus.driver FD`: answers each Moment on the socket FD with a Snapshot while the agent lives."""

from __future__ import annotations

import os
import signal
import socket
import sys

from coda_agent.gpus.driver.gpus import Gpus
from coda_agent.gpus.messages import message_of, read_message


def main() -> None:
    """Serve until the other side of the socket is closed, also if that is by SIGKILL."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the agent, which ends this process
    with socket.socket(fileno=int(sys.argv[1])) as agent:
        gpus = Gpus()
        while (now := read_message(agent)) is not None:
            agent.sendall(message_of(gpus.sense(now)))
    os._exit(0)  # without nvmlShutdown: it may hang, and the kernel closes all that is open


if __name__ == "__main__":
    main()
