"""The tables of a report: a history made with Philly's shares gives Philly's tables back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coda.history import Ending, FinishedJob
from coda.history.delay_causes import DelayCause, delay_cause
from coda.history.report import NOT_RECORDED, SIZES, percentile, report, size_of
from coda.model import WaitCode

NUMBERS = count()
JOB = FinishedJob(
    uid="",
    attempt=1,
    namespace="team",
    owner="ann",
    name="job",
    category="",
    model="",
    replicas=1,
    gpus_per_replica=1,
    cores_asked=4,
    cores_tuned=None,
    cores_given=4,
    ending=Ending.SUCCEEDED,
    reason="Completed",
    failure_class="",
    queued_s=1000.0,
    started_s=1000.0,
    ended_s=2000.0,
    waits=(),
    held_s=1000.0,
    run_s=1000.0,
    idle_gpu_s=None,
    failures=0,
)


def job(**fields: object) -> FinishedJob:
    return replace(JOB, uid=f"u{next(NUMBERS)}", **fields)  # type: ignore[arg-type]


PHILLY_ENDINGS = {  # Table 5: jobs in hundreds, share of the GPU time in percent, utilisation of Table 2 in percent
    "passed": (Ending.SUCCEEDED, 667, 44.53, 52.43),
    "killed": (Ending.DELETED, 130, 37.69, 42.98),
    "unsuccessful": (Ending.FAILED, 166, 17.76, 60.43),
}


def philly_endings() -> Iterator[FinishedJob]:
    for ending, jobs, gpu_share, use in PHILLY_ENDINGS.values():
        held_s = 1e6 * gpu_share / jobs
        for _ in range(jobs):
            yield job(ending=ending, held_s=held_s, run_s=held_s, idle_gpu_s=held_s * (1 - use / 100))


def test_endings_are_those_of_tables_2_and_5() -> None:
    found = {row.ending: row for row in report(philly_endings()).endings}
    assert list(found) == ["passed", "killed", "unsuccessful"]
    for name, (_, jobs, gpu_share, use) in PHILLY_ENDINGS.items():
        assert (found[name].jobs, found[name].share) == (jobs, jobs / 963)
        assert found[name].gpu_share == pytest.approx(gpu_share / 99.98, rel=1e-3)
        assert found[name].use == pytest.approx(use / 100)


def test_causes_of_delay_are_those_of_table_1() -> None:
    """Table 1, in hundreds. Philly's fragmentation is what we call capacity and locality."""
    counts = {(True, "HeldByPolicy"): 39, (True, "NoDomainFits"): 140, (False, "VirtualClusterFull"): 332}
    counts[False, "InsufficientGPUs"] = 424
    waiting = [
        job(gpus_per_replica=8 if is_large else 1, waits=((word, 60.0),))
        for (is_large, word), jobs in counts.items()
        for _ in range(jobs)
    ]
    short = [job(run_s=59.0, waits=(("InsufficientGPUs", 60.0),)) for _ in range(50)]
    found = {row.cause: row for row in report(waiting + short).delays}
    assert (found[DelayCause.FAIR_SHARE].small, found[DelayCause.FAIR_SHARE].large) == (332, 39)
    fragmented = (found[DelayCause.CAPACITY], found[DelayCause.LOCALITY])
    assert (sum(row.small for row in fragmented), sum(row.large for row in fragmented)) == (424, 140)
    assert sum(row.share for row in fragmented) == pytest.approx(564 / 935)


PHILLY_FAILURES = {  # Table 6, in tens: trials, jobs, users, minutes to failure at 50, 90 and 95 %
    "CPU out of memory": (1208, 280, 6, (13.45, 17.73, 33.97)),
    "Incorrect inputs": (969, 494, 21, (1.87, 404.83, 2095.73)),
    "Syntax error": (113, 88, 11, (0.58, 5.02, 12.00)),
}


def test_failures_are_those_of_table_6() -> None:
    failed = []
    for reason, (trials, jobs, users, (half, most, last)) in PHILLY_FAILURES.items():
        for number in range(jobs):
            minutes = half if number < ceil(0.5 * jobs) else most if number < ceil(0.9 * jobs) else last
            more = trials // jobs + (number < trials % jobs)
            owner = f"user-{number % users}"
            fields = {"run_s": 60 * minutes, "held_s": 60 * minutes, "failures": more, "owner": owner}
            failed.append(job(ending=Ending.FAILED, reason="PodFailed", failure_class=reason, **fields))
    for row in report([*failed, job()]).failures:
        trials, jobs, users, times = PHILLY_FAILURES[row.reason]
        assert (row.trials, row.jobs, row.owners) == (trials, jobs, users)
        assert (row.run_p50_s, row.run_p90_s, row.run_p95_s) == tuple(60 * each for each in times)


def test_what_a_source_does_not_say_is_no_success() -> None:
    (row,) = report([job(reason=NOT_RECORDED)]).endings
    assert row.ending == "not recorded"


def test_every_code_of_the_planner_has_a_cause() -> None:
    assert {delay_cause(code.value) for code in WaitCode} <= set(DelayCause) - {DelayCause.UNSEEN}
    own = {code for code in WaitCode if delay_cause(code.value) is DelayCause.CODA}
    assert own == {
        WaitCode.UNREADABLE,
        WaitCode.UNDECIDABLE,
        WaitCode.JUDGED_IN_TURNS,
        WaitCode.STATUS_UNWRITABLE,
        WaitCode.STATUS_WRITE_SLOW,
        WaitCode.CHANGED_MEANWHILE,
    }


def test_no_jobs_make_an_empty_report() -> None:
    found = report([])
    assert (found.jobs, found.endings, found.delays, found.failures, found.owners) == (0, (), (), (), ())
    assert len(found.sizes) == len(SIZES)


@given(st.lists(st.tuples(st.integers(0, 64), st.floats(0, 1e6), st.floats(0, 1e6)), max_size=30))
def test_every_job_counts_once_in_each_table(drawn: list[tuple[int, float, float]]) -> None:
    jobs = [
        job(gpus_per_replica=gpus, held_s=held_s, run_s=held_s, waits=(("Unseen", wait_s),))
        for gpus, held_s, wait_s in drawn
    ]
    found = report(jobs)
    assert found.jobs == len(jobs) == sum(row.jobs for row in found.sizes) == sum(row.jobs for row in found.endings)
    assert sum(row.jobs for row in found.owners) == len(jobs)
    assert sum(row.gpu_s for row in found.sizes) == pytest.approx(found.gpu_s)


def test_trials_are_counted_with_what_they_cost_and_saved() -> None:
    """A gang of 32 GPUs that fails after 100 s holds them for 3200 GPU-seconds; its trial held one."""
    gangs = [job(gpus_per_replica=32, trial=outcome, trial_s=100.0) for outcome in ("Passed", "Failed", "Passed")]
    rows = report([*gangs, job()]).trials
    assert [(row.outcome, row.jobs, row.trial_gpu_s, row.saved_gpu_s) for row in rows] == [
        ("Passed", 2, 200.0, 0.0),
        ("Failed", 1, 100.0, 3100.0),
    ]


@pytest.mark.parametrize(("gpus", "size"), [(1, "1 GPU"), (2, "2-4 GPUs"), (8, "5-8 GPUs"), (9, "more than 8 GPUs")])
def test_sizes(gpus: int, size: str) -> None:
    assert size_of(gpus) == size


def test_percentiles_are_by_nearest_rank() -> None:
    assert [percentile([3.0, 1.0, 2.0], share) for share in (0.0, 0.34, 0.9)] == [1.0, 2.0, 3.0]
