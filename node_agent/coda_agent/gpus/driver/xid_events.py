"""The critical errors (Xids) that the driver reports, as NVML's events of one session.

Where a device, a driver or a permission does not give them, that is one sentence, and nothing else changes."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final

from coda_agent.gpus.devices import GpuXid
from coda_agent.gpus.driver import nvml
from coda_agent.gpus.driver.discovery import OpenDevice
from coda_agent.gpus.driver.nvml import EventSet, NvmlFailure

log = logging.getLogger(__name__)

MOST_AT_ONCE: Final = 64
"""Events that one round takes; the others wait for the next. Our choice: a GPU in trouble may report without end."""


class XidEvents:
    """Watches the devices of the present session. It never raises: nothing else depends on it."""

    def __init__(self) -> None:
        self.lacks: tuple[str, ...] = ()  # one sentence for each reason why errors are not seen
        self._events: EventSet | None = None
        self._uuid_by_number: dict[int, str] = {}  # of the devices that are watched

    def watch(self, devices: Iterable[OpenDevice]) -> None:
        """Watch these devices from now on, those of a new session."""
        self.forget()
        lacks: dict[str, list[str]] = {}  # devices by what NVML says
        try:
            self._events = nvml.new_event_set()
        except NvmlFailure as failure:
            self.lacks = (f"errors of the GPUs (Xids) are not seen: {failure}",)
            return
        for device in devices:
            try:
                nvml.watch_xids(device.handle, self._events)
                self._uuid_by_number[nvml.number_of(device.handle)] = device.gpu.uuid
            except NvmlFailure as failure:
                lacks.setdefault(str(failure), []).append(device.gpu.uuid)
        self.lacks = tuple(
            f"errors (Xids) of {', '.join(sorted(uuids)[:4])}{', ...' if len(uuids) > 4 else ''} are not seen: {why}"
            for why, uuids in sorted(lacks.items())
        )

    def take(self) -> tuple[GpuXid, ...]:
        """Return what was reported since the last call, at most `MOST_AT_ONCE`. It does not wait."""
        found: list[GpuXid] = []
        while self._events is not None and self._uuid_by_number and len(found) < MOST_AT_ONCE:
            try:
                event = nvml.next_xid(self._events)
            except NvmlFailure as failure:  # a lost GPU: measuring finds out which, and opens NVML again
                log.debug("no further Xids this time: %s", failure)
                break
            if event is None:
                break
            number, xid, gpu_instance, compute_instance = event
            if uuid := self._uuid_by_number.get(number):
                instances = {"gpu_instance": gpu_instance, "compute_instance": compute_instance}
                found.append(GpuXid(uuid=uuid, xid=xid, **instances))
        return tuple(found)

    def forget(self) -> None:
        """Give the events back, before the session ends."""
        events, self._events, self._uuid_by_number, self.lacks = self._events, None, {}, ()
        if events is not None:
            try:
                nvml.free_event_set(events)
            except NvmlFailure as failure:
                log.debug("the set of events is gone with its session: %s", failure)
