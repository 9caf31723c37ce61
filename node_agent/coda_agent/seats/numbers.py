"""Which GPU of this node is `coda.scheduler/gpu-<n>`: it keeps its number, whatever becomes of others. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from coda_agent.gpus.devices import Gpu

FILE: Final = "gpu-numbers"
MOST_BYTES: Final = 1 << 16
MOST_NUMBERS: Final = 64
"""As many GPUs as a NodeProfile lists."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbered:
    """The number of a GPU, and the PCI bus id where it was when it got it."""

    number: int
    pci_bus_id: str


Numbers = Mapping[str, Numbered]
"""By UUID."""


def number_gpus(known: Numbers, gpus: Iterable[Gpu]) -> Numbers:
    """Return `known` with numbers for all these GPUs, in order of their PCI bus ids.

    A new GPU in the place of one that is gone gets its number: a card was replaced. Others get the least number that
    was never given, and, where all 64 were, the least whose GPU is gone. `known` itself if there is nothing new."""
    here = sorted(gpus, key=lambda gpu: (gpu.pci_bus_id, gpu.uuid))
    found = dict(known)
    present = {gpu.uuid for gpu in here}
    for gpu in here:
        if gpu.uuid in found:
            continue
        gone = {uuid: was for uuid, was in found.items() if uuid not in present}
        replaced = [uuid for uuid, was in gone.items() if was.pci_bus_id == gpu.pci_bus_id]
        taken = {was.number for was in found.values()}
        free = [number for number in range(MOST_NUMBERS) if number not in taken]
        if replaced:
            number = found.pop(min(replaced, key=lambda uuid: found[uuid].number)).number
        elif free:
            number = free[0]
        elif gone:
            number = found.pop(min(gone, key=lambda uuid: gone[uuid].number)).number
        else:
            continue  # more GPUs than numbers: the rest is not shared
        found[gpu.uuid] = Numbered(number=number, pci_bus_id=gpu.pci_bus_id)
    return known if found == known else found


def numbers_json(numbers: Numbers) -> bytes:
    """Return the content of the file."""
    rows = {uuid: [was.number, was.pci_bus_id] for uuid, was in sorted(numbers.items())}
    return json.dumps(rows).encode()


def numbers_from(content: bytes) -> Numbers | None:
    """Return what a file says; None if it is none of ours, so that nothing of it can be believed."""
    try:
        rows = json.loads(content)
        numbers = {str(uuid): Numbered(number=int(row[0]), pci_bus_id=str(row[1])) for uuid, row in rows.items()}
    except (ValueError, TypeError, AttributeError, LookupError, RecursionError):
        return None
    given = [one.number for one in numbers.values()]
    is_sound = len(set(given)) == len(given) and all(0 <= number < MOST_NUMBERS for number in given)
    return numbers if is_sound else None
