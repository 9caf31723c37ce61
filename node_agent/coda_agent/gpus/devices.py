"""The words for GPUs: what a device is, what was measured of it, and how healthy it is. Values only.

A *gpu* is a whole device, known by its UUID and never by its index. An *instance* is a slice of one in MIG mode."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum


class Health(Enum):
    """Whether a device can be believed."""

    READY = "ready"
    SETTLING = "settling"  # just opened: its first seconds show driver work, so utilisation is withheld
    LOST = "lost"  # fell off the bus, needs a reset, or cannot be reached: nothing may be decided by it


class Metric(Enum):
    """What is measured of a device."""

    UTILISATION = "utilisation"
    MEMORY = "memory"
    PROCESSES = "processes"


class LibraryState(Enum):
    """Whether NVML answers at all."""

    READY = "ready"
    ABSENT = "absent"  # no library, no driver, or no device files: retried with growing pauses
    FAILED = "failed"  # it was open and stopped answering: reopened with growing pauses
    OUTDATED = "outdated"  # the driver was upgraded under this container: only a new one has its library
    SILENT = "silent"  # a call into the driver does not return


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """A MIG slice."""

    uuid: str  # MIG-...
    gpu_uuid: str  # of the device it is cut from
    gpu_instance: int
    compute_instance: int
    memory_bytes: int | None  # None: not told
    profile: str = ""  # its size, such as 1g.10gb; "": not told
    has_utilisation: bool = False  # False: the device cannot tell how busy it is


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A device as it was found. Nothing here changes while it is open, except `mig` and `instances`."""

    uuid: str  # GPU-...
    index: int  # NVML's, for people only: it may change with every start
    minor: int | None  # of /dev/nvidia<minor>; None: not told
    name: str
    pci_bus_id: str  # as in /sys/bus/pci/devices: 0000:3b:00.0
    memory_bytes: int | None  # None: not told
    cpus: frozenset[int] = frozenset()  # logical CPUs next to it; empty: not told
    numa_nodes: frozenset[int] = frozenset()  # memory next to it; empty: not told
    mig: bool = False
    instances: tuple[Instance, ...] = ()  # by UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSample:
    """The busy share of one driver sample period (1/6 s to 1 s)."""

    at_s: float  # end of the period, on the clock that never jumps
    share: float  # 0..1


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Device memory; the driver's own part counts as used."""

    total_bytes: int
    used_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceReading:
    """One MIG slice in one round. None: not measured, never 0."""

    memory: Memory | None = None
    share: float | None = None  # 0..1


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuProcess:
    """A process with a compute context, by its pid on the host."""

    pid: int
    memory_bytes: int | None  # None: not told
    gpu_instance: int | None = None  # None: not on a MIG slice


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuReading:
    """One device in one round. None: not measured, never 0."""

    gpu: Gpu
    health: Health
    why: str | None = None  # one sentence: why it is not READY, or what could not be measured this time
    samples: tuple[GpuSample, ...] = ()  # utilisation since the round before, in order of time
    share: float | None = None  # their mean, 0..1
    memory: Memory | None = None
    by_instance: Mapping[str, InstanceReading] = field(default_factory=dict)  # by MIG UUID
    processes: tuple[GpuProcess, ...] | None = None  # by pid
    unmeasured: frozenset[Metric] = frozenset()  # what this device does not offer


class LinkPath(Enum):
    """What PCIe traffic between two GPUs passes, nearest first, in NVML's levels."""

    BOARD = 0
    SWITCH = 10
    SWITCHES = 20
    HOST_BRIDGE = 30
    NUMA_NODE = 40
    SYSTEM = 50  # the link between sockets


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """Between two GPUs, by UUID, `one` the smaller."""

    one: str
    other: str
    path: LinkPath | None  # None: not told
    nvlinks: int  # active NVLinks between them; through switches: of the GPU with fewer
    is_switched: bool = False  # through NVSwitches


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuXid:
    """A critical error that the driver reported of a device. `gpu_instance`: of the MIG slice, where it names one."""

    uuid: str  # of the whole device
    xid: int
    gpu_instance: int | None = None
    compute_instance: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """All devices in one round; readings in order of UUID. A device once seen stays, as LOST when it is gone."""

    at_s: float  # on the clock that never jumps
    library: LibraryState
    why: str | None = None  # one sentence, where the library is not READY
    driver: str | None = None  # version
    readings: tuple[GpuReading, ...] = ()
    unreadable: tuple[str, ...] = ()  # devices NVML counts but does not open, one sentence each
    xids: tuple[GpuXid, ...] = ()  # reported since the snapshot before, in order
    xid_lacks: tuple[str, ...] = ()  # one sentence for each reason why Xids are not seen here; empty: all are
    links: tuple[Link, ...] = ()  # between the devices, as they were when these were found


def lost_reading(gpu: Gpu, why: str) -> GpuReading:
    """Return the reading of a device that cannot be asked."""
    return GpuReading(gpu=gpu, health=Health.LOST, why=why)
