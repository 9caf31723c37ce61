"""Free loopback ports. No other program takes one while the part that owns it is down.

Clusters that start beside each other choose at the same time, long before their parts listen. A process therefore keeps
what it chose until it ends: it holds a socket with the port's name, which the kernel grants once and takes back.
"""

from __future__ import annotations

import contextlib
import random
import socket

from coda_lab.host.errors import LabFailure

LOOPBACK = "127.0.0.1"
_CHOICE = range(20_000, 32_000)  # below Linux' ip_local_port_range (from 32768): no outgoing connection takes one
_kept: list[int] = []  # file descriptors


def free_ports(count: int, rng: random.Random) -> tuple[int, ...]:
    """`count` different ports on which no program listens now, and which nobody else gets while this process lives.

    Raises LabFailure.
    """
    found: dict[int, socket.socket] = {}
    for port in rng.sample(_CHOICE, len(_CHOICE)):
        if len(found) == count:
            break
        with contextlib.suppress(OSError), contextlib.ExitStack() as undone:
            claim = undone.enter_context(_claimed(port))
            _bound(port).close()
            undone.pop_all()
            found[port] = claim
    if len(found) < count:
        raise LabFailure(f"No {count} free ports between {_CHOICE.start} and {_CHOICE.stop} on {LOOPBACK}.")
    _kept.extend(claim.detach() for claim in found.values())
    return tuple(found)


def check_free(port: int) -> None:
    """Raises LabFailure if a program listens on `port`."""
    try:
        _bound(port).close()
    except OSError as error:
        raise LabFailure(
            f"Port {port} on {LOOPBACK} cannot be used ({error.strerror}): choose another with --port, or leave it out."
        ) from error


def _claimed(port: int) -> socket.socket:
    """Raises OSError if somebody has claimed it. Abstract names are the network namespace's, as ports are (unix(7))."""
    claim = socket.socket(socket.AF_UNIX)
    try:
        claim.bind(f"\0coda-port-{port}")
    except OSError:
        claim.close()
        raise
    return claim


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
