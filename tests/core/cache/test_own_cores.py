"""What a CPU job is told that may only take cores that its array owns."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coda.cycle import decide
from coda.model import Job, WaitCode
from coda.model.decision import Refusal
from coda.policy import ArraysConfig, PolicyConfig
from tests.builders import job, node, running, world

NODES = (node("n1", gpus=4, cores=32), node("n2", gpus=4, cores=32))
KEEPS_ALL, KEEPS_HALF = (
    PolicyConfig(policy="coda", arrays=ArraysConfig(reserve_cores_per_gpu=cores)) for cores in (8, 4)
)


def cpu(name: str, cores: int) -> Job:
    return replace(job(name, gpus=0, cores=cores), may_borrow=False)


def told(config: PolicyConfig, *jobs: Job) -> tuple[Refusal, ...]:
    return decide(world(NODES, jobs), config, 100.0).refusals


@pytest.mark.parametrize(
    ("config", "jobs", "message"),
    [
        pytest.param(
            KEEPS_ALL,
            [cpu("bare", 2)],
            "needs 2 cores and may not borrow; the CPU array owns at most no core on any node",
            id="the CPU array owns nothing",
        ),
        pytest.param(
            KEEPS_HALF,
            [cpu("bare", 20)],
            "needs 20 cores and may not borrow; the CPU array owns at most 16 cores on any node",
            id="it owns too few anywhere",
        ),
        pytest.param(
            KEEPS_HALF,
            [running(cpu("x", 16), "n1"), running(cpu("y", 10), "n2"), cpu("bare", 7)],
            "needs 7 cores and may not borrow; other jobs leave the CPU array at most 6 cores on any node",
            id="others use them",
        ),
    ],
)
def test_a_job_that_may_not_borrow_is_told_of_its_own_cores(
    config: PolicyConfig, jobs: list[Job], message: str
) -> None:
    (refusal,) = told(config, *jobs)
    assert (refusal.code, refusal.message) == (WaitCode.INSUFFICIENT_CPU, message)
