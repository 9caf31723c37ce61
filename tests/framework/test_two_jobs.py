"""Two unmodified scripts on one GPU, and the agent's coordinator between them, end to end."""

from __future__ import annotations

import statistics
import time
from dataclasses import replace

import pytest

from coda.sharing.config import SharingConfig
from tests.framework.shared_node import SharedNode, coordinating, shared_gpu
from tests.lengths import LONG

GUARANTEED, OPPORTUNISTIC = (5, 25), (12, 0)  # layers, milliseconds of the CPU per mini-batch
BUSY_MACHINE = SharingConfig(arriving_s=2, measure_s=2, stable_spread=0.2, unstable_spread=1.0)
"""Step times of a test machine scatter: other tests run beside."""


def test_the_share_rises_beside_a_guaranteed_job(node: SharedNode) -> None:
    """From the floor, over a measurement in which the neighbour stands still. No speed is judged here."""
    node.gpus = replace(node.gpus, kernel_us=400)
    gpu = shared_gpu(node.gpus.memory_bytes, guaranteed="g", opportunistic=["o"])
    with coordinating(node.socket, [gpu], config=BUSY_MACHINE) as coordinator:
        jobs = [node.start("train.py", 600, *job, pod=pod) for pod, job in (("g", GUARANTEED), ("o", OPPORTUNISTIC))]
        end_s = time.monotonic() + 120
        while time.monotonic() < end_s:
            rising = [share for phase, share, _ in coordinator.history if phase == "Raising"]
            if max(rising, default=0) > BUSY_MACHINE.floor_share:
                break
            time.sleep(0.1)  # the coordinator's rounds take 0.25 s
        else:
            pytest.fail(f"the share never rose: {coordinator.history[-3:]}")
        assert [job.process.poll() for job in jobs] == [None, None]
        assert ("Measuring", 0) in {(phase, share) for phase, share, _ in coordinator.history}
        assert coordinator.shared.server.faults == 0


@pytest.mark.skipif(not LONG, reason="medians of five runs, 8 minutes: make verify")
def test_the_guaranteed_job_keeps_its_speed_and_the_other_gets_the_rest(node: SharedNode) -> None:
    node.gpus = replace(node.gpus, kernel_us=400)
    gpu = shared_gpu(node.gpus.memory_bytes, guaranteed="g", opportunistic=["o"])
    slower, faster = [], []
    for _ in range(5):
        alone = [node.start("train.py", 10, *job).result() for job in (GUARANTEED, OPPORTUNISTIC)]
        with coordinating(node.socket, [gpu], config=BUSY_MACHINE):
            first = node.start("train.py", 50, *GUARANTEED, 25, pod="g")
            second = node.start("train.py", 50, *OPPORTUNISTIC, 25, pod="o")
            together = first.result(), second.result()
        slower.append(together[0]["median_s"] / alone[0]["median_s"])
        faster.append(together[1]["per_s"] / alone[1]["per_s"])
    assert statistics.median(slower) <= 1.03, (slower, faster)
    assert statistics.median(faster) >= 0.25, (slower, faster)
