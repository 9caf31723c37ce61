from __future__ import annotations

import pytest

from coda.cache import wake_s
from coda.cache.queue import waiting_jobs
from coda.model import Job
from tests.builders import job, node, planned, running, world

NODES = [node("n1"), node("n2")]


@pytest.mark.parametrize(
    ("jobs", "expected"),
    [
        pytest.param([job("a", priority=1), job("b", priority=2)], ["b", "a"], id="higher priority first"),
        pytest.param([job("a", queued_s=2), job("b", queued_s=1)], ["b", "a"], id="then the longer queued"),
        pytest.param([job("b"), job("a")], ["a", "b"], id="then the id"),
        pytest.param([job("a", priority=-1), job("b", queued_s=9)], ["b", "a"], id="priority beats age"),
        pytest.param(
            [planned(job("a"), "n1"), running(job("b"), "n2"), job("c")], ["c"], id="only jobs without a plan"
        ),
    ],
)
def test_waiting_jobs_come_in_order(jobs: list[Job], expected: list[str]) -> None:
    assert [one.id for one in waiting_jobs(world(NODES, jobs))] == [f"team/{name}" for name in expected]


@pytest.mark.parametrize(
    ("jobs", "expected"),
    [
        pytest.param([job("a", not_before_s=30), job("b", not_before_s=20)], 20, id="the earliest end of a back-off"),
        pytest.param([job("a", not_before_s=10), job("b")], None, id="back-offs that have ended wake nobody"),
        pytest.param([planned(job("a", not_before_s=30), "n1")], None, id="only waiting jobs count"),
    ],
)
def test_wakes_when_time_alone_lets_a_job_start(jobs: list[Job], expected: float | None) -> None:
    assert wake_s(world(NODES, jobs), now_s=10) == expected
