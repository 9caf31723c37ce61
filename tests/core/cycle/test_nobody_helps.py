"""A class that fits nowhere, whoever stops, asks for no look at who is spared: nobody is tried for it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coda.cycle import decide
from coda.history import FinishedRun
from coda.model import Decision
from coda.policy import ArraysConfig, PolicyConfig
from coda.promises import PromiseBook
from tests.builders import job, node, running, world

NOW_S = 1_000_000.0
CONFIG = PolicyConfig(policy="coda", levels=(), arrays=ArraysConfig(reserve_cores_per_gpu=1, large_share=1.0))


def decision_for(memory_gib: int, *, replicas: int, gpus: int = 1) -> Decision:
    """Two nodes of 8 GPUs and 500 GiB. On each, jobs of 1 GPU whose slice is over, which are likely to end soon and so
    are spared, and a CPU job that has 400 GiB. One gang waits that is likely to run for days."""
    book = PromiseBook()
    for _ in range(20):
        book.run_times.add(FinishedRun("long", "", 1, 300_000.0))
        book.run_times.add(FinishedRun("short", "", 1, 5600.0))
    nodes, jobs = (node("n1", gpus=8, memory_gib=500, cores=200), node("n2", gpus=8, memory_gib=500, cores=200)), []
    for number in range(16):
        name = nodes[number % 2].name
        one = running(job(f"r{number}", gpus=1, cores=1, memory_gib=0, resumable=True, user="short"), name)
        assert one.placement is not None
        jobs.append(replace(one, placement=replace(one.placement, committed_s=NOW_S - 5000), as_of_s=NOW_S - 5000))
    jobs += [running(job(f"c-{one.name}", gpus=0, cores=1, memory_gib=400), one.name) for one in nodes]
    gang = job("w", gpus=gpus, cores=1, memory_gib=memory_gib, replicas=replicas, resumable=True, user="long")
    jobs.append(replace(gang, queued_s=NOW_S - 100, as_of_s=NOW_S - 100))
    return decide(world(nodes, jobs), CONFIG, NOW_S, book=book)


@pytest.mark.parametrize(
    ("memory_gib", "replicas", "gpus", "helps"),
    [
        (100, 1, 1, True),
        (101, 1, 1, False),
        (50, 4, 1, True),  # two ranks on each node
        (51, 4, 1, False),
        (100, 2, 8, True),
        (100, 3, 8, False),
    ],
)
def test_spared_jobs_are_looked_at_again_only_if_stopping_all_would_help(
    memory_gib: int, replicas: int, gpus: int, *, helps: bool
) -> None:
    found = decision_for(memory_gib, replicas=replicas, gpus=gpus)
    assert not found.stops
    assert (found.wake_s is not None) is helps
