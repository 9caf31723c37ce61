"""NVML through nvidia-ml-py: each call once, with plain values out and one kind of failure.

pynvml finds the library by its bare name, `libnvidia-ml.so.1`. A test puts its own library in the way of that search,
and everything here runs as on real GPUs."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from functools import partial
from typing import Any, NewType, TypeVar

import pynvml

from coda.errors import Outage
from coda_agent.gpus.devices import GpuProcess, Memory

Handle = NewType("Handle", object)
GpmSample = NewType("GpmSample", object)
EventSet = NewType("EventSet", object)
_T = TypeVar("_T")

_NO_INSTANCE = 0xFFFFFFFF
VALUE_FIELDS = {  # of NVML's union of numbers, by the type that it names
    pynvml.NVML_VALUE_TYPE_DOUBLE: "dVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_INT: "uiVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG: "ulVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: "ullVal",
    pynvml.NVML_VALUE_TYPE_SIGNED_LONG_LONG: "sllVal",
}


class Trouble(Enum):
    """What a failing call means, by the reaction to it."""

    NOTHING_NEW = "nothing new"  # not a fault: ask again later
    UNSUPPORTED = "unsupported"  # this device or driver never answers that
    LOST = "lost"
    UNKNOWN = "unknown"  # a lost device says so, and a healthy one of a single call
    DENIED = "denied"
    CLOSED = "closed"  # the session ended under us
    ABSENT = "absent"  # no library or no driver
    OUTDATED = "outdated"  # library and driver differ in version
    PASSING = "passing"  # anything else: no value this time


ENDS_SESSION = frozenset({Trouble.CLOSED, Trouble.ABSENT, Trouble.OUTDATED})
"""After these no device answers until NVML is opened again."""

ENDS_ROUND = ENDS_SESSION | {Trouble.LOST}
"""After these nothing more can be asked of the device in this round."""

_TROUBLES = {
    0: Trouble.NOTHING_NEW,  # pynvml raises SUCCESS where the size of an answer is zero
    pynvml.NVML_ERROR_UNINITIALIZED: Trouble.CLOSED,
    pynvml.NVML_ERROR_INVALID_ARGUMENT: Trouble.UNSUPPORTED,
    pynvml.NVML_ERROR_NOT_SUPPORTED: Trouble.UNSUPPORTED,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND: Trouble.UNSUPPORTED,
    pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH: Trouble.UNSUPPORTED,
    pynvml.NVML_ERROR_NO_PERMISSION: Trouble.DENIED,
    pynvml.NVML_ERROR_OPERATING_SYSTEM: Trouble.DENIED,
    pynvml.NVML_ERROR_NOT_FOUND: Trouble.NOTHING_NEW,
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: Trouble.ABSENT,
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: Trouble.ABSENT,
    pynvml.NVML_ERROR_GPU_IS_LOST: Trouble.LOST,
    pynvml.NVML_ERROR_RESET_REQUIRED: Trouble.LOST,
    pynvml.NVML_ERROR_UNKNOWN: Trouble.UNKNOWN,
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: Trouble.OUTDATED,
}


_GPM_TROUBLES = {**_TROUBLES, pynvml.NVML_ERROR_INVALID_ARGUMENT: Trouble.PASSING}
"""There an invalid argument is one instance, which has just gone or was made again."""


class NvmlFailure(Outage):
    """A call that gave no value. `trouble` says what to do; the sentence names the call and NVML's error."""

    def __init__(self, trouble: Trouble, sentence: str) -> None:
        super().__init__(sentence)
        self.trouble = trouble


@contextmanager
def _translating_errors(call: str, troubles: Mapping[int, Trouble] = _TROUBLES) -> Iterator[None]:
    try:
        yield
    except pynvml.NVMLError as error:
        trouble = troubles.get(error.value, Trouble.PASSING)
        raise NvmlFailure(trouble, f"{call}: {error} (NVML {error.value})") from error
    except (UnicodeDecodeError, ValueError) as error:  # garbage in a driver's text
        raise NvmlFailure(Trouble.PASSING, f"{call}: {error}") from error


def ask(function: Callable[..., Any], *arguments: object) -> Any:
    """Return what one call of pynvml returns. Raises NvmlFailure."""
    with _translating_errors(function.__name__):
        return function(*arguments)


def optional(question: Callable[[], _T]) -> _T | None:
    """Return the answer, or None if the device has none. Raises NvmlFailure for other reasons."""
    try:
        return question()
    except NvmlFailure as failure:
        if failure.trouble in (Trouble.UNSUPPORTED, Trouble.NOTHING_NEW):
            return None
        raise


def open_session() -> str:
    """Open NVML; return the driver's version. Raises NvmlFailure (ABSENT, OUTDATED, or any other trouble)."""
    ask(pynvml.nvmlInit)
    try:
        return str(ask(pynvml.nvmlSystemGetDriverVersion))
    except NvmlFailure:
        close_session()
        raise


def close_session() -> None:
    """Close NVML, also a broken session. Every handle is invalid from now on."""
    try:
        ask(pynvml.nvmlShutdown)
    except NvmlFailure as failure:
        if failure.trouble is not Trouble.CLOSED:
            raise


def count_devices() -> int:
    """Return the number of devices that the driver counts, lost ones included."""
    return int(ask(pynvml.nvmlDeviceGetCount))


def handle_at(index: int) -> Handle:
    """Return the device of that index."""
    return Handle(ask(pynvml.nvmlDeviceGetHandleByIndex, index))


def uuid_of(handle: Handle) -> str:
    """Return GPU-... for a device, MIG-... for a slice."""
    return str(ask(pynvml.nvmlDeviceGetUUID, handle))


def name_of(handle: Handle) -> str:
    """Return the product's name."""
    return str(ask(pynvml.nvmlDeviceGetName, handle))


def minor_of(handle: Handle) -> int:
    """Return the number in /dev/nvidia<minor>."""
    return int(ask(pynvml.nvmlDeviceGetMinorNumber, handle))


def pci_bus_id_of(handle: Handle) -> str:
    """Return the bus id as in sysfs: four digits of domain, lower case."""
    with _translating_errors("nvmlDeviceGetPciInfo"):  # its text is decoded where it is read
        return sysfs_bus_id(str(pynvml.nvmlDeviceGetPciInfo(handle).busId))


def sysfs_bus_id(nvml_bus_id: str) -> str:
    """Return `00000000:3B:00.0` as `0000:3b:00.0`; text of another form stays as it is."""
    domain, colon, rest = nvml_bus_id.partition(":")
    return f"{domain[-4:]}{colon}{rest}".lower() if len(domain) == 8 else nvml_bus_id.lower()


def cpus_near(handle: Handle, words: int) -> frozenset[int]:
    """Return the logical CPUs next to the device, as far as `words` words of 64 reach."""
    return _set_bits(ask(pynvml.nvmlDeviceGetCpuAffinity, handle, words))


def numa_nodes_near(handle: Handle) -> frozenset[int]:
    """Return the NUMA nodes next to the device, up to node 255."""
    return _set_bits(ask(pynvml.nvmlDeviceGetMemoryAffinity, handle, 4, pynvml.NVML_AFFINITY_SCOPE_NODE))


def memory_of(handle: Handle) -> Memory:
    """Return the memory of a device or slice."""
    memory = ask(pynvml.nvmlDeviceGetMemoryInfo, handle)
    return Memory(total_bytes=int(memory.total), used_bytes=int(memory.used))


def utilisation_samples(handle: Handle, last_us: int) -> list[tuple[int, float]]:
    """Return (microseconds of the wall clock, percent) of the driver's samples after `last_us`, in its order."""
    kind, samples = ask(pynvml.nvmlDeviceGetSamples, handle, pynvml.NVML_GPU_UTILIZATION_SAMPLES, last_us)
    field = VALUE_FIELDS.get(kind, "uiVal")
    return [(int(sample.timeStamp), float(getattr(sample.sampleValue, field))) for sample in samples]


def utilisation_percent(handle: Handle) -> float:
    """Return the utilisation in the driver's last sample period."""
    return float(ask(pynvml.nvmlDeviceGetUtilizationRates, handle).gpu)


def processes_on(handle: Handle) -> tuple[GpuProcess, ...]:
    """Return the processes with a compute context on a device or slice, by pid."""
    try:
        entries = ask(pynvml.nvmlDeviceGetComputeRunningProcesses_v3, handle)
    except NvmlFailure as failure:
        if failure.trouble is not Trouble.UNSUPPORTED:
            raise
        entries = ask(pynvml.nvmlDeviceGetComputeRunningProcesses_v2, handle)  # drivers before 510
    return tuple(sorted(map(_process, entries), key=lambda process: (process.pid, process.gpu_instance or 0)))


def is_mig(handle: Handle) -> bool:
    """True if the device is cut into slices now."""
    return bool(ask(pynvml.nvmlDeviceGetMigMode, handle)[0] == pynvml.NVML_DEVICE_MIG_ENABLE)


def slice_places(handle: Handle) -> int:
    """Return how many slices the device could have."""
    return int(ask(pynvml.nvmlDeviceGetMaxMigDeviceCount, handle))


def slice_at(handle: Handle, place: int) -> Handle:
    """Return the slice at this place. Raises NOTHING_NEW if there is none."""
    return Handle(ask(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, place))


def slice_ids(handle: Handle) -> tuple[int, int]:
    """Return GPU instance and compute instance of a slice."""
    return int(ask(pynvml.nvmlDeviceGetGpuInstanceId, handle)), int(ask(pynvml.nvmlDeviceGetComputeInstanceId, handle))


def new_gpm_sample() -> GpmSample:
    """Return room for one sample of performance monitoring; give it back with `free_gpm_sample`."""
    return GpmSample(ask(pynvml.nvmlGpmSampleAlloc))


def free_gpm_sample(sample: GpmSample) -> None:
    """Free the room of a sample."""
    ask(pynvml.nvmlGpmSampleFree, sample)


def take_gpm_sample(handle: Handle, gpu_instance: int, sample: GpmSample) -> None:
    """Fill `sample` with the counters of one GPU instance of a device in MIG mode. UNSUPPORTED before Hopper."""
    with _translating_errors("nvmlGpmMigSampleGet", _GPM_TROUBLES):
        pynvml.nvmlGpmMigSampleGet(handle, gpu_instance, sample)


def graphics_percent(before: GpmSample, after: GpmSample) -> float:
    """Return the share of the time between two samples of one instance in which its compute engine was active.

    They must be 0.1 s apart. Raises NvmlFailure also if NVML answers without this metric."""
    question = pynvml.c_nvmlGpmMetricsGet_t()
    question.version, question.numMetrics = pynvml.NVML_GPM_METRICS_GET_VERSION, 1
    question.sample1, question.sample2 = before, after
    question.metrics[0].metricId = pynvml.NVML_GPM_METRIC_GRAPHICS_UTIL
    with _translating_errors("nvmlGpmMetricsGet", _GPM_TROUBLES):
        metric = pynvml.nvmlGpmMetricsGet(question).metrics[0]
    if metric.nvmlReturn != pynvml.NVML_SUCCESS:
        trouble = _GPM_TROUBLES.get(metric.nvmlReturn, Trouble.PASSING)
        raise NvmlFailure(trouble, f"nvmlGpmMetricsGet: no GRAPHICS_UTIL (NVML {metric.nvmlReturn})")
    return float(metric.value)


def new_event_set() -> EventSet:
    """Return an empty set of events; free it before the session ends."""
    return EventSet(ask(pynvml.nvmlEventSetCreate))


def free_event_set(events: EventSet) -> None:
    """Free the set."""
    ask(pynvml.nvmlEventSetFree, events)


def watch_xids(handle: Handle, events: EventSet) -> None:
    """Have the device's critical errors put into the set from now on. UNSUPPORTED on some vGPUs."""
    with _translating_errors("nvmlDeviceRegisterEvents"):
        pynvml.nvmlDeviceRegisterEvents(handle, pynvml.nvmlEventTypeXidCriticalError, events)


def number_of(handle: Handle) -> int:
    """Return what tells one device of this session from the others, without asking it: it may be lost."""
    return int(ctypes.cast(handle, ctypes.c_void_p).value or 0)  # type: ignore[arg-type]  # a pointer of pynvml


def next_xid(events: EventSet) -> tuple[int, int, int | None, int | None] | None:
    """Return the next critical error without waiting: number of the device, Xid, GPU instance, compute instance.

    None: there is no further one."""
    try:
        with _translating_errors("nvmlEventSetWait_v2"):
            found = pynvml.nvmlEventSetWait_v2(events, 0)
    except NvmlFailure as failure:
        cause = failure.__cause__
        if isinstance(cause, pynvml.NVMLError) and cause.value == pynvml.NVML_ERROR_TIMEOUT:
            return None
        raise
    gpu, compute = (None if at == _NO_INSTANCE else int(at) for at in (found.gpuInstanceId, found.computeInstanceId))
    return number_of(found.device), int(found.eventData), gpu, compute


def common_ancestor(one: Handle, other: Handle) -> int:
    """Return what two devices share, in NVML's levels: 10 one switch ... 50 only the system."""
    return int(ask(pynvml.nvmlDeviceGetTopologyCommonAncestor, one, other))


def is_linked_by_nvlink(one: Handle, other: Handle) -> bool:
    """True if the two reach each other over NVLink, directly or through switches."""
    status = ask(pynvml.nvmlDeviceGetP2PStatus, one, other, pynvml.NVML_P2P_CAPS_INDEX_NVLINK)
    return bool(status == pynvml.NVML_P2P_STATUS_OK)


def nvlink_ends(handle: Handle) -> tuple[str, ...]:
    """Return the PCI bus id at the far end of each active NVLink, as in sysfs; empty text: not told."""
    ends: list[str] = []
    for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
        active = optional(partial(ask, pynvml.nvmlDeviceGetNvLinkState, handle, link))
        if active is None:  # no such link, and so no later one
            break
        if active:
            ends.append(optional(partial(_far_end, handle, link)) or "")
    return tuple(ends)


def _far_end(handle: Handle, link: int) -> str:
    with _translating_errors("nvmlDeviceGetNvLinkRemotePciInfo"):
        return sysfs_bus_id(str(pynvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, link).busId))


def _process(entry: Any) -> GpuProcess:
    instance = None if entry.gpuInstanceId == _NO_INSTANCE else int(entry.gpuInstanceId)
    used = None if entry.usedGpuMemory is None else int(entry.usedGpuMemory)
    return GpuProcess(pid=int(entry.pid), memory_bytes=used, gpu_instance=instance)


def _set_bits(words: Any) -> frozenset[int]:
    return frozenset(64 * place + bit for place, word in enumerate(words) for bit in range(64) if int(word) >> bit & 1)
