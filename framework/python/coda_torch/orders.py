"""Orders of the coordinator, read with care: whoever owns the socket may be of another version, or wrong."""

from __future__ import annotations

import json
import math
import re
from typing import Any, Mapping, NamedTuple

PROTOCOL = 1
LONGEST_HOLD_S = 3600.0


class Order(NamedTuple):
    """What this process may have on one GPU, or on all.

    gpu: uuid, or "": all GPUs of the process
    share: thousandths of the speed alone; 0: suspended
    launches, chunk_s: kernels between two pauses; 0: as many as last about chunk_s
    device_bytes: None: no limit; host_bytes: behind it, None: what CODA_HOST_RESERVE allows
    hold_s: seconds after which nobody counts as watching, unless the order is repeated; 0: never
    drain: return to the device what is on the host
    guest: the job gives way to others on the GPU, and does so by itself while no agent answers"""

    id: int
    gpu: str
    share: int
    launches: int
    chunk_s: float
    device_bytes: int | None
    host_bytes: int | None
    hold_s: float
    drain: bool
    guest: bool


def order_from(packet: bytes) -> Order | None:
    """The order in a packet; None for other messages. Raises ValueError for an order that makes no sense."""
    message = json.loads(packet.decode())
    if not isinstance(message, dict):
        raise ValueError("a message must be an object")
    if message.get("v") != PROTOCOL or message.get("type") != "order":
        return None
    alone = message.get("alone") is True
    hold_s = _number(message, "hold_s", 60.0)
    device, host = message.get("device"), message.get("host")
    return Order(
        id=_whole(message, "id", 0, 2**53),
        gpu=str(message.get("gpu") or ""),
        share=_whole(message, "share", 0, 1000, 1000),
        launches=_whole(message, "chunk", 0, 1024, 0),
        chunk_s=min(1.0, _number(message, "chunk_s", 0.005)),
        device_bytes=None if device is None else _whole(message, "device", 0, 2**62),
        host_bytes=None if host is None else _whole(message, "host", 0, 2**62),
        hold_s=0.0 if alone else min(LONGEST_HOLD_S, hold_s),
        drain=message.get("drain") is True,
        guest=hold_s > 0,
    )


def first_order(share: str) -> Order | None:
    """What a guest may have until an agent has spoken, by CODA_SHARE; None: all, also for a share that makes no sense.

    So one that starts while no agent runs is no faster than one whose agent has died."""
    if not re.fullmatch("[1-9][0-9]{0,2}", share):
        return None
    return Order(0, "", int(share), 0, 0.005, None, None, 0.0, drain=False, guest=True)


def _whole(message: Mapping[str, Any], name: str, least: int, most: int, otherwise: int | None = None) -> int:
    value = message.get(name, otherwise)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ValueError(f"{name} must be a whole number from {least} to {most}")
    return value


def _number(message: Mapping[str, Any], name: str, otherwise: float) -> float:
    value = message.get(name, otherwise)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value < 0:
        raise ValueError(f"{name} must be a number that is not negative")
    return float(value)
