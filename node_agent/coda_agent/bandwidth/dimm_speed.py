"""How fast the machine's memory modules are, by the firmware's table (SMBIOS, memory devices of type 17).

Source: DMTF DSP0134."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from coda_agent.host import Files

COUNTING = 2  # the way modules count here, stored with what they count; another way has another number
TABLE = "firmware/dmi/tables/DMI"
MOST_BYTES = 4 << 20
MEMORY_DEVICE = 17
END = 127
UNKNOWN_SPEED = frozenset((0, 0xFFFF))
DEFAULT_WIDTH_BITS = 64
MOST_ON_CHANNEL = 3  # slots; no more are wired to one
SLOT = re.compile(r"^(?P<group>.*(?<!DIM)[A-P])[0-9]{1,2}$")  # DIMM_A2, CPU0_DIMMB1, A16; DIMM1 has no letter
DDR4, DDR5 = 0x1A, 0x22
FEWEST_CHANNELS = 4  # of a processor of servers whose memory is older, or not told; from memory, as the next two
CHANNELS_BY_KIND = {DDR4: 8, DDR5: 12}  # the most that a processor has
NEWER_DDR4 = 2666  # MT/s that a module may have; processors with slower ones have four channels


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryModule:
    """One module in its slot."""

    bank: str
    locator: str
    transfers_per_s: float
    width_bytes: float
    most_channels: int  # that a processor with such modules has

    @property
    def group(self) -> tuple[str, str]:
        """Equal for modules of one letter, which is their channel's or their processor's; else its own."""
        return _group(self.bank, self.locator)


def read_memory_bytes_per_s(files: Files) -> float | None:
    """Return the most that all channels together move, bytes/s; None if the firmware does not tell or may not be
    read."""
    try:
        return bytes_per_s_from(files.sys.read_bytes(TABLE, most_bytes=MOST_BYTES))
    except OSError:
        return None


def bytes_per_s_from(table: bytes) -> float | None:
    """Return the sum over channels of transfers/s x width, from a raw table; None for garbage, and for no module.

    Modules on one channel count once if their names show it: if a letter has at most three slots, empty ones too. With
    more the letter is the processor (Dell: A1 to A16), and of each as many modules count as it has channels. In doubt
    these are few: traffic corrects a peak that is too low. Other names show nothing, and each module counts."""
    slots = Counter(_group(*_names(body, strings)) for body, strings in _memory_devices(table))
    modules_by_group: dict[tuple[str, str], list[MemoryModule]] = {}
    for module in modules_in(table):
        modules_by_group.setdefault(module.group, []).append(module)
    are_channels = max(map(slots.__getitem__, modules_by_group), default=0) <= MOST_ON_CHANNEL
    total = 0.0
    for group, modules in modules_by_group.items():
        rates = sorted((module.transfers_per_s * module.width_bytes for module in modules), reverse=True)
        total += sum(rates[: 1 if are_channels else _channels_of(slots[group], modules)])
    return total or None


def _channels_of(slots: int, modules: Sequence[MemoryModule]) -> int:
    """How many channels a processor with so many slots has: as many as its memory allows and share them evenly."""
    most = min(module.most_channels for module in modules)
    even = (n for n in range(most, 0, -1) if slots % n == 0 and slots <= n * MOST_ON_CHANNEL)
    return next(even, min(most, -(-slots // MOST_ON_CHANNEL)))


def modules_in(table: bytes) -> Iterator[MemoryModule]:
    """Return the modules that are present and have a speed."""
    for body, strings in _memory_devices(table):
        if _word(body, 0x0C) == 0:
            continue
        speed = _speed(body)
        if speed is None:
            continue
        width_bits = _word(body, 0x0A)
        bank, locator = _names(body, strings)
        yield MemoryModule(
            bank=bank,
            locator=locator,
            transfers_per_s=speed * 1e6,
            width_bytes=(DEFAULT_WIDTH_BITS if width_bits in UNKNOWN_SPEED else width_bits) / 8,
            most_channels=_most_channels(body),
        )


def _memory_devices(table: bytes) -> Iterator[tuple[bytes, list[bytes]]]:
    """The slots, also empty ones."""
    return (one for one in _structures(table) if one[0][0] == MEMORY_DEVICE and len(one[0]) >= 0x17)


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


def _names(body: bytes, strings: list[bytes]) -> tuple[str, str]:
    """The slot's bank and locator."""
    return _string(strings, body[0x11]), _string(strings, body[0x10])


def _group(bank: str, locator: str) -> tuple[str, str]:
    slot = SLOT.match(locator)
    return bank, slot["group"] if slot else locator


def _most_channels(body: bytes) -> int:
    kind, fastest = body[0x12], _word(body, 0x15)
    is_older = kind == DDR4 and fastest < NEWER_DDR4
    return FEWEST_CHANNELS if is_older else CHANNELS_BY_KIND.get(kind, FEWEST_CHANNELS)


def _speed(body: bytes) -> float | None:
    """MT/s: as configured, else as rated."""
    speeds = [_word(body, 0x20), _word(body, 0x15)] if len(body) >= 0x22 else [_word(body, 0x15)]
    return next((float(speed) for speed in speeds if speed not in UNKNOWN_SPEED), None)


def _word(body: bytes, at: int) -> int:
    return int.from_bytes(body[at : at + 2], "little")


def _string(strings: list[bytes], number: int) -> str:
    return strings[number - 1].decode(errors="replace").strip() if 0 < number <= len(strings) else ""
