"""Cells that take a moment, for these tests."""

from coda_sim.runs import RunOrder
from coda_sim.workload import MonthConfig, WorkloadSource
from studies.cells import Cell

SMALL = MonthConfig(days=1, gpu_jobs=6, cpu_jobs=6, cluster="1x4x28")


def cell(seed: int = 1, policy: str = "fifo-skip") -> Cell:
    order = RunOrder(
        source=WorkloadSource(month=SMALL), cluster=SMALL.cluster, profiles="paper", policy=policy, seed=seed
    )
    return Cell(name=f"{policy} seed {seed}", order=order)
