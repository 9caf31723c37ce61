"""Two unmodified scripts on one GPU, and the agent's coordinator between them, end to end."""

from __future__ import annotations

import statistics
from dataclasses import replace

from coda.sharing.config import SharingConfig
from tests.framework.shared_node import SharedNode, coordinating, shared_gpu
from tests.lengths import LONG

GUARANTEED, OPPORTUNISTIC = (5, 25), (12, 0)  # layers, milliseconds of the CPU per mini-batch
BUSY_MACHINE = SharingConfig(arriving_s=2, measure_s=2, stable_spread=0.2, unstable_spread=1.0)
"""Step times of a test machine scatter: other tests run beside."""


def test_the_guaranteed_job_keeps_its_speed_and_the_other_gets_the_rest(node: SharedNode) -> None:
    """Short: that both train and the share rises from the floor. Long: medians of five runs against each alone."""
    node.gpus = replace(node.gpus, kernel_us=400)
    seconds, quiet_s, runs = (40, 20, 5) if LONG else (12, 6, 1)
    slower, faster = [], []
    for _ in range(runs):
        alone = [node.start("train.py", 8, *job).result() for job in (GUARANTEED, OPPORTUNISTIC)] if LONG else []
        gpu = shared_gpu(node.gpus.memory_bytes, guaranteed="g", opportunistic=["o"])
        with coordinating(node.socket, [gpu], config=BUSY_MACHINE) as coordinator:
            first = node.start("train.py", seconds, *GUARANTEED, quiet_s, pod="g")
            second = node.start("train.py", seconds, *OPPORTUNISTIC, quiet_s, pod="o")
            together = first.result(), second.result()
        shares = [share for phase, share, _ in coordinator.history if phase in ("Raising", "Backing")]
        assert shares
        assert max(shares) > BUSY_MACHINE.floor_share
        assert all(done["steps"] > 5 for done in together)
        assert coordinator.shared.server.faults == 0
        if LONG:
            slower.append(together[0]["median_s"] / alone[0]["median_s"])
            faster.append(together[1]["per_s"] / alone[1]["per_s"])
    if LONG:
        assert statistics.median(slower) <= 1.03
        assert statistics.median(faster) >= 0.25
