"""The emulated NVML's knowledge of a device, and its lines in the state file. Values only; `state` writes the file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

NOT_TOLD = -1  # as memory of a process: the driver does not say
GIB = 1 << 30


@dataclass(slots=True, kw_only=True)
class Process:
    """A process with a compute context. `share`: of the time its kernels run, 0..1, since `since_us`."""

    pid: int
    memory_bytes: int = GIB  # NOT_TOLD: pynvml gives None
    share: float = 0.0
    gpu_instance: int | None = None
    compute_instance: int | None = None
    since_us: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSample:
    """One entry of the per-process buffer, word for word; `stale`: returned for any time the caller asks from."""

    pid: int
    at_us: int
    sm_percent: int
    stale: bool = False


@dataclass(slots=True, kw_only=True)
class Slice:
    """A MIG device in `slot` of its parent."""

    slot: int
    uuid: str
    gpu_instance: int
    compute_instance: int = 0
    memory_bytes: int = 10 * GIB
    used_bytes: int = 0
    profile: str = "1g.10gb"
    share: float | None = None  # of the time its kernels run, 0..1, since `since_us`; None: the device has no GPM
    since_us: int = 0
    busy_us: float = 0.0  # until `since_us`


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """From `since_us` on the device is busy `share` of the time."""

    since_us: int
    share: float


@dataclass(slots=True, kw_only=True)
class Traffic:
    """PCIe traffic, and the values of its counters when it last changed."""

    sent_bytes_per_s: float = 0.0
    received_bytes_per_s: float = 0.0
    since_us: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0
    counters: bool = False  # newer devices have byte counters (fields 197 and 198)


@dataclass(slots=True, kw_only=True)
class Device:
    """A GPU. Utilisation is `steps` seen by a sampler of `period_us`, and `samples` as they are."""

    uuid: str
    name: str = "NVIDIA A100-SXM4-80GB"
    minor: int = 0
    pci_bus_id: str = "00000000:07:00.0"
    memory_bytes: int = 80 * GIB
    used_bytes: int = 0
    cpus: frozenset[int] = frozenset()  # empty: affinity is not supported
    numa_node: int | None = None
    period_us: int = 166_667  # NVML: 1/6 s to 1 s by product
    buffered: int = 120  # samples the driver keeps
    steps: list[Step] = field(default_factory=list)
    samples: list[tuple[int, int]] = field(default_factory=list)  # (time in us, percent)
    processes: list[Process] = field(default_factory=list)
    process_samples: list[ProcessSample] = field(default_factory=list)
    traffic: Traffic = field(default_factory=Traffic)
    mig: bool | None = None  # None: the product has no MIG
    slices: list[Slice] = field(default_factory=list)
    nvlinks: Mapping[int, str] = field(default_factory=dict)  # link -> PCI bus id at its other end; "" : link is down
    lost: int = 0  # NVML's code that every call on it answers; 0: none


def lines_of(index: int, device: Device) -> Iterator[str]:
    """The device's lines of the state file (grammar: `state.c`)."""
    memory = f"{device.memory_bytes} {device.used_bytes}"
    yield f"device {index} {device.uuid} {device.minor} {device.pci_bus_id} {memory} {device.name}"
    yield f"sampling {index} {device.period_us} {device.buffered}"
    if device.lost:
        yield f"lost {index} {device.lost}"
    if device.numa_node is not None:
        yield f"numa {index} {device.numa_node}"
    for word, mask in enumerate(words_of(device.cpus)):
        yield f"cpus {index} {word} {mask:x}"
    for step in device.steps:
        yield f"step {index} {step.since_us} {step.share * 100:.6f}"
    for at_us, percent in device.samples:
        yield f"sample {index} {at_us} {percent}"
    yield from _process_lines(index, device)
    yield from _mig_lines(index, device)
    pcie = device.traffic
    yield (
        f"pcie {index} {pcie.sent_bytes_per_s:.1f} {pcie.received_bytes_per_s:.1f} "
        f"{int(pcie.counters)} {pcie.since_us} {pcie.sent_bytes} {pcie.received_bytes}"
    )
    for link, remote in sorted(device.nvlinks.items()):
        yield f"nvlink {index} {link} {int(bool(remote))} {remote or '-'}"


def words_of(cpus: frozenset[int] | Sequence[int]) -> list[int]:
    """A set of CPUs as NVML writes it: 64 CPUs per word, lowest first."""
    masks = [0] * (max(cpus, default=-1) // 64 + 1)
    for cpu in cpus:
        masks[cpu // 64] |= 1 << cpu % 64
    return masks


def _process_lines(index: int, device: Device) -> Iterator[str]:
    for process in device.processes:
        instances = f"{_id(process.gpu_instance)} {_id(process.compute_instance)}"
        percent = round(process.share * 100)
        yield f"process {index} {process.pid} {process.memory_bytes} {instances} {percent} {process.since_us}"
    for sample in device.process_samples:
        yield f"process_sample {index} {sample.pid} {sample.at_us} {sample.sm_percent} {int(sample.stale)}"


def _mig_lines(index: int, device: Device) -> Iterator[str]:
    if device.mig is not None:
        yield f"mig {index} {int(device.mig)}"
    for part in device.slices:
        ids = f"{part.slot} {part.uuid} {part.gpu_instance} {part.compute_instance}"
        percent = -1.0 if part.share is None else part.share * 100
        use = f"{percent:.6f} {part.since_us} {part.busy_us:.0f}"
        yield f"slice {index} {ids} {part.memory_bytes} {part.used_bytes} {use} {part.profile}"


def _id(number: int | None) -> int:
    return 0xFFFFFFFF if number is None else number
