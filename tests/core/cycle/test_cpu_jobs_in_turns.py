"""Thousands of CPU jobs could start at once: each cycle starts some hundreds, in order, and holds up no gang."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coda.cache.array_capacity import ArrayCapacity
from coda.cache.judging_budget import CPU_STARTS
from coda.cache.own_cores import OwnCores
from coda.cache.world_index import PlannerCache
from coda.cycle import CycleCache, CycleResult, CycleSnapshot, decide, run_cycle
from coda.model import Job
from coda.model.decision import Start, WaitCode
from coda.policy import PolicyConfig
from coda.promises import PromiseBook
from tests.builders import job, node, running, world

CODA = PolicyConfig(policy="coda")
NODES = tuple(node(f"n{number:02}", rack=f"r{number // 8}") for number in range(40))
EARLY_S, LATE_S = 0.0, 99_900.0  # when jobs were queued: long ago, or just now
NOW_S = 100_000.0


def cpu_jobs(count: int, *, queued_s: float = LATE_S) -> list[Job]:
    """Of three users in turns, who ask for different things."""
    shapes = ((1.0, 1.0), (1.5, 1.0), (1.0, 4.0))
    jobs = []
    for number in range(count):
        cores, memory_gib = shapes[number % 3]
        name, namespace, came_s = f"c{number:04}", f"user-{number % 3}", queued_s + number / 100
        jobs.append(job(name, namespace=namespace, gpus=0, cores=cores, memory_gib=memory_gib, queued_s=came_s))
    return jobs


def cycle(cache: CycleCache, jobs: Iterable[Job]) -> CycleResult:
    return run_cycle(CycleSnapshot(world=world(NODES, jobs), epoch=1, now_s=NOW_S), CODA, cache)


def of_cpu_jobs(starts: Iterable[Start]) -> list[Start]:
    return [start for start in starts if "/c" in start.job]


@pytest.mark.parametrize("queued_s", [EARLY_S, LATE_S], ids=["overdue", "new"])
def test_some_hundreds_start_in_a_cycle_and_the_others_in_the_next_ones(queued_s: float) -> None:
    jobs = {one.id: one for one in cpu_jobs(1000, queued_s=queued_s)}
    alone = of_cpu_jobs(decide(world(NODES, jobs.values()), CODA, NOW_S).starts)
    assert len(alone) == 1000
    cache, started = CycleCache(time.thread_time), 0
    while started < 1000:
        result = cycle(cache, jobs.values())
        starts = result.decision.starts
        assert len(starts) == min(CPU_STARTS, 1000 - started)
        if started == 0:
            assert list(starts) == alone[:CPU_STARTS], "in the same order, at the same places"
        started += len(starts)
        waiting = {refusal.code for refusal in result.decision.refusals}
        assert waiting == ({WaitCode.HELD_BY_POLICY} if started < 1000 else set())
        assert len(result.decision.refusals) == 1000 - started
        assert result.wake_s is None if started == 1000 else result.wake_s is not None and result.wake_s <= NOW_S + 1
        jobs |= {start.job: running(jobs[start.job], *start.nodes) for start in starts}
    assert cycle(cache, jobs.values()).decision.starts == ()


def test_gangs_start_beside_them() -> None:
    gangs = [job(f"g{number}", gpus=8, cores=8, replicas=2, queued_s=LATE_S + 50) for number in range(5)]
    starts = cycle(CycleCache(time.thread_time), [*cpu_jobs(1000), *gangs]).decision.starts
    assert {start.job for start in starts} > {gang.id for gang in gangs}
    assert len(of_cpu_jobs(starts)) == CPU_STARTS


def test_one_that_fits_nowhere_says_what_is_short() -> None:
    jobs = [*cpu_jobs(1000), job("huge", gpus=0, cores=100, queued_s=LATE_S - 1)]
    refusals = cycle(CycleCache(time.thread_time), jobs).decision.refusals
    codes = {refusal.job: refusal.code for refusal in refusals}
    assert codes.pop(jobs[-1].id) is WaitCode.NEVER_FITS
    assert {*codes.values()} == {WaitCode.HELD_BY_POLICY}


@settings(max_examples=100)
@given(
    taken=st.lists(st.tuples(st.integers(0, 4), st.sampled_from([0, 1]), st.integers(1, 30)), max_size=12),
    wanted=st.lists(st.tuples(st.sampled_from([1.0, 3.0, 7.0]), st.integers(1, 3)), min_size=1, max_size=12),
)
def test_places_on_own_cores_are_those_of_a_first_look(
    taken: list[tuple[int, int, int]], wanted: list[tuple[float, int]]
) -> None:
    nodes = NODES[:5]
    held = [
        running(job(f"h{number}", gpus=gpus, cores=cores), nodes[at].name)
        for number, (at, gpus, cores) in enumerate(taken)
    ]
    index = PlannerCache().index_for(world(nodes, held), CODA, PromiseBook().expected)
    arrays: ArrayCapacity | None = index.arrays
    assert arrays is not None
    known = OwnCores(arrays, index.capacity)
    for number, (cores, replicas) in enumerate(wanted):
        one = job(f"w{number}", gpus=0, cores=cores, replicas=replicas)
        shares = known.place(one)
        assert shares == OwnCores(arrays, index.capacity).place(one)
        if shares is not None:
            index.assign(replace(one), shares)
