"""Memory limits inside torch: when its cache is emptied, so that tensors are created again where they may be.

Emptying after the optimizer's step alone leaves gradients where they were. So it happens after `zero_grad` too, of an
optimizer or a module, and before the first backward pass, for whoever clears them by hand: at the next two
mini-batches. What is still in host memory then stays there: parameters, and the optimizer's state."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from coda_torch.library import DEVICES, UNLIMITED, Library

BOUNDARIES = 2
MISMATCHES = 2
_BYPASSES = ("expandable_segments", "backend:cudaMallocAsync")
_COMMA = re.compile(r",(?![^\[]*\])")  # not those inside of [256:1,512:2]


def without_bypasses(settings: str) -> tuple[str, str]:
    """PYTORCH_CUDA_ALLOC_CONF without what goes round cudaMalloc, and that."""
    parts = [part.strip() for part in _COMMA.split(settings)]
    bypasses = [part for part in parts if part.replace(" ", "").startswith(_BYPASSES)]
    return ",".join(part for part in parts if part and part not in bypasses), ",".join(bypasses)


class DeviceUse(NamedTuple):
    """The memory of this process on one device, in bytes.

    reserve: host memory that it may use
    floor: what tensors took when its last mini-batch ended, None before that: in the middle of one it is many times as
        much, and no limit below it could ever be reached"""

    device: int
    device_bytes: int
    host_bytes: int
    reserve_bytes: int
    floor_bytes: int | None
    refusals: int
    busy_ns: int
    idle_ns: int
    launches: int


class Memory:
    """The limits of this process. Without the library, or where torch goes round it, a fraction of the card."""

    def __init__(self, library: Library | None, torch: Any) -> None:
        self._library = library
        self._torch = torch
        self._reserve_bytes = 0 if library is None else library.stats(0).reserve_bytes
        self._boundaries_left = 0
        self._floors: dict[int, int] = {}  # by device
        self._mismatches: dict[int, int] = {}  # in a row, by device
        self._by_us: set[int] = set()  # devices, -1 for all, whose fraction is ours
        self._counts = True  # torch counts its memory; another allocator in its place, as RMM's, does not
        self.by_fraction = library is None

    def set_limit(self, device: int, device_bytes: int | None, host_bytes: int | None) -> None:
        """Limit a device, or all with -1. None: no limit, and as much host memory as the pod may have."""
        if self._library is not None and not self._counts:  # what calls cudaMalloc has a limit, the rest none
            self._library.limit(device, UNLIMITED if device_bytes is None else device_bytes, 0)
        elif self._library is not None and not self.by_fraction:
            reserve = self._reserve_bytes if host_bytes is None else host_bytes
            self._library.limit(device, UNLIMITED if device_bytes is None else device_bytes, reserve)
        elif device_bytes is not None or device in self._by_us:  # a fraction of the script's own stays
            self._set_fraction(device, device_bytes)
            (self._by_us.discard if device_bytes is None else self._by_us.add)(device)

    def begin_to_move(self) -> None:
        """Empty the cache now and at the next boundaries. From the listener's thread: what is in use stays."""
        self._boundaries_left = BOUNDARIES
        used = next((use.device for use in self.uses() if use.device_bytes or use.host_bytes), None)
        if used is not None:
            self._torch.cuda.set_device(used)  # of this thread: freeing makes a context on its current device
            self._empty_cache()

    def at_boundary(self, *, is_step: bool) -> bool:
        """Empty the cache if that is due. True: the last boundary has passed."""
        if not self._boundaries_left or self._torch.cuda.is_current_stream_capturing() or not self._empty_cache():
            return False
        if is_step:
            self._boundaries_left -= 1
        return is_step and not self._boundaries_left

    def _empty_cache(self) -> bool:
        """False: torch refuses, since another thread records a graph. The next boundary tries again."""
        try:
            self._torch.cuda.empty_cache()
        except RuntimeError as error:
            if "captures_underway" not in str(error):
                raise
            return False
        return True

    def uses(self, *, at_boundary: bool = False) -> list[DeviceUse]:
        """The devices with memory of this process, as far as known. Checks that torch has not gone round the library.

        at_boundary: a mini-batch has just ended"""
        cuda = self._torch.cuda
        found = []
        for device in range(min(DEVICES, cuda.device_count())) if cuda.is_initialized() else ():
            torchs = self._counted_by_torch(device)
            reserved = int(torchs.get("reserved_bytes", {}).get("all", {}).get("current", 0))
            if at_boundary and self._counts:
                self._floors[device] = int(torchs.get("allocated_bytes", {}).get("all", {}).get("current", 0))
            floor = self._floors.get(device)
            if self._library is None:
                found.append(DeviceUse(device, reserved, 0, 0, floor, int(torchs.get("num_ooms", 0)), 0, 0, 0))
                continue
            seen = self._library.stats(device)
            self._judge(device, reserved, seen.device_bytes + seen.host_bytes)
            on_device = reserved if self.by_fraction and self._counts else seen.device_bytes
            ooms = int(torchs.get("num_ooms", 0)) if self.by_fraction else 0
            found.append(
                DeviceUse(
                    device,
                    on_device,
                    seen.host_bytes,
                    0 if self.by_fraction else seen.reserve_bytes,
                    floor,
                    seen.refusals + ooms,
                    seen.busy_ns,
                    seen.idle_ns,
                    seen.launches,
                )
            )
        return [use for use in found if use.device_bytes or use.host_bytes or (use.launches and not self._counts)]

    def _counted_by_torch(self, device: int) -> Any:
        """Torch's statistics of a device; none once its allocator is another one, which nobody can ask."""
        if not self._counts:
            return {}
        try:
            return self._torch._C._cuda_memoryStats(device) or {}
        except RuntimeError as error:
            if "does not yet support" not in str(error):
                raise
        from coda_torch.injection import say

        self._counts, self.by_fraction = False, True
        say("torch has another allocator: what it takes past cudaMalloc has no limit, and none lies in host memory")
        return {}

    def _judge(self, device: int, reserved: int, counted: int) -> None:
        """Another thread may allocate between the two readings: only a repeated difference counts."""
        self._mismatches[device] = self._mismatches.get(device, 0) + 1 if reserved > counted else 0
        if self._mismatches[device] >= MISMATCHES and not self.by_fraction:
            from coda_torch.injection import say

            self.by_fraction = True
            say("torch allocates GPU memory past libcodagpu: a limit can only be a fraction, without host memory")

    def _set_fraction(self, device: int, device_bytes: int | None) -> None:
        """Never below the peak: what does not fit fails."""
        cuda = self._torch.cuda
        if not cuda.is_initialized() or not self._counts:
            return
        for one in range(cuda.device_count()) if device < 0 else (device,):
            total = cuda.get_device_properties(one).total_memory
            stats = self._counted_by_torch(one)
            if not self._counts:
                return
            peak = int(stats.get("reserved_bytes", {}).get("all", {}).get("peak", 0))
            wanted = total if device_bytes is None else max(device_bytes, peak)
            cuda.set_per_process_memory_fraction(min(1.0, max(0.001, wanted / total)), one)
