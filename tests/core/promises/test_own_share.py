"""A promise to a CPU job that may not borrow: only cores of its own array are kept for it, and only these count."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coda.cycle import decide
from coda.model import Job, JobId
from coda.policy import ArraysConfig
from coda.promises import PromiseBook
from tests.builders import node, world
from tests.core.promises.test_promises import CODA, NOW_S, decided, gpu, ran, resumable, started

CONFIG = replace(CODA, arrays=ArraysConfig(reserve_cores_per_gpu=4, large_share=0.5))
NODES = (node("a", gpus=2, cores=16),)
"""Eight of its cores belong to the CPU array."""
SERVICE = JobId("team/service")


def own(name: str, cores: int, *, waits_s: float = 0.0) -> Job:
    """A CPU job that may not borrow."""
    return replace(gpu(name, 0, cores=cores, waits_s=waits_s), may_borrow=False)


USED = ran(own("used", 4), "a", for_s=500)
WAITS = own("service", 6, waits_s=2000)


def test_no_gpu_job_is_kept_from_its_own_cores_for_a_cpu_job_that_may_not_use_them() -> None:
    """Twelve cores are free, but only four of the eight that belong to the CPU array."""
    book, train = PromiseBook(), gpu("train", 2, cores=8)
    assert started(decided(USED, WAITS, train, config=CONFIG, nodes=NODES, book=book)) == {"train": ("a",)}
    assert book.promise_by_job[SERVICE].start_s > NOW_S
    running = ran(train, "a", for_s=0)
    assert started(decided(running, WAITS, config=CONFIG, nodes=NODES, book=book)) == {"service": ("a",)}


@pytest.mark.parametrize(("cores", "starts"), [(2, {"other"}), (3, set())])
def test_cores_of_its_array_are_kept_for_it(cores: int, starts: set[str]) -> None:
    """Two of the eight are left, once those end that hold four."""
    assert set(started(decided(USED, WAITS, own("other", cores), config=CONFIG, nodes=NODES))) == starts


def test_it_can_start_at_the_latest_when_its_array_gets_enough_back_by_deadlines() -> None:
    lent = ran(gpu("lent", 0, cores=1), "a", for_s=500, limit_s=510)
    assert lent.placement is not None
    lent = replace(lent, placement=replace(lent.placement, borrows=True))
    book = PromiseBook()
    decided(replace(USED, run_limit_s=1000.0), lent, WAITS, config=CONFIG, nodes=NODES, book=book)
    assert book.promise_by_job[SERVICE].start_s == NOW_S + 500
    assert book.promise_by_job[SERVICE].is_certain


def test_nothing_is_kept_where_nobody_gives_its_array_enough_back() -> None:
    train = ran(gpu("train", 1, cores=2), "a", for_s=500, limit_s=600)
    endless = ran(own("endless", 4), "a", for_s=1e8)
    book, other = PromiseBook(), own("other", 4)
    assert set(started(decided(train, endless, WAITS, other, config=CONFIG, nodes=NODES, book=book))) == {"other"}
    assert not book.promise_by_job[SERVICE].nodes


def test_only_who_holds_cores_of_its_array_stops_for_it() -> None:
    config = replace(CONFIG, promise_price=0.0)
    train = ran(gpu("train", 2, cores=2), "a", for_s=500)
    lent = resumable(ran(gpu("lent", 0, cores=5), "a", for_s=50))
    assert lent.placement is not None
    lent = replace(lent, placement=replace(lent.placement, borrows=True))

    def stops(*jobs: Job) -> set[str]:
        return {stop.job for stop in decide(world(NODES, jobs), config, NOW_S).stops}

    assert stops(train, lent, USED, WAITS) == set()
    assert stops(train, lent, resumable(USED), WAITS) == {"team/used", "team/lent"}
    assert stops(train, resumable(USED), WAITS) == {"team/used"}
