"""PCIe traffic of the GPUs: from byte counters where devices have wide ones, else measured in turn.

Without counters NVML measures by waiting 20 ms per direction, so each call measures at most one such device. NVML says
of its counters that they may wrap: one of 32 bits does so several times a second under load, and nothing shows it. So
a counter is believed once it stood above 32 bits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from coda_agent.gpus import nvml
from coda_agent.gpus.devices import Traffic
from coda_agent.gpus.discovery import Found
from coda_agent.gpus.nvml import NvmlFailure, Trouble

_NARROW = 1 << 32


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stand:
    """What counters stood at."""

    at_s: float
    sent_bytes: int
    received_bytes: int


class TrafficMeter:
    """Remembers counters between calls, whose turn it is, and who cannot be measured."""

    def __init__(self) -> None:
        self._stands: dict[str, _Stand] = {}  # by UUID
        self._wide: set[str] = set()  # UUIDs whose counters are believed
        self._uncounted: set[str] = set()
        self._unmeasured: set[str] = set()
        self._turn = ""  # UUID measured last

    def measure(self, devices: Mapping[str, Found], now_s: float) -> Mapping[str, Traffic]:
        """Traffic by UUID, for those of `devices` of which this call learned it. May wait 40 ms.

        `now_s`: a clock that never jumps. Counters that fell, or were never read, give nothing this time."""
        measured: dict[str, Traffic] = {}
        for uuid, device in sorted(devices.items()):
            if traffic := self._counted(uuid, device, now_s):
                measured[uuid] = traffic
        waiting = sorted(uuid for uuid in devices if uuid not in self._wide and uuid not in self._unmeasured)
        if waiting:
            self._turn = next((uuid for uuid in waiting if uuid > self._turn), waiting[0])
            if traffic := self._waited_for(self._turn, devices[self._turn]):
                measured[self._turn] = traffic
        return measured

    def _counted(self, uuid: str, device: Found, now_s: float) -> Traffic | None:
        before = self._stands.pop(uuid, None)
        counters = None if uuid in self._uncounted else self._counters(uuid, device)
        if counters is None:
            return None
        if max(counters) >= _NARROW:
            self._wide.add(uuid)
        now = self._stands[uuid] = _Stand(at_s=now_s, sent_bytes=counters[0], received_bytes=counters[1])
        return None if before is None or uuid not in self._wide else _between(before, now)

    def _counters(self, uuid: str, device: Found) -> tuple[int, int] | None:
        try:
            counters = nvml.pcie_counters(device.handle)
        except NvmlFailure as failure:
            if failure.trouble is Trouble.UNSUPPORTED:
                self._uncounted.add(uuid)
            return None
        if counters is None:
            self._uncounted.add(uuid)
        return counters

    def _waited_for(self, uuid: str, device: Found) -> Traffic | None:
        try:
            sent, received = nvml.pcie_bytes_per_s(device.handle)
        except NvmlFailure as failure:
            if failure.trouble is Trouble.UNSUPPORTED:
                self._unmeasured.add(uuid)
            return None
        return Traffic(sent_bytes_per_s=sent, received_bytes_per_s=received)


def _between(before: _Stand, now: _Stand) -> Traffic | None:
    elapsed_s = now.at_s - before.at_s
    sent, received = now.sent_bytes - before.sent_bytes, now.received_bytes - before.received_bytes
    if elapsed_s <= 0 or sent < 0 or received < 0:
        return None
    return Traffic(sent_bytes_per_s=sent / elapsed_s, received_bytes_per_s=received / elapsed_s)
