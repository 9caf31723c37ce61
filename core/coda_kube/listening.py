"""The address on which a daemon listens."""

from __future__ import annotations

import socket


def listening_socket(host: str, port: int) -> socket.socket:
    """Return a socket bound there. `::` is every address, also of IPv4. Raises OSError if it cannot be used."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family is socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)  # asyncio would set it, nodes may
        bound.bind((host, port))
    except OSError:
        bound.close()
        raise
    return bound
