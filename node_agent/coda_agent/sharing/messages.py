"""The messages of a process, judged: whoever wrote them may lie, so each number is bounded and each text is short.

The protocol is `framework/python/coda_torch`'s: JSON objects with `v` 1, one per packet. Unknown fields and messages of
an unknown type are ignored."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from coda.errors import InvalidInput
from coda.sharing.memory_limits import MemoryControl

PROTOCOL = 1
MOST_BYTES = 16 * 1024
"""A report about 64 GPUs has 13 KiB. Larger ones take time before it shows that they are nonsense."""

MOST_STEPS = 10
MOST_GPUS = 64
LONGEST_STEP_S = 24 * 3600.0
_MOST_NUMBER = 2**62
_CONTROLS = {
    "full": MemoryControl.FULL,
    "step": MemoryControl.FULL,
    "fraction": MemoryControl.FRACTION,
    "none": MemoryControl.NONE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuClaim:
    """What a process says that it has of one GPU, in bytes.

    reserve_bytes: host memory that it may use; floor_bytes: what its tensors take between two mini-batches
    busy_ns: how long its kernels ran so far, counted while it is paced"""

    gpu: str
    device_bytes: int
    host_bytes: int
    reserve_bytes: int
    floor_bytes: int
    refusals: int
    busy_ns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A hello, report, beat or answer, or the library's word that it was refused memory.

    steps: durations in seconds; gpus None: it says nothing of memory
    pci_bus_id, refused_bytes: of a refusal: the GPU, "" if that is not known, and what is asked for"""

    kind: str
    control: MemoryControl | None = None
    steps: tuple[float, ...] = ()
    count: int = 0
    gpus: tuple[GpuClaim, ...] | None = None
    pci_bus_id: str = ""
    refused_bytes: int = 0


def message_from(packet: bytes) -> Message | None:
    """Return a packet's message; None for a type of a newer version. Raises InvalidInput with one sentence."""
    if len(packet) > MOST_BYTES:
        raise InvalidInput(f"a message has more than {MOST_BYTES} bytes")
    try:
        found = json.loads(packet)
    except (ValueError, RecursionError) as error:
        raise InvalidInput("a message is no JSON") from error
    if not isinstance(found, dict):
        raise InvalidInput("a message is no JSON object")
    kind = found.get("type")
    if found.get("v") != PROTOCOL or kind not in ("hello", "steps", "beat", "done", "refused"):
        return None
    if kind == "refused":
        return Message(kind=kind, pci_bus_id=_pci_bus_id(found.get("pci", "")), refused_bytes=_whole(found, "bytes"))
    control = found.get("control")
    return Message(
        kind=str(kind),
        control=_CONTROLS.get(control) if isinstance(control, str) else None,
        steps=_steps(found.get("s", [])),
        count=_whole(found, "count"),
        gpus=_gpus(found["gpus"]) if "gpus" in found else None,
    )


def _pci_bus_id(value: Any) -> str:
    """As in /sys/bus/pci/devices; CUDA writes it in capitals."""
    if not isinstance(value, str) or len(value) > 32:
        raise InvalidInput("pci must be the bus id of a GPU")
    return value.lower()


def _steps(values: Any) -> tuple[float, ...]:
    if not isinstance(values, list) or len(values) > MOST_STEPS:
        raise InvalidInput(f"s must be a list of at most {MOST_STEPS} durations")
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InvalidInput("s must hold numbers")
        if not 0 < value <= LONGEST_STEP_S:
            raise InvalidInput("a mini-batch takes more than 0 s and less than a day")
    return tuple(float(value) for value in values)


def _gpus(values: Any) -> tuple[GpuClaim, ...]:
    if not isinstance(values, list) or len(values) > MOST_GPUS:
        raise InvalidInput(f"gpus must be a list of at most {MOST_GPUS}")
    return tuple(_gpu(value) for value in values)


def _gpu(value: Any) -> GpuClaim:
    if not isinstance(value, dict) or not isinstance(value.get("gpu"), str) or len(value["gpu"]) > 64:
        raise InvalidInput("a GPU is named by its UUID")
    return GpuClaim(
        gpu=value["gpu"],
        device_bytes=_whole(value, "device"),
        host_bytes=_whole(value, "host"),
        reserve_bytes=_whole(value, "reserve"),
        floor_bytes=_whole(value, "floor"),
        refusals=_whole(value, "refusals"),
        busy_ns=_whole(value, "busy_ns"),
    )


def _whole(message: Mapping[str, Any], name: str) -> int:
    value = message.get(name, 0)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MOST_NUMBER:
        raise InvalidInput(f"{name} must be a whole number that is not negative")
    return value
