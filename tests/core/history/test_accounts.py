"""What was used in a span of time: each held second is in one span, and each job ends in one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coda.history import Account, FinishedJob, accounts, run_of
from coda.history.record import Ending
from tests.operator_tests.history.records import record


def job(number: int, *, ended_s: float, held_s: float) -> FinishedJob:
    return record(number, ended_s=ended_s, held_s=held_s, queued_s=ended_s - held_s - 90.0)


def test_a_job_counts_for_the_part_that_lies_within() -> None:
    jobs = [record(1, namespace="a", ended_s=1000.0, held_s=400.0, idle_gpu_s=800.0)]
    expected = Account(
        owner="a", replicas=2, gpus_per_replica=8, jobs=0, gpu_s=1600.0, idle_gpu_s=200.0, core_s=4800.0, wait_s=0.0
    )
    assert accounts(jobs, 0.0, 700.0) == (expected,)
    assert accounts(jobs, 0.0, 600.0) == ()
    (whole,) = accounts(jobs, 0.0, 1001.0)
    assert (whole.jobs, whole.gpu_s, whole.idle_gpu_s, whole.wait_s) == (1, 6400.0, 800.0, 90.0)


def test_owners_and_shapes_have_accounts_of_their_own() -> None:
    jobs = [record(1, namespace="b"), record(2, namespace="a"), record(3, namespace="a", replicas=1), record(4)]
    shapes = [(each.owner, each.replicas, each.jobs) for each in accounts(jobs, 0.0, 2e10)]
    assert shapes == [("a", 1, 1), ("a", 2, 1), ("b", 2, 1), ("team-1", 2, 1)]


@given(st.lists(st.tuples(st.floats(1.0, 1e4), st.floats(0.0, 1e4)), max_size=12), st.floats(1.0, 9999.0))
def test_two_halves_of_a_span_are_the_whole(spans: list[tuple[float, float]], cut_s: float) -> None:
    jobs = [job(number, ended_s=ended_s, held_s=held_s) for number, (ended_s, held_s) in enumerate(spans)]
    halves = (*accounts(jobs, -1e5, cut_s), *accounts(jobs, cut_s, 1e5))
    whole = accounts(jobs, -1e5, 1e5)
    for field in ("jobs", "gpu_s", "idle_gpu_s", "core_s", "wait_s"):
        assert sum(getattr(each, field) for each in halves) == pytest.approx(
            sum(getattr(each, field) for each in whole)
        )


def test_only_a_job_that_ran_to_its_end_teaches_a_run_time() -> None:
    taught = run_of(record(1, ending=Ending.FAILED))
    assert taught is not None
    assert (taught.owner, taught.category, taught.gpus, taught.run_s) == ("team-1", "NLP", 16, 3590.0)
    assert run_of(record(1, ending=Ending.DELETED)) is None
    assert run_of(record(1, run_s=0.0)) is None
