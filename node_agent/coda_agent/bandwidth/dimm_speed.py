"""How fast the machine's memory modules are, by the firmware's table (SMBIOS, memory devices of type 17).

Source: DMTF DSP0134."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from coda_agent.host import Files

TABLE = "firmware/dmi/tables/DMI"
MOST_BYTES = 4 << 20
MEMORY_DEVICE = 17
END = 127
UNKNOWN_SPEED = frozenset((0, 0xFFFF))
DEFAULT_WIDTH_BITS = 64
MOST_ON_CHANNEL = 3  # modules; no more slots are wired to one
SLOT = re.compile(r"^(?P<channel>.*(?<!DIM)[A-P])[0-9]$")  # DIMM_A2, CPU0_DIMMB1; the M of DIMM1 is no channel


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryModule:
    """One module in its slot."""

    bank: str
    locator: str
    transfers_per_s: float
    width_bytes: float

    @property
    def channel(self) -> tuple[str, str]:
        """Equal for modules that share a channel; only names with a channel's letter tell."""
        slot = SLOT.match(self.locator)
        return self.bank, slot["channel"] if slot else self.locator


def read_memory_bytes_per_s(files: Files) -> float | None:
    """Return the most that all channels together move, bytes/s; None if the firmware does not tell or may not be
    read."""
    try:
        return bytes_per_s_from(files.sys.read_bytes(TABLE, most_bytes=MOST_BYTES))
    except OSError:
        return None


def bytes_per_s_from(table: bytes) -> float | None:
    """Return the sum over channels of transfers/s x width, from a raw table; None for garbage, and for no module.

    Modules on one channel count once if their names show it. If not, each counts; a measurement corrects it. Names show
    nothing where one channel would have more than three modules: on Dell's servers the letter is the processor, and A1
    to A8 are eight channels."""
    rates_by_channel: dict[tuple[str, str], list[float]] = {}
    for module in modules_in(table):
        rates_by_channel.setdefault(module.channel, []).append(module.transfers_per_s * module.width_bytes)
    are_channels = max(map(len, rates_by_channel.values()), default=0) <= MOST_ON_CHANNEL
    return sum(max(rates) if are_channels else sum(rates) for rates in rates_by_channel.values()) or None


def modules_in(table: bytes) -> Iterator[MemoryModule]:
    """Return the modules that are present and have a speed."""
    for body, strings in _structures(table):
        if body[0] != MEMORY_DEVICE or len(body) < 0x17 or _word(body, 0x0C) == 0:
            continue
        speed = _speed(body)
        if speed is None:
            continue
        width_bits = _word(body, 0x0A)
        yield MemoryModule(
            bank=_string(strings, body[0x11]),
            locator=_string(strings, body[0x10]),
            transfers_per_s=speed * 1e6,
            width_bytes=(DEFAULT_WIDTH_BITS if width_bits in UNKNOWN_SPEED else width_bits) / 8,
        )


def _structures(table: bytes) -> Iterator[tuple[bytes, list[bytes]]]:
    """Every structure with its strings, until the end marker or the first one that is cut off."""
    at = 0
    while at + 4 <= len(table):
        length = table[at + 1]
        end = table.find(b"\0\0", at + length)
        if length < 4 or end < 0 or table[at] == END:
            return
        yield table[at : at + length], table[at + length : end].split(b"\0")
        at = end + 2


def _speed(body: bytes) -> float | None:
    """MT/s: as configured, else as rated."""
    speeds = [_word(body, 0x20), _word(body, 0x15)] if len(body) >= 0x22 else [_word(body, 0x15)]
    return next((float(speed) for speed in speeds if speed not in UNKNOWN_SPEED), None)


def _word(body: bytes, at: int) -> int:
    return int.from_bytes(body[at : at + 2], "little")


def _string(strings: list[bytes], number: int) -> str:
    return strings[number - 1].decode(errors="replace").strip() if 0 < number <= len(strings) else ""
