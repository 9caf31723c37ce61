"""Whom a cycle looks at of those that waited too long: who never fits stands in nobody's way."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from coda.cycle import decide
from coda.model import Decision, Job, JobId
from coda.policy import PolicyConfig
from coda.promises import PromiseBook
from tests.builders import job, resources, world
from tests.core.promises.test_promises import ARRIVAL, CODA, HALF, NODES, NOW_S, gpu, started

DAEMONS = {one.name: resources(cores=1, memory_gib=1, pods=1) for one in NODES}
"""What daemons take of each node: no job gets all its cores, though no node says so."""


def never(number: int) -> Job:
    """A job, of a class of its own, that wants more cores than daemons leave."""
    return job(f"never{number:02}", gpus=1, cores=12 - number / 100, memory_gib=0, queued_s=NOW_S - 9000 + number)


def pod_without_cores(number: int) -> Job:
    """A pod whose price is nothing, and that wants more memory than daemons leave."""
    memory_gib = 384 - number / 100
    return job(f"none{number:02}", gpus=0, cores=0, memory_gib=memory_gib, queued_s=NOW_S - 9000 + number)


def plans(count: int, *jobs: Job, book: PromiseBook, config: PolicyConfig = ARRIVAL) -> list[Decision]:
    """One each second; nobody comes or goes."""
    now = world(NODES, jobs, foreign=DAEMONS)
    return [decide(now, config, NOW_S + number, book=book) for number in range(count)]


@pytest.mark.parametrize("config", [ARRIVAL, CODA], ids=lambda config: config.policy)
@pytest.mark.parametrize("blocker", [never, pod_without_cores])
@pytest.mark.parametrize("count", [3, 4, 9])
def test_nodes_are_kept_for_a_job_behind_any_number_that_never_fit(
    config: PolicyConfig, blocker: Callable[[int], Job], count: int
) -> None:
    book, large = PromiseBook(), gpu("large", 4, waits_s=2000)
    blockers = [blocker(number) for number in range(count)]
    found = plans(10, *HALF, *blockers, large, gpu("small", 2), book=book, config=config)
    assert book.promise_by_job[large.id].nodes
    assert "small" not in started(found[-1])


def test_a_cycle_looks_at_one_more_of_many() -> None:
    book, jobs = PromiseBook(), (*HALF, *map(never, range(30)))
    plans(1, *jobs, book=book)
    assert len(book.promise_by_job) == 5
    plans(8, *jobs, book=book)
    assert len(book.promise_by_job) == 5 + 7  # in the first of these, the time is the same


def test_to_decide_twice_at_one_time_gives_the_same_turn() -> None:
    jobs = (*HALF, *map(never, range(9)), gpu("large", 4, waits_s=2000), gpu("small", 2))
    once, twice, now = PromiseBook(), PromiseBook(), world(NODES, jobs, foreign=DAEMONS)
    for number in range(10):
        plan = decide(now, ARRIVAL, NOW_S + number, book=once)
        assert [decide(now, ARRIVAL, NOW_S + number, book=twice) for _ in range(2)] == [plan, plan]
    assert once.promise_by_job[JobId("team/large")].nodes == twice.promise_by_job[JobId("team/large")].nodes


def test_whoever_waits_no_more_has_no_turn_to_remember() -> None:
    book = PromiseBook()
    plans(9, *HALF, *map(never, range(9)), book=book)
    assert book.looked_s_by_job
    plans(1, *HALF, book=book)
    assert not book.looked_s_by_job
