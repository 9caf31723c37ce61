"""One row for each GPU of a scrape, or for each MIG slice of it, with the labels of NVIDIA's dcgm-exporter.

Nothing that several pods share is in the name of one of them. Values only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from coda_agent.gpus import GpuReading
from coda_agent.gpus.devices import Gpu, InstanceReading, Memory
from coda_agent.gpus.ownership import GpuOwner, Ownership

GPU_LABELS: Final = ("gpu", "UUID", "pci_bus_id", "device", "modelName", "hostname")
PLACE_LABELS: Final = (*GPU_LABELS, "GPU_I_ID", "GPU_I_PROFILE")  # the last two are empty of a whole GPU
OWNER_LABELS: Final = ("namespace", "pod", "container", "pod_uid")

Labels = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuRow:
    """A whole GPU, or one slice. What was not measured is None."""

    place: Labels
    owners: tuple[Labels, ...]  # of each container that has it
    share: float | None
    memory: Memory | None

    @property
    def labels(self) -> Labels:
        """Of its values: the place, and its one owner; of containers of one pod, that pod. Else no owner."""
        pods = {(namespace, pod, uid) for namespace, pod, _, uid in self.owners}
        if len(pods) != 1:
            return (*self.place, *[""] * len(OWNER_LABELS))
        namespace, pod, container, uid = self.owners[0]
        return (*self.place, namespace, pod, container if len(self.owners) == 1 else "", uid)


class BusySeconds(NamedTuple):
    """How long a GPU or slice was busy, and how long that was measured."""

    busy_s: float = 0.0
    measured_s: float = 0.0

    def after(self, share: float | None, passed_s: float) -> BusySeconds:
        """Return it after so many seconds more, of which it was busy for `share`; None: not measured."""
        if share is None:
            return self
        return BusySeconds(self.busy_s + share * passed_s, self.measured_s + passed_s)


def gpu_labels(gpu: Gpu, node: str) -> Labels:
    """Return the values of GPU_LABELS."""
    return (str(gpu.index), gpu.uuid, gpu.pci_bus_id, f"nvidia{gpu.minor}", gpu.name, node)


def gpu_rows(readings: Sequence[GpuReading], ownerships: Sequence[Ownership], node: str) -> Iterator[GpuRow]:
    """Yield the rows in the order of `readings`; a GPU in MIG mode has one for each slice, and none as a whole.

    Slices that share a GPU instance are told apart by their compute instance: `GPU_I_ID` is then 2/0, 2/1."""
    owners_by_uuid = {one.place.uuid: tuple(map(_owner_labels, one.owners)) for one in ownerships}
    for reading in readings:
        gpu = reading.gpu
        labels = gpu_labels(gpu, node)
        if not gpu.mig:
            owners = owners_by_uuid.get(gpu.uuid, ())
            yield GpuRow(place=(*labels, "", ""), owners=owners, share=reading.share, memory=reading.memory)
        slices = Counter(part.gpu_instance for part in gpu.instances)
        for part in gpu.instances:
            measured = reading.by_instance.get(part.uuid, InstanceReading())
            number = f"{part.gpu_instance}/{part.compute_instance}" if slices[part.gpu_instance] > 1 else ""
            yield GpuRow(
                place=(*labels, number or str(part.gpu_instance), part.profile),
                owners=owners_by_uuid.get(part.uuid, ()),
                share=measured.share,
                memory=measured.memory,
            )


def _owner_labels(owner: GpuOwner) -> Labels:
    return owner.namespace, owner.pod, owner.container, owner.pod_uid or ""
