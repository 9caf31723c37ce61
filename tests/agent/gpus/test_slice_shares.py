"""Whose utilisation decides the cores of a pod that has MIG slices."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from coda_agent.gpus import GpuReading, Health, LibraryState, Moment, Snapshot
from coda_agent.gpus.allocations import GpuPlace
from coda_agent.gpus.devices import Gpu, Instance, InstanceReading
from coda_agent.gpus.ownership import Belief, GpuOwner, Ownership
from coda_agent.sensor import Senses
from tests.agent.tuning.gangs import rank_pod

PARTS = tuple(
    Instance(uuid=uuid, gpu_uuid="GPU-1", gpu_instance=at, compute_instance=0, memory_bytes=1, has_utilisation=True)
    for at, uuid in enumerate(("a", "b", "c"))
)
GPU = Gpu(uuid="GPU-1", index=0, minor=0, name="H100", pci_bus_id="", memory_bytes=1, mig=True, instances=PARTS)


@pytest.mark.parametrize(
    ("shares", "least", "mean"),
    [
        pytest.param({"a": 0.9, "b": 0.5, "c": 0.1}, 0.5, 0.7, id="its own slices only"),
        pytest.param({"a": 0.9, "b": None, "c": 0.1}, None, None, id="one is not measured"),
        pytest.param({"a": 0.9}, None, None, id="one has gone"),
    ],
)
def test_a_pod_is_as_busy_as_its_own_slices(
    shares: Mapping[str, float | None], least: float | None, mean: float | None
) -> None:
    reading = GpuReading(
        gpu=GPU,
        health=Health.READY,
        by_instance={uuid: InstanceReading(share=share) for uuid, share in shares.items()},
    )
    pod = rank_pod(0, cores=4)
    owner = GpuOwner(pod_uid=pod.uid, namespace=pod.namespace, pod=pod.name, container="main")
    owned = [
        Ownership(place=GpuPlace(gpu_uuid="GPU-1", instance_uuid=uuid), owners=(owner,), belief=Belief.CONFIRMED)
        for uuid in ("a", "b")
    ]
    snapshot = Snapshot(at_s=1.0, library=LibraryState.READY, readings=(reading,))
    senses = Senses(at=Moment(monotonic_s=1.0, wall_s=1.0, node_wall_s=1.0), gpus=snapshot, ownerships=tuple(owned))
    assert senses.least_gpu_share_of(pod) == least
    assert senses.gpu_share_of(pod) == (None if mean is None else pytest.approx(mean))
