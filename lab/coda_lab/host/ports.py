"""Free loopback ports. No other program takes one while the part that owns it is down."""

from __future__ import annotations

import contextlib
import random
import socket

from coda_lab.host.errors import LabFailure

LOOPBACK = "127.0.0.1"
_CHOICE = range(20_000, 32_000)  # below Linux' ip_local_port_range (from 32768): no outgoing connection takes one


def free_ports(count: int, rng: random.Random) -> tuple[int, ...]:
    """`count` different ports on which no program listens now. Raises LabFailure."""
    found: list[int] = []
    with contextlib.ExitStack() as held:
        for port in rng.sample(_CHOICE, len(_CHOICE)):
            if len(found) == count:
                break
            with contextlib.suppress(OSError):
                held.enter_context(_bound(port))
                found.append(port)
    if len(found) < count:
        raise LabFailure(f"No {count} free ports between {_CHOICE.start} and {_CHOICE.stop} on {LOOPBACK}.")
    return tuple(found)


def check_free(port: int) -> None:
    """Raises LabFailure if a program listens on `port`."""
    try:
        _bound(port).close()
    except OSError as error:
        raise LabFailure(
            f"Port {port} on {LOOPBACK} cannot be used ({error.strerror}): choose another with --port, or leave it out."
        ) from error


def _bound(port: int) -> socket.socket:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((LOOPBACK, port))
        listener.listen(1)  # with SO_REUSEADDR, only `listen` fails if another program listens
    except OSError:
        listener.close()
        raise
    return listener
