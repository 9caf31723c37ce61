"""Who else uses a GPU, as far as a process can see: the memory on the card that is not its own.

Only looked at while no agent answers. A guaranteed job that starts then takes memory before it runs kernels."""

from __future__ import annotations

from typing import Any, Iterable

from coda_torch.memory import DeviceUse, Memory

GROWN_BYTES = 256 * 1024**2
"""Our choice: a CUDA context alone takes more (610 MiB on an H200)."""


class Neighbours:
    """The least that others have had on each device since `forget`."""

    def __init__(self, memory: Memory, torch: Any) -> None:
        self._memory = memory
        self._torch = torch
        self._least: dict[int, int] = {}

    def forget(self) -> None:
        """An agent answers: it knows better."""
        self._least.clear()

    def look(self) -> set[int]:
        """Return the devices on which others have more memory than before, by a context at least.

        What this process allocates meanwhile is not taken for theirs. What it takes past torch's allocator is."""
        before = _own(self._memory.uses())
        seen = {device: self._torch.cuda.mem_get_info(device) for device in before}
        after = _own(self._memory.uses())
        grown = set()
        for device, (free, total) in seen.items():
            others = total - free - max(before[device], after.get(device, 0))
            self._least[device] = min(others, self._least.get(device, others))
            if others >= self._least[device] + GROWN_BYTES:
                grown.add(device)
        return grown


def _own(uses: Iterable[DeviceUse]) -> dict[int, int]:
    return {use.device: use.device_bytes for use in uses}
