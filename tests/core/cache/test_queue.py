from __future__ import annotations

import pytest

from coda.cache import wake_s
from coda.cache.gang_class import GangClass
from coda.cache.queue import waiting_jobs
from coda.cache.world_index import WorldIndex
from coda.history import RunTimes
from coda.history.queue_estimates import ExpectedRuns
from coda.model import Job
from coda.policy import PolicyConfig
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


def only_class(index: WorldIndex) -> GangClass:
    (gang_class,) = index.queue.class_by_key.values()
    return gang_class


def test_a_job_like_one_that_has_left_finds_what_was_known_of_its_ranks() -> None:
    index = WorldIndex(PolicyConfig(), ExpectedRuns(RunTimes()))
    index.refresh(world(NODES, [job("a")]))
    known = index.rank_class(only_class(index))
    index.refresh(world(NODES, []))
    index.refresh(world(NODES, [job("b")]))
    assert only_class(index).job.id == "team/b"
    assert only_class(index).rank_class is known


def test_what_was_known_on_other_nodes_is_forgotten() -> None:
    index = WorldIndex(PolicyConfig(), ExpectedRuns(RunTimes()))
    index.refresh(world(NODES, [job("a")]))
    index.rank_class(only_class(index))
    index.refresh(world(NODES, []))
    index.refresh(world([*NODES, node("n3")], []))
    index.refresh(world([*NODES, node("n3")], [job("b")]))
    assert only_class(index).rank_class is None
