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
from coda.history.delay_causes import DelayCause, cause_of_word
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


PHILLY_DELAYS = {  # Table 1, in hundreds: cause, jobs of at most four GPUs, larger ones
    "fair share": ("FairShare", 332, 39),
    "fragmentation": ("FragmentedLocality", 424, 140),
}


def test_causes_of_delay_are_those_of_table_1() -> None:
    """Fragmentation makes up 80 % of the waiting time. Jobs of less than a minute do not count."""
    fair, fragmented = (small + large for _, small, large in PHILLY_DELAYS.values())
    wait_s = {"FairShare": 20_000 / fair, "FragmentedLocality": 80_000 / fragmented}
    waiting = [
        job(gpus_per_replica=gpus, waits=((word, wait_s[word]), ("Hold", 5.0)))
        for word, small, large in PHILLY_DELAYS.values()
        for gpus, jobs in ((1, small), (8, large))
        for _ in range(jobs)
    ]
    short = [job(run_s=59.0, waits=(("FairShare", 60.0),)) for _ in range(50)]
    found = {row.cause: row for row in report(waiting + short).philly}
    for name, (_, small, large) in PHILLY_DELAYS.items():
        assert (found[name].small, found[name].large) == (small, large)
        assert found[name].small_share == pytest.approx(small / 756)
        assert found[name].large_share == pytest.approx(large / 179)
    assert found["fragmentation"].wait_share == pytest.approx(0.8)


def test_every_kind_of_fragmentation_counts_once_for_a_job() -> None:
    kinds = ("Capacity", "FragmentedGPUs", "FragmentedCores", "FragmentedMemory", "FragmentedLocality")
    found = report([job(waits=tuple((kind, 10.0) for kind in kinds))])
    assert [(row.cause, row.small, row.wait_share) for row in found.philly] == [
        ("fair share", 0, 0.0),
        ("fragmentation", 1, 1.0),
    ]
    assert sorted(row.cause.value for row in found.delays) == sorted(kinds)


def test_records_of_older_versions_have_the_codes_of_the_planner() -> None:
    found = report([job(waits=(("HeldByPolicy", 10.0), ("InsufficientGPUs", 30.0), ("Suspended", 5.0)))])
    assert [(row.cause, row.wait_s) for row in found.delays] == [
        (DelayCause.CAPACITY, 30.0),
        (DelayCause.FAIR_SHARE, 10.0),
        (DelayCause.HOLD, 5.0),
    ]


PHILLY_USE = {  # Table 2: utilisation in percent of passed, killed, unsuccessful jobs, by GPUs
    1: (53.51, 37.02, 62.82),
    4: (51.13, 34.39, 50.95),
    8: (51.09, 60.63, 64.34),
    16: (44.88, 36.98, 39.02),
}


def test_utilisation_by_size_and_ending_is_that_of_table_2() -> None:
    jobs = [
        job(gpus_per_replica=gpus, ending=ending, idle_gpu_s=1000.0 * gpus * (1 - use / 100))
        for gpus, uses in PHILLY_USE.items()
        for ending, use in zip((Ending.SUCCEEDED, Ending.DELETED, Ending.FAILED), uses, strict=True)
    ]
    for row, uses in zip(report(jobs).uses, PHILLY_USE.values(), strict=True):
        assert (row.passed, row.killed, row.unsuccessful) == pytest.approx(tuple(use / 100 for use in uses))
        assert row.every == pytest.approx(sum(uses) / 300)


PHILLY_FAILURES = {  # Table 6, in tens: trials on 1, 2-4 and more GPUs, jobs, users, minutes to failure (50, 90, 95 %)
    "CPU out of memory": ((1146, 24, 38), 280, 6, (13.45, 17.73, 33.97)),
    "Incorrect inputs": ((584, 264, 121), 494, 21, (1.87, 404.83, 2095.73)),
    "Semantic error": ((160, 49, 85), 205, 16, (2.72, 376.00, 1436.88)),
    "Model checkpoint error": ((74, 38, 87), 95, 8, (181.67, 3728.93, 8196.02)),
    "CUDA failure": ((13, 115, 20), 57, 7, (1.32, 19.87, 82.17)),
    "Syntax error": ((78, 18, 17), 88, 11, (0.58, 5.02, 12.00)),
}


def philly_failures() -> Iterator[FinishedJob]:
    """Each job fails on one size as often as its size's trials say; those of the smallest size come first."""
    for reason, (trials, jobs, users, (half, most, last)) in PHILLY_FAILURES.items():
        parts = [max(1, jobs * each // sum(trials)) for each in trials[1:]]
        gpus_of = [1] * (jobs - sum(parts)) + [2] * parts[0] + [8] * parts[1]
        for number, gpus in enumerate(gpus_of):
            size = (1, 2, 8).index(gpus)
            place, of = number - gpus_of.index(gpus), gpus_of.count(gpus)
            failures = trials[size] // of + (place < trials[size] % of)
            minutes = half if number < ceil(0.5 * jobs) else most if number < ceil(0.9 * jobs) else last
            yield job(
                ending=Ending.FAILED,
                reason="PodFailed",
                failure_class=reason,
                owner=f"user-{number % users}",
                gpus_per_replica=gpus,
                run_s=60 * minutes,
                held_s=60 * minutes,
                failures=failures,
            )


def test_failures_are_those_of_table_6() -> None:
    failed = list(philly_failures())
    found = report([*failed, job()]).failures
    assert [row.reason for row in found] == sorted(PHILLY_FAILURES, key=lambda name: -sum(PHILLY_FAILURES[name][0]))
    for row in found:
        trials, jobs, users, times = PHILLY_FAILURES[row.reason]
        own = [each for each in failed if each.failure_class == row.reason]
        assert (row.trials, row.trials_by_size) == (sum(trials), trials)
        assert (row.jobs, row.owners) == (jobs, users)
        assert (row.run_p50_s, row.run_p90_s, row.run_p95_s) == tuple(60 * each for each in times)
        assert row.run_share == pytest.approx(sum(each.run_s for each in own) / sum(each.run_s for each in failed))
        gpu_s = sum(each.held_gpu_s for each in failed)
        assert row.gpu_share == pytest.approx(sum(each.held_gpu_s for each in own) / gpu_s)


def test_what_a_source_does_not_say_is_no_success() -> None:
    (row,) = report([job(reason=NOT_RECORDED)]).endings
    assert row.ending == "not recorded"


def test_every_code_of_the_planner_has_a_cause() -> None:
    assert {cause_of_word(code.value) for code in WaitCode} <= set(DelayCause) - {DelayCause.UNSEEN}
    own = {code for code in WaitCode if cause_of_word(code.value) is DelayCause.CODA}
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


def test_gpu_time_is_what_was_held_within_the_span() -> None:
    """A job that held its GPUs for two months, and ended a little after the span had begun."""
    day_s = 86400.0
    long = job(owner="a", ended_s=60 * day_s, held_s=60 * day_s, idle_gpu_s=30 * day_s, lost_s=6 * day_s)
    within = job(owner="b", ended_s=60 * day_s, held_s=day_s, idle_gpu_s=0.0)
    found = report([long, within], 59 * day_s, 61 * day_s)
    assert found.gpu_s == pytest.approx(2 * day_s)
    assert {row.owner: row.gpu_s for row in found.owners} == pytest.approx({"a": day_s, "b": day_s})
    assert {row.owner: row.lost_gpu_s for row in found.owners} == pytest.approx({"a": 0.1 * day_s, "b": 0.0})
    assert {row.owner: row.use for row in found.owners} == {"a": 0.5, "b": 1.0}
    assert report([long, within]).gpu_s == pytest.approx(61 * day_s)
