"""All GPUs of the node, round by round: opens NVML, keeps state between rounds, and never raises.

A round gives a Snapshot. A device that fails is LOST in it, and the others go on. To find lost devices again, NVML is
opened again, with growing pauses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from coda_agent.gpus.devices import Gpu, GpuReading, Health, LibraryState, Link, Snapshot, lost_reading
from coda_agent.gpus.driver.discovery import OpenDevice, find_devices
from coda_agent.gpus.driver.links import find_links
from coda_agent.gpus.driver.measure import TrackedDevice, measure_device
from coda_agent.gpus.driver.nvml import ENDS_SESSION, NvmlFailure
from coda_agent.gpus.driver.session import NvmlSession
from coda_agent.gpus.driver.xid_events import XidEvents
from coda_agent.gpus.samples import Moment


@dataclass(frozen=True, slots=True, kw_only=True)
class GpusConfig:
    """How GPUs are measured."""

    settle_s: float = 3.0
    """Seconds after a device is opened, or came back, without utilisation. Our choice: memory scrubbing at driver start
    shows as use."""

    first_pause_s: float = 1.0
    """Seconds from a loss to the first new session; doubled while it does not help. Our choice."""

    longest_pause_s: float = 60.0
    """Most seconds between attempts to open NVML where nothing answers. Our choice."""

    longest_search_s: float = 600.0
    """Most seconds between new sessions that look for lost devices only. Our choice: opening takes up to seconds where
    nothing else keeps the GPUs open, and the healthy ones are not measured meanwhile."""

    cpu_words: int = 16
    """Words of 64 CPUs for the CPUs near a device. Default: 1024 CPUs."""


class Gpus:
    """The node's GPUs. One thread at a time; `sense` may wait on the driver, normally milliseconds."""

    def __init__(self, config: GpusConfig | None = None) -> None:
        self._config = config or GpusConfig()
        self._session = NvmlSession(
            first_pause_s=self._config.first_pause_s,
            longest_pause_s=self._config.longest_pause_s,
            longest_search_s=self._config.longest_search_s,
            before_end=self._give_back,
        )
        self._xids = XidEvents()
        self._tracked: dict[str, TrackedDevice] = {}  # by UUID; open in this session
        self._missing: dict[str, tuple[Gpu, str]] = {}  # by UUID: seen earlier, not open now, and why
        self._refused: tuple[str, ...] = ()
        self._links: tuple[Link, ...] = ()
        self._linked: frozenset[str] = frozenset()  # the devices between which `_links` are

    def sense(self, now: Moment) -> Snapshot:
        """Measure every device once. Devices that were ever seen stay in the answer, as LOST while they are gone."""
        if self._session.open_if_due(now.monotonic_s):
            self._find_devices(now)
        xids = self._xids.take()  # before a device that fails ends the session, and them with it
        measured = self._measure(now) if self._session.is_open else []
        if not self._session.is_open:  # also if it ended while devices were asked
            measured = self._all_lost(self._session.why or "NVML is closed")
        self._refresh_links()
        readings = measured + [lost_reading(gpu, why) for gpu, why in self._missing.values()]
        self._plan_reopening(readings, now)
        return Snapshot(
            at_s=now.monotonic_s,
            library=self._session.state,
            why=self._session.why,
            driver=self._session.driver if self._session.is_open else None,
            readings=tuple(sorted(readings, key=lambda reading: reading.gpu.uuid)),
            unreadable=self._refused,
            xids=xids,
            xid_lacks=self._xids.lacks,
            links=self._links,
        )

    def open_devices(self) -> Mapping[str, OpenDevice]:
        """Return the devices that can be asked now, by UUID; valid until the next `sense`."""
        if not self._session.is_open:
            return {}
        return {uuid: tracked.device for uuid, tracked in sorted(self._tracked.items())}

    def close(self) -> None:
        """End the session; the next `sense` begins another."""
        self._session.close()

    def _give_back(self) -> None:
        """Samples and events are of one session."""
        self._xids.forget()
        for tracked in self._tracked.values():
            tracked.slice_use.forget_all_except(())

    def _find_devices(self, now: Moment) -> None:
        try:
            found, self._refused = find_devices(self._config.cpu_words)
        except NvmlFailure as failure:
            self._session.mark_broken(now.monotonic_s, str(failure))
            return
        before, was_missing = self._tracked, self._missing
        self._tracked = {device.gpu.uuid: self._track(device, before, now) for device in found}
        self._xids.watch(found)
        gone = {uuid: tracked.device.gpu for uuid, tracked in before.items()}
        gone |= {uuid: gpu for uuid, (gpu, _) in was_missing.items()}
        self._missing = {
            uuid: (gpu, f"{uuid} is not among the devices that the driver opens")
            for uuid, gpu in gone.items()
            if uuid not in self._tracked
        }

    def _track(self, device: OpenDevice, before: Mapping[str, TrackedDevice], now: Moment) -> TrackedDevice:
        """A device that was never lost continues as it was; every other device settles first."""
        known = before.get(device.gpu.uuid)
        if known is None or known.is_lost:
            now_us = int(now.node_wall_s * 1e6)
            ready_from_s = now.monotonic_s + self._config.settle_s
            return TrackedDevice(device=device, ready_from_s=ready_from_s, sample_us=now_us)
        known.device = device
        return known

    def _refresh_links(self) -> None:
        """Ask for links once per set of devices: they do not change while these are there."""
        devices = self.open_devices()
        if devices and devices.keys() != self._linked:
            self._links, self._linked = find_links(devices), frozenset(devices)

    def _measure(self, now: Moment) -> list[GpuReading]:
        return [self._measure_one(tracked, now) for tracked in self._tracked.values()]

    def _all_lost(self, why: str) -> list[GpuReading]:
        for tracked in self._tracked.values():
            tracked.is_lost = True
        return [lost_reading(tracked.device.gpu, why) for tracked in self._tracked.values()]

    def _measure_one(self, tracked: TrackedDevice, now: Moment) -> GpuReading:
        if tracked.is_lost:  # if it answers again, it settles first
            tracked.ready_from_s = now.monotonic_s + self._config.settle_s
        try:
            reading = measure_device(tracked, now)
        except NvmlFailure as failure:
            tracked.is_lost = True
            if failure.trouble in ENDS_SESSION:
                self._session.mark_broken(now.monotonic_s, str(failure))
            return lost_reading(tracked.device.gpu, str(failure))
        tracked.is_lost = False
        return reading

    def _plan_reopening(self, readings: list[GpuReading], now: Moment) -> None:
        if self._session.state is not LibraryState.READY:
            return
        lost = [reading for reading in readings if reading.health is Health.LOST]
        if not lost and not self._refused:
            self._session.mark_healthy()
        elif len(lost) < len(readings):
            self._session.plan_search(now.monotonic_s)
        else:
            self._session.plan_reopening(now.monotonic_s)
