"""From the declaration on a pod to its limit."""

from __future__ import annotations

from dataclasses import replace

from coda.sharing.config import GIB
from coda_agent.gpus import GpuReading, Health
from coda_agent.gpus.devices import Gpu
from coda_agent.sharing import shared_gpus_from
from tests.agent.sharing.test_coordinator import GPU, Board, claim, grant, pod, steps


def test_a_guest_may_have_what_its_job_declared_before_it_has_had_it() -> None:
    device = Gpu(uuid=GPU, index=0, minor=0, name="", pci_bus_id="", memory_bytes=80 * GIB)
    pods = [replace(pod("a"), gpu_bytes=55 * GIB), replace(pod("b"), gpu_bytes=20 * GIB)]
    grants = [grant(name, "coda.scheduler/gpu-0", f"{GPU}::{seat}") for seat, name in enumerate("ab")]
    board = Board(*shared_gpus_from([GpuReading(gpu=device, health=Health.READY)], grants, pods, {}))
    for name in "ab":
        board.coordinator.join(name, f"uid-{name}")
    orders = board.seconds(3, a=steps(50, claim(6, reserve=0)), b=steps(50, claim(9, reserve=0)))
    assert (orders["a"].device_bytes or 0) >= 55 * GIB
    assert (orders["b"].device_bytes or 0) >= 20 * GIB
