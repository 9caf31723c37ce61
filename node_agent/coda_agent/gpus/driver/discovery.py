"""Which devices there are and what they are: the NVML calls when a session opens, and MIG slices.

A value that a device does not tell is left out of its description. Only a device that fails is not described."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from coda_agent.gpus.devices import Gpu, Instance, Memory
from coda_agent.gpus.driver import nvml
from coda_agent.gpus.driver.nvml import Handle, NvmlFailure, Trouble, optional

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenDevice:
    """One open device."""

    gpu: Gpu
    handle: Handle
    can_mig: bool


def find_devices(cpu_words: int) -> tuple[tuple[OpenDevice, ...], tuple[str, ...]]:
    """Return (devices in order of UUID, one sentence for each device that is counted but does not open).

    `cpu_words`: words of 64 CPUs this node needs. Raises NvmlFailure if not even their number is told."""
    found: list[OpenDevice] = []
    refused: list[str] = []
    for index in range(nvml.count_devices()):
        try:
            found.append(describe_device(index, nvml.handle_at(index), cpu_words))
        except NvmlFailure as failure:
            refused.append(f"GPU {index} does not open: {failure}")
    return tuple(sorted(found, key=lambda device: device.gpu.uuid)), tuple(refused)


def describe_device(index: int, handle: Handle, cpu_words: int) -> OpenDevice:
    """Ask everything that is asked once. Raises NvmlFailure if the device fails, or does not tell its UUID."""
    mig = _or_none(partial(nvml.is_mig, handle))
    memory = _or_none(partial(nvml.memory_of, handle))
    gpu = Gpu(
        uuid=nvml.uuid_of(handle),
        index=index,
        minor=_or_none(partial(nvml.minor_of, handle)),
        name=_or_none(partial(nvml.name_of, handle)) or "unknown",
        pci_bus_id=nvml.pci_bus_id_of(handle),
        memory_bytes=None if memory is None else memory.total_bytes,
        cpus=_or_none(partial(nvml.cpus_near, handle, cpu_words)) or frozenset(),
        numa_nodes=_or_none(partial(nvml.numa_nodes_near, handle)) or frozenset(),
        mig=bool(mig),
    )
    return OpenDevice(gpu=gpu, handle=handle, can_mig=mig is not None)


def find_instances(device: OpenDevice) -> tuple[tuple[Instance, Memory], ...]:
    """Return the slices of a device in MIG mode with the memory of each, by UUID, without slices that vanish
    meanwhile."""
    found: list[tuple[Instance, Memory]] = []
    for place in range(nvml.slice_places(device.handle)):
        try:
            found.append(_slice(device, nvml.slice_at(device.handle, place)))
        except NvmlFailure as failure:
            if failure.trouble not in (Trouble.NOTHING_NEW, Trouble.UNSUPPORTED):
                raise
    return tuple(sorted(found, key=lambda pair: pair[0].uuid))


def _slice(device: OpenDevice, handle: Handle) -> tuple[Instance, Memory]:
    memory = nvml.memory_of(handle)
    gpu_instance, compute_instance = nvml.slice_ids(handle)
    name = _or_none(partial(nvml.name_of, handle)) or ""
    return Instance(
        uuid=nvml.uuid_of(handle),
        gpu_uuid=device.gpu.uuid,
        gpu_instance=gpu_instance,
        compute_instance=compute_instance,
        memory_bytes=memory.total_bytes,
        profile=name.partition(" MIG ")[2],
    ), memory


def _or_none(question: Callable[[], _T]) -> _T | None:
    """The answer, or None from a device that does not give it, garbles it or refuses it.

    One that is lost fails elsewhere, too: its UUID is not optional."""
    try:
        return optional(question)
    except NvmlFailure as failure:
        if failure.trouble in (Trouble.PASSING, Trouble.DENIED, Trouble.UNKNOWN):
            return None
        raise
