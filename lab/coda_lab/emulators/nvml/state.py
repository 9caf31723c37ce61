"""The state file: the answers of the emulated NVML, written in Python and read by the library before every call.

One writer per file. Every change is written at once and whole (renamed into place). So a reader in any process, also
over a shared folder, sees the state before or after it. `batch` joins several changes into one.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from coda_lab.emulators.nvml.devices import Device, Process, Step, lines_of

XID_EVENT = 8  # NVML's type of a critical error
NO_INSTANCE = 0xFFFFFFFF
MOST_EVENTS = 256  # the library keeps no more
STATE_VARIABLE = "CODA_NVML_STATE"  # environment variable in which the library finds the file


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fault:
    device: int | None  # None: every device, and calls without one
    call: str  # an NVML function's name, or *
    code: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Event:
    """What the driver told of a device. Instances: NO_INSTANCE where it names no MIG slice."""

    number: int
    uuid: str
    xid: int
    gpu_instance: int
    compute_instance: int


@dataclass(slots=True, kw_only=True)
class NvmlState:
    """The answers of NVML on the emulated node; times in microseconds of the wall clock, or of `freeze`.

    Driver: with `loaded` False it answers DRIVER_NOT_LOADED. If `driver` differs from the one a process first opened,
    it answers LIB_RM_VERSION_MISMATCH to that process until it restarts. `reload_driver` breaks every open session.
    """

    path: Path
    devices: list[Device] = field(default_factory=list)
    driver: str = "570.86.15"
    _loaded: bool = True
    _epoch: int = 1
    _frozen_us: int | None = None
    _faults: list[_Fault] = field(default_factory=list)
    _events: list[_Event] = field(default_factory=list)  # the last ones, in order
    _delays: dict[str, int] = field(default_factory=dict)
    _ancestors: dict[tuple[int, int], int] = field(default_factory=dict)
    _generation: int = field(default_factory=time.time_ns)  # no two writers of one file begin with the same number
    _batching: bool = False

    def __post_init__(self) -> None:
        self.write()

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Write once, at the end of the block."""
        self._batching = True
        try:
            yield
        finally:
            self._batching = False
            self.write()

    def now_us(self) -> int:
        """The clock of the samples: wall clock, or where it was frozen."""
        return time.time_ns() // 1000 if self._frozen_us is None else self._frozen_us

    def freeze(self, at_us: int | None) -> None:
        """Stop the samples' clock at `at_us`; None lets it run as the wall clock again."""
        self._frozen_us = at_us
        self.write()

    def add(self, device: Device) -> None:
        """One more GPU, at the next index."""
        self.devices.append(device)
        self.write()

    def remove(self, uuid: str) -> None:
        """Take a GPU off the bus; those behind it move up by one index."""
        self.devices.remove(self.device(uuid))
        self.write()

    def device(self, uuid: str) -> Device:
        """The device of that UUID; changes made to it show after the next `write`."""
        return next(device for device in self.devices if device.uuid == uuid)

    def set_utilisation(self, uuid: str, share: float, *, at_us: int | None = None) -> None:
        """From now (or `at_us`) on the GPU is busy `share` of the time, 0..1. Earlier samples stay, as long as the
        driver keeps them.
        """
        device = self.device(uuid)
        since_us = self.now_us() if at_us is None else at_us
        steps = [step for step in device.steps if step.since_us < since_us]
        steps.append(Step(since_us=since_us, share=min(1.0, max(0.0, share))))
        shown_us = self.now_us() - device.period_us * (device.buffered + 1)
        forgotten = sum(step.since_us <= shown_us for step in steps) - 1  # the last of them still holds there
        device.steps = steps[max(0, forgotten) :]
        self.write()

    def set_slice_utilisation(self, uuid: str, slice_uuid: str, share: float) -> None:
        """From now on the MIG slice is busy `share` of the time, 0..1, and its GPU has performance monitoring (GPM)."""
        part = next(part for part in self.device(uuid).slices if part.uuid == slice_uuid)
        now_us = self.now_us()
        part.busy_us += (now_us - part.since_us) * (part.share or 0.0) if part.since_us else 0.0
        part.share, part.since_us = share, now_us
        self.write()

    def set_processes(self, uuid: str, processes: Iterable[Process]) -> None:
        """The compute processes on the GPU; its used memory follows where they tell theirs."""
        device = self.device(uuid)
        device.processes = list(processes)
        device.used_bytes = sum(max(0, process.memory_bytes) for process in device.processes)
        self.write()

    def set_traffic(self, uuid: str, *, sent_bytes_per_s: float, received_bytes_per_s: float) -> None:
        """PCIe traffic from now on; the counters keep what went before."""
        traffic, now_us = self.device(uuid).traffic, self.now_us()
        elapsed_s = max(0, now_us - traffic.since_us) / 1e6 if traffic.since_us else 0.0
        traffic.sent_bytes += int(traffic.sent_bytes_per_s * elapsed_s)
        traffic.received_bytes += int(traffic.received_bytes_per_s * elapsed_s)
        traffic.since_us = now_us
        traffic.sent_bytes_per_s, traffic.received_bytes_per_s = sent_bytes_per_s, received_bytes_per_s
        self.write()

    def set_ancestor(self, one: int, other: int, level: int) -> None:
        """The common ancestor of these devices: 10 one PCIe switch, ... 50 nothing but the system (the default)."""
        self._ancestors[min(one, other), max(one, other)] = level
        self.write()

    def lose(self, uuid: str, code: int = 15) -> None:
        """Every call on the GPU fails: 15 lost, 16 reset required, 999 unknown; 0 brings it back."""
        self.device(uuid).lost = code
        self.write()

    def fail(self, call: str, code: int, *, uuid: str | None = None) -> None:
        """`call` (an NVML function's name, or *) answers `code` on that GPU, or everywhere; 0 ends it."""
        index = None if uuid is None else self.devices.index(self.device(uuid))
        kept = [fault for fault in self._faults if (fault.device, fault.call) != (index, call)]
        self._faults = [*kept, *([_Fault(device=index, call=call, code=code)] if code else [])]
        self.write()

    def raise_xid(self, uuid: str, xid: int, *, instance: tuple[int, int] = (NO_INSTANCE, NO_INSTANCE)) -> None:
        """The driver reports this critical error of the GPU, to those who registered for it before.

        `instance`: GPU instance and compute instance, where the driver names the MIG slice."""
        number = self._events[-1].number + 1 if self._events else 1
        gpu_instance, compute_instance = instance
        event = _Event(number=number, uuid=uuid, xid=xid, gpu_instance=gpu_instance, compute_instance=compute_instance)
        self._events = [*self._events, event][-MOST_EVENTS:]
        self.write()

    def delay(self, call: str, delay_us: int) -> None:
        """`call` takes that much longer; 0 ends it."""
        self._delays[call] = delay_us
        self.write()

    def unload_driver(self) -> None:
        """As after `rmmod nvidia`: open sessions break, new ones find no driver."""
        self._loaded = False
        self.write()

    def reload_driver(self, version: str | None = None) -> None:
        """Load the driver, the same or another one: earlier sessions stay broken."""
        self._loaded, self._epoch = True, self._epoch + 1
        self.driver = version or self.driver
        self.write()

    def write(self) -> None:
        """Put the whole state into the file, at once for every reader."""
        if self._batching:
            return
        self._generation += 1
        fresh = self.path.with_name(f".{self.path.name}.new")
        fresh.write_text("\n".join([*self._lines(), "end", ""]))
        fresh.replace(self.path)

    def _lines(self) -> Iterator[str]:
        yield f"coda-nvml 1 {self._generation}"
        yield f"driver {self.driver} {int(self._loaded)} {self._epoch}"
        if self._frozen_us is not None:
            yield f"clock {self._frozen_us}"
        for index, device in enumerate(self.devices):
            yield from lines_of(index, device)
        for (one, other), level in sorted(self._ancestors.items()):
            yield f"ancestor {one} {other} {level}"
        index_by_uuid = {device.uuid: index for index, device in enumerate(self.devices)}
        for event in self._events:
            index, instances = index_by_uuid.get(event.uuid, -1), f"{event.gpu_instance} {event.compute_instance}"
            yield f"event {event.number} {index} {XID_EVENT} {event.xid} {instances}"
        for fault in self._faults:
            yield f"fault {'*' if fault.device is None else fault.device} {fault.call} {fault.code}"
        for call, delay_us in sorted(self._delays.items()):
            yield f"delay {call} {delay_us}"
