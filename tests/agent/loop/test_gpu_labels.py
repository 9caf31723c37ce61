"""Whose GPU, and whose part of one, a scrape names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from prometheus_client import CollectorRegistry

from coda_agent.gpus import GpuReading, Health, LibraryState, Moment, Snapshot
from coda_agent.gpus.allocations import GpuPlace
from coda_agent.gpus.devices import Gpu, Instance, InstanceReading, Memory
from coda_agent.gpus.ownership import Belief, GpuOwner, Ownership
from coda_agent.report import LastWindow, Metrics
from coda_agent.sensor import Senses

GIB = 1 << 30
USED, BUSY = "coda_gpu_memory_used_bytes", "coda_gpu_utilization_ratio"
WHOLE = Gpu(uuid="GPU-1", index=0, minor=0, name="H100", pci_bus_id="0000:01:00.0", memory_bytes=80 * GIB)
PARTS = tuple(
    Instance(uuid=uuid, gpu_uuid="GPU-1", gpu_instance=at, compute_instance=0, memory_bytes=GIB, profile="3g.40gb")
    for uuid, at in (("MIG-a", 1), ("MIG-b", 2))
)
CUT = Gpu(
    uuid="GPU-1", index=0, minor=0, name="H100", pci_bus_id="0000:01:00.0", memory_bytes=1, mig=True, instances=PARTS
)


def owner(pod: str, container: str = "main") -> GpuOwner:
    return GpuOwner(pod_uid=f"uid-{pod}", namespace="team", pod=pod, container=container)


def place(part: str | None = None) -> GpuPlace:
    return GpuPlace(gpu_uuid="GPU-1", instance_uuid=part)


def owned(at: GpuPlace, *owners: GpuOwner) -> Ownership:
    return Ownership(place=at, owners=owners, belief=Belief.CONFIRMED)


def rows(name: str, reading: GpuReading, owners: Sequence[Ownership]) -> list[tuple[str, str, str, str, float]]:
    """(GPU instance, its profile, pod, container, value) of each sample."""
    registry = CollectorRegistry()
    metrics = Metrics(registry, "n1")
    for second in (1.0, 2.0):
        snapshot = Snapshot(at_s=second, library=LibraryState.READY, readings=(reading,))
        at = Moment(monotonic_s=second, wall_s=second, node_wall_s=second)
        metrics.show(LastWindow(senses=Senses(at=at, gpus=snapshot, ownerships=tuple(owners))))
    samples = [sample for family in registry.collect() for sample in family.samples if sample.name == name]
    labels = ("GPU_I_ID", "GPU_I_PROFILE", "pod", "container")
    return sorted((*(sample.labels[label] for label in labels), sample.value) for sample in samples)  # type: ignore[misc]  # four labels


def cut_reading(share: float | None = None) -> GpuReading:
    by_instance = {
        "MIG-a": InstanceReading(memory=Memory(total_bytes=40 * GIB, used_bytes=30 * GIB), share=share),
        "MIG-b": InstanceReading(memory=Memory(total_bytes=40 * GIB, used_bytes=2 * GIB)),
    }
    whole = Memory(total_bytes=80 * GIB, used_bytes=32 * GIB)
    return GpuReading(gpu=CUT, health=Health.READY, memory=whole, by_instance=by_instance)


def whole_reading() -> GpuReading:
    return GpuReading(
        gpu=WHOLE, health=Health.READY, share=0.5, memory=Memory(total_bytes=80 * GIB, used_bytes=32 * GIB)
    )


def test_each_slice_has_its_own_memory_and_owner() -> None:
    owners = [owned(place("MIG-a"), owner("alice")), owned(place("MIG-b"), owner("bob"))]
    assert rows(USED, cut_reading(), owners) == [
        ("1", "3g.40gb", "alice", "main", 30 * GIB),
        ("2", "3g.40gb", "bob", "main", 2 * GIB),
    ]


def test_a_slice_has_a_utilisation_only_where_it_was_measured() -> None:
    assert rows(BUSY, cut_reading(), []) == []
    assert rows(BUSY, cut_reading(share=0.7), []) == [("1", "3g.40gb", "", "", 0.7)]
    assert [row[-1] for row in rows("coda_gpu_busy_seconds_total", cut_reading(share=0.7), [])] == [0.7, 0]
    assert [row[-1] for row in rows("coda_gpu_measured_seconds_total", cut_reading(share=0.7), [])] == [1, 0]


def test_slices_that_share_an_instance_are_told_apart() -> None:
    parts = tuple(replace(part, gpu_instance=2, compute_instance=at) for at, part in enumerate(PARTS))
    reading = replace(cut_reading(), gpu=replace(CUT, instances=parts))
    assert [row[0] for row in rows(USED, reading, [])] == ["2/0", "2/1"]


def test_a_whole_gpu_has_one_row_without_a_slice() -> None:
    assert rows(USED, whole_reading(), [owned(place(), owner("carol"))]) == [("", "", "carol", "main", 32 * GIB)]


def test_what_several_pods_share_belongs_to_none_of_them_but_each_is_named() -> None:
    shared = [owned(place(), owner("carol"), owner("dave"))]
    assert rows(BUSY, whole_reading(), shared) == [("", "", "", "", 0.5)]
    assert rows("coda_gpu_owner", whole_reading(), shared) == [
        ("", "", "carol", "main", 1),
        ("", "", "dave", "main", 1),
    ]


def test_two_containers_of_one_pod_share_a_gpu_in_the_name_of_the_pod() -> None:
    shared = [owned(place(), owner("carol"), owner("carol", "sidecar"))]
    assert rows(BUSY, whole_reading(), shared) == [("", "", "carol", "", 0.5)]
