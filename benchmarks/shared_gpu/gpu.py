"""The GPU of this machine, asked through NVML as any monitoring does."""

from __future__ import annotations

import time

import pynvml

MIB = 2**20


class Gpu:
    """The first one."""

    def __init__(self) -> None:
        pynvml.nvmlInit()
        self._handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        self.uuid: str = pynvml.nvmlDeviceGetUUID(self._handle)
        self.memory_bytes: int = pynvml.nvmlDeviceGetMemoryInfo(self._handle).total
        name, driver = pynvml.nvmlDeviceGetName(self._handle), pynvml.nvmlSystemGetDriverVersion()
        self.described = f"{name}, driver {driver}, {self.memory_bytes // MIB} MiB"

    def busy(self, seconds: float) -> float:
        """The mean utilisation, 0..1, asked ten times a second."""
        end_s = time.monotonic() + seconds
        found: list[float] = []
        while time.monotonic() < end_s:
            found.append(pynvml.nvmlDeviceGetUtilizationRates(self._handle).gpu / 100)
            time.sleep(0.1)
        return sum(found) / len(found)

    def context_mib(self, pid: int, counted_bytes: int) -> int | None:
        """What the driver says of a process beyond what the library counts; None: the driver does not say."""
        for one in pynvml.nvmlDeviceGetComputeRunningProcesses(self._handle):
            if one.pid == pid and one.usedGpuMemory is not None:
                return int(one.usedGpuMemory - counted_bytes) // MIB
        return None
