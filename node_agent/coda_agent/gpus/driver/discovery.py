"""Which devices there are and what they are: the NVML calls when a session opens, and MIG slices.

A value that a device does not tell is left out of its description. Only a device that fails is not described."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from coda_agent.gpus.devices import Gpu, Instance, Memory
from coda_agent.gpus.driver import nvml
from coda_agent.gpus.driver.nvml import ENDS_ROUND, Handle, NvmlFailure, Trouble, optional

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


def find_instances(
    device: OpenDevice, known: Mapping[int, Instance]
) -> tuple[Mapping[int, tuple[Instance, Memory | None]], tuple[str, ...]]:
    """Return the slices of a device in MIG mode with the memory of each, by place, and what could not be asked.

    A slice that vanishes meanwhile is left out. One that may not be asked, or does not answer, is as it was `known`,
    or left out, too. Raises NvmlFailure if nothing more can be asked of the device."""
    found: dict[int, tuple[Instance, Memory | None]] = {}
    failures: list[str] = []
    try:
        places = nvml.slice_places(device.handle)
    except NvmlFailure as failure:
        failures += _told(failure)
        return {place: (one, None) for place, one in known.items() if failures}, tuple(failures)
    for place in range(places):
        try:
            instance, memory, problems = _slice(device, nvml.slice_at(device.handle, place))
            found[place] = (instance, memory)
        except NvmlFailure as failure:
            problems = _told(failure)
            if problems and place in known:
                found[place] = (known[place], None)
        failures += problems
    return found, tuple(dict.fromkeys(failures))


def _slice(device: OpenDevice, handle: Handle) -> tuple[Instance, Memory | None, tuple[str, ...]]:
    gpu_instance, compute_instance = nvml.slice_ids(handle)
    name = _or_none(partial(nvml.name_of, handle)) or ""
    memory, problems = None, tuple[str, ...]()
    try:
        memory = nvml.memory_of(handle)
    except NvmlFailure as failure:
        problems = _told(failure)
    instance = Instance(
        uuid=nvml.uuid_of(handle),
        gpu_uuid=device.gpu.uuid,
        gpu_instance=gpu_instance,
        compute_instance=compute_instance,
        memory_bytes=None if memory is None else memory.total_bytes,
        profile=name.partition(" MIG ")[2],
    )
    return instance, memory, problems


def _told(failure: NvmlFailure) -> tuple[str, ...]:
    """What is to be said of a question about slices; nothing where there is no slice. Raises what ends the round."""
    if failure.trouble in ENDS_ROUND:
        raise failure
    return () if failure.trouble in (Trouble.NOTHING_NEW, Trouble.UNSUPPORTED) else (str(failure),)


def _or_none(question: Callable[[], _T]) -> _T | None:
    """The answer, or None from a device that does not give it, garbles it or refuses it.

    One that is lost fails elsewhere, too: its UUID is not optional."""
    try:
        return optional(question)
    except NvmlFailure as failure:
        if failure.trouble in (Trouble.PASSING, Trouble.DENIED, Trouble.UNKNOWN):
            return None
        raise
