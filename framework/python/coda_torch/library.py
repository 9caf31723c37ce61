"""The half in C: `libcodagpu.so`, preloaded, or else opened before torch's own libraries."""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

VERSION = 1
UNLIMITED = 2**64 - 1
ALL_DEVICES = -1
DEVICES = 64
FULL_SHARE = 1000


class DeviceStats(NamedTuple):
    """What the library counts on one device; see `codagpu.h`."""

    device_bytes: int
    host_bytes: int
    kept_bytes: int
    limit_bytes: int
    reserve_bytes: int
    refusals: int
    moved: int
    busy_ns: int
    idle_ns: int
    stalls: int
    share: int
    launches: int


class Library:
    """The loaded library. Its calls take about 2 us and may come from any thread."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle
        handle.coda_limit.argtypes = [ctypes.c_int, ctypes.c_uint64, ctypes.c_uint64]
        handle.coda_limit.restype = None
        handle.coda_pace.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int, *[ctypes.c_uint64] * 2, ctypes.c_int]
        handle.coda_pace.restype = None
        handle.coda_stats.argtypes = [ctypes.c_int, ctypes.POINTER(ctypes.c_uint64), ctypes.c_int]
        handle.coda_tidy.restype = None

    @classmethod
    def find(cls, path: str) -> Library | None:
        """The preloaded library, else the one at `path`; None if there is none of this version."""
        handle: Any = ctypes.CDLL(None)
        if not hasattr(handle, "coda_version"):
            if not path:
                return None
            try:
                handle = ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)  # in front of torch's libraries works as well
            except OSError:
                return None
        return cls(handle) if hasattr(handle, "coda_version") and handle.coda_version() == VERSION else None

    def limit(self, device: int, device_bytes: int, host_bytes: int) -> None:
        """Change the memory of a device from the next segment on."""
        self._handle.coda_limit(device, device_bytes, host_bytes)

    def pace(self, device: int, share: int, launches: int, chunk_s: float, hold_s: float, share_after: int) -> None:
        """Change the speed on a device; `hold_s` later `share_after` holds, 0: never."""
        self._handle.coda_pace(device, share, launches, int(1e9 * chunk_s), int(1e9 * hold_s), share_after)

    def stats(self, device: int) -> DeviceStats:
        """What is counted on a device, of 0 to 63."""
        values = (ctypes.c_uint64 * len(DeviceStats._fields))()
        if self._handle.coda_stats(device, values, len(values)) != len(values):
            raise ValueError(f"no device {device}")
        return DeviceStats(*values)

    def tidy(self) -> None:
        """Give back host memory that is not used any more. May wait for the GPU."""
        self._handle.coda_tidy()
