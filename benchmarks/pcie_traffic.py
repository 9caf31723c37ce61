"""PCIe traffic of the GPUs: from byte counters where devices have wide ones, else measured in turn.

Without counters NVML measures by waiting 20 ms per direction, so each call measures at most one such device. NVML says
of its counters that they may wrap: one of 32 bits does so several times a second under load, and nothing shows it. So
a counter is believed once it stood above 32 bits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pynvml

from coda_agent.gpus.driver.discovery import OpenDevice
from coda_agent.gpus.driver.nvml import VALUE_FIELDS, Handle, NvmlFailure, Trouble, ask

NARROW = 1 << 32
COUNTERS = (197, 198)  # field ids of the bytes sent and received over PCIe, on newer devices


@dataclass(frozen=True, slots=True, kw_only=True)
class PcieTraffic:
    """PCIe traffic of one device, seen from the device."""

    sent_bytes_per_s: float
    received_bytes_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Counters:
    """What the counters showed at one time."""

    at_s: float
    sent_bytes: int
    received_bytes: int


class PcieMeter:
    """Remembers counters between calls, whose turn it is, and who cannot be measured."""

    def __init__(self) -> None:
        self._before: dict[str, _Counters] = {}  # by UUID
        self._wide: set[str] = set()  # UUIDs whose counters are believed
        self._uncounted: set[str] = set()
        self._unmeasured: set[str] = set()
        self._turn = ""  # UUID measured last

    def measure(self, devices: Mapping[str, OpenDevice], now_s: float) -> Mapping[str, PcieTraffic]:
        """Traffic by UUID, for those of `devices` of which this call learned it. May wait 40 ms.

        `now_s`: a clock that never jumps. Counters that fell, or were never read, give nothing this time."""
        measured: dict[str, PcieTraffic] = {}
        for uuid, device in sorted(devices.items()):
            if traffic := self._counted(uuid, device, now_s):
                measured[uuid] = traffic
        waiting = sorted(uuid for uuid in devices if uuid not in self._wide and uuid not in self._unmeasured)
        if waiting:
            self._turn = next((uuid for uuid in waiting if uuid > self._turn), waiting[0])
            if traffic := self._wait_for(self._turn, devices[self._turn]):
                measured[self._turn] = traffic
        return measured

    def _counted(self, uuid: str, device: OpenDevice, now_s: float) -> PcieTraffic | None:
        before = self._before.pop(uuid, None)
        counters = None if uuid in self._uncounted else self._read(uuid, device)
        if counters is None:
            return None
        if max(counters) >= NARROW:
            self._wide.add(uuid)
        now = self._before[uuid] = _Counters(at_s=now_s, sent_bytes=counters[0], received_bytes=counters[1])
        return None if before is None or uuid not in self._wide else _between(before, now)

    def _read(self, uuid: str, device: OpenDevice) -> tuple[int, int] | None:
        try:
            counters = pcie_counters(device.handle)
        except NvmlFailure as failure:
            if failure.trouble is Trouble.UNSUPPORTED:
                self._uncounted.add(uuid)
            return None
        if counters is None:
            self._uncounted.add(uuid)
        return counters

    def _wait_for(self, uuid: str, device: OpenDevice) -> PcieTraffic | None:
        try:
            sent, received = pcie_bytes_per_s(device.handle)
        except NvmlFailure as failure:
            if failure.trouble is Trouble.UNSUPPORTED:
                self._unmeasured.add(uuid)
            return None
        return PcieTraffic(sent_bytes_per_s=sent, received_bytes_per_s=received)


def _between(before: _Counters, now: _Counters) -> PcieTraffic | None:
    elapsed_s = now.at_s - before.at_s
    sent, received = now.sent_bytes - before.sent_bytes, now.received_bytes - before.received_bytes
    if elapsed_s <= 0 or sent < 0 or received < 0:
        return None
    return PcieTraffic(sent_bytes_per_s=sent / elapsed_s, received_bytes_per_s=received / elapsed_s)


def pcie_counters(handle: Handle) -> tuple[int, int] | None:
    """Bytes (sent, received) since the driver loaded; None: this device does not count."""
    values = ask(pynvml.nvmlDeviceGetFieldValues, handle, COUNTERS)
    if any(value.nvmlReturn != pynvml.NVML_SUCCESS for value in values):
        return None
    sent, received = (int(getattr(value.value, VALUE_FIELDS.get(value.valueType, "ullVal"))) for value in values)
    return sent, received


def pcie_bytes_per_s(handle: Handle) -> tuple[float, float]:
    """(sent, received), each measured for 20 ms while this call waits. NVML's KB are taken as 1024 bytes."""
    sent, received = (
        float(ask(pynvml.nvmlDeviceGetPcieThroughput, handle, counter)) * 1024
        for counter in (pynvml.NVML_PCIE_UTIL_TX_BYTES, pynvml.NVML_PCIE_UTIL_RX_BYTES)
    )
    return sent, received
