from dataclasses import replace

import pytest

from coda.model import Phase
from coda_cli.job_history import Moments, WaitRecord
from coda_cli.replay.metrics import (
    FollowedJob,
    JobOutcome,
    ReplayRun,
    ReplaySummary,
    Waited,
    Workload,
    summary_from_run,
)
from coda_cli.replay.submissions import Manner
from coda_cli.replay.summary import json_from_summary
from coda_lab.checker import Breach, Counts, Invariant, Report
from coda_sim.traces import RecordedStatus
from coda_sim.traces.trace import BadRow
from coda_sim.workload import RefusedRow
from coda_sim.workload.gangs import Change
from tests.cli.worlds import followed
from tests.sim.worlds import row

FULL = WaitRecord(code="InsufficientGPUs", message="8 wanted, 4 free", seen_s=1.0)
NEVER = WaitRecord(code="NeverFits", message="no node is that large", seen_s=1.0)

WORKLOAD = Workload(
    trace="jobs.csv",
    rule="GPU jobs only",
    cores="4 per GPU",
    rows=10,
    left_out=3,
    durations_cut=1,
    was_sorted=True,
    seed=0,
    skipped=(BadRow(line=9, sentence="gpus is empty"),),
    refused=(RefusedRow(row=row("hv9", line=8), sentence="asks too much"),),
    changes={Change.REPLICAS: 2},
    rows_changed=2,
)


def summary(*jobs: FollowedJob, **fields: object) -> ReplaySummary:
    run = ReplayRun(workload=WORKLOAD, cluster="12x8x48", speed=100.0, jobs=jobs, began_s=0.0, ended_s=100.0)
    return summary_from_run(type(run)(**{**{name: getattr(run, name) for name in run.__slots__}, **fields}))


def test_waits_are_from_sending_to_the_first_start_in_trace_time_and_in_real_time() -> None:
    result = summary(
        followed("a", sent_s=0, placed_s=0.05, started_s=0.1, finished_s=1.0),
        followed("b", sent_s=10, placed_s=10.5, started_s=11, finished_s=12, reasons=(FULL,)),
        followed("c", sent_s=20, placed_s=25, started_s=30, finished_s=50, reasons=(FULL,)),
    )
    assert result.real["gpu_wait_p50_s"] == pytest.approx(1.0)
    assert result.metrics["gpu_wait_p50_s"] == pytest.approx(100.0)
    assert result.metrics["gpu_wait_mean_s"] == pytest.approx((10 + 100 + 1000) / 3)
    assert result.metrics["gpu_placement_wait_p50_s"] == pytest.approx(50.0)
    assert [result.metrics[f"gpu_started_{name}"] for name in ("10s", "3min", "10min", "1h")] == [
        pytest.approx(1 / 3),
        pytest.approx(2 / 3),
        pytest.approx(2 / 3),
        pytest.approx(1.0),
    ]
    assert result.metrics["gpu_jct_mean_s"] == pytest.approx((100 + 200 + 3000) / 3)
    assert result.metrics["makespan_s"] == pytest.approx(5000.0)
    assert result.problems == ()


def test_counts_are_by_outcome_and_refused_rows_count_as_refused() -> None:
    result = summary(
        followed("a"),
        followed("b", phase=Phase.QUEUED, placed_s=None, started_s=None, finished_s=None, reasons=(NEVER,)),
    )
    assert {outcome: count for outcome, count in result.counts.items() if count} == {
        JobOutcome.FINISHED: 1,
        JobOutcome.REFUSED: 1,
    }
    assert result.metrics["jobs_refused"] == 2
    assert result.metrics["jobs_finished"] == 1
    assert (result.metrics["rows_skipped"], result.metrics["rows_changed"]) == (1, 2)
    assert result.problems == ()


def test_a_job_that_waited_without_a_reason_is_a_problem_and_named_by_its_row() -> None:
    result = summary(
        followed("quick", placed_s=4.9),
        followed("silent", placed_s=5.6, line=5),
        followed("explained", placed_s=50.0, reasons=(FULL,)),
    )
    assert result.problems == ("silent (jobs.csv:5) waited 5.6 s for its placement and never said why",)


def test_who_waited_longer_than_what_and_who_of_them_said_why() -> None:
    result = summary(
        followed("none"),
        followed("short", placed_s=0.3, reasons=(FULL,)),
        followed("silent", placed_s=7.0),
        followed("long", placed_s=40.0, reasons=(FULL,)),
        followed("for-ever", phase=Phase.QUEUED, placed_s=None, started_s=None, finished_s=None, reasons=(FULL,)),
    )
    assert result.waited == (
        Waited(longer_than="at all", jobs=4, said_why=3),
        Waited(longer_than="10s", jobs=4, said_why=3),
        Waited(longer_than="3min", jobs=3, said_why=2),
        Waited(longer_than="10min", jobs=3, said_why=2),
        Waited(longer_than="1h", jobs=2, said_why=2),
    )


def test_pending_codes_count_jobs_and_not_changes() -> None:
    again = WaitRecord(code="InsufficientGPUs", message="8 wanted, 7 free", seen_s=2.0)
    result = summary(
        followed("a", reasons=(FULL, again)), followed("b", reasons=(FULL,)), followed("c", reasons=(NEVER, FULL))
    )
    assert result.pending == (
        ("InsufficientGPUs", 3, "8 wanted, 4 free"),
        ("NeverFits", 1, "no node is that large"),
    )


@pytest.mark.parametrize(
    ("job", "problem"),
    [
        pytest.param(followed("a", phase=Phase.FAILED), "a ended Failed after 1 attempt", id="failed"),
        pytest.param(
            followed("a", phase=Phase.RUNNING, finished_s=None), "a had not finished: Running", id="unfinished"
        ),
        pytest.param(followed("a", refusal="Forbidden"), "a was not taken by the API server: Forbidden", id="rejected"),
        pytest.param(
            followed("a", phase=Phase.QUEUED, placed_s=None, started_s=None, finished_s=None, reasons=(FULL,)),
            "a had not finished: Queued (InsufficientGPUs: 8 wanted, 4 free)",
            id="still waiting",
        ),
    ],
)
def test_a_job_that_did_not_end_well_is_a_problem(job: FollowedJob, problem: str) -> None:
    assert summary(job).problems == (problem,)


def test_a_job_that_should_fail_is_finished_when_it_fails_and_a_problem_when_not() -> None:
    manner = Manner(namespace="default", run="r", speed=100.0, image="i", with_failures=True)
    failed = followed("a", phase=Phase.FAILED, status=RecordedStatus.FAILED, manner=manner)
    passed = followed("b", phase=Phase.SUCCEEDED, status=RecordedStatus.FAILED, manner=manner)
    assert (failed.outcome, passed.outcome) == (JobOutcome.FINISHED, JobOutcome.FAILED)


def test_breaches_dead_processes_and_an_early_stop_are_problems() -> None:
    breach = Breach(
        invariant=Invariant.NODE_OVER_COMMITTED, time_s=5.0, objects=("Node/node-0001",), sentence="9 of 8 GPUs"
    )
    check = Report(started_s=0.0, ended_s=9.0, breaches=(breach,), counts=Counts())
    result = summary(followed("a"), check=check, ended_parts=("extender-0",), stopped="time is up")
    assert result.problems == (
        "time is up",
        "extender-0 of the local control plane ended by itself",
        "invariant (a), node over committed: 9 of 8 GPUs",
    )


def test_fairness_is_over_the_users_the_trace_names() -> None:
    result = summary(
        followed("a", user="u1", started_s=0.6, duration_s=60),
        followed("b", user="u2", started_s=0.6, duration_s=60),
        followed("c", user="", started_s=9.0, duration_s=60),
    )
    assert result.metrics["jain_users"] == pytest.approx(1.0)
    assert result.metrics["user_wait_p99_worst_s"] == pytest.approx(60.0)


def test_nothing_started_leaves_waits_unknown() -> None:
    result = summary(followed("a", phase=Phase.QUEUED, placed_s=None, started_s=None, finished_s=None, reasons=(FULL,)))
    assert result.metrics["gpu_wait_mean_s"] is None
    assert result.metrics["makespan_s"] is None
    assert result.metrics["gpu_started_10s"] == 0.0


def test_the_json_has_the_shared_names_and_every_job() -> None:
    written = json_from_summary(summary(followed("a", reasons=(FULL,))), version="1.2.3")
    assert written["schema"] == 1
    assert written["runs"][0]["metrics"]["jobs_finished"] == 1
    assert written["workload"]["rule"] == "GPU jobs only"
    assert written["refused"] == [{"line": 8, "job_id": "hv9", "sentence": "asks too much"}]
    assert written["check"] is None
    (job,) = written["jobs"]
    assert (job["name"], job["outcome"], job["attempts"]) == ("a", "finished", 1)
    assert job["reasons"] == [{"code": "InsufficientGPUs", "message": "8 wanted, 4 free", "seen_s": 1.0}]


def test_each_job_has_its_start_and_wait_in_the_time_of_the_trace_and_the_moments_coda_wrote() -> None:
    early = followed("a", submit_s=1000.0, sent_s=20, placed_s=20.5, started_s=21, duration_s=60.0)
    never = followed("b", phase=Phase.QUEUED, placed_s=None, started_s=None, finished_s=None)
    assert early.history is not None
    told = replace(
        early.history, freed_s=21.5, reported=Moments(queued_s=20.1, placed_s=20.4, started_s=20.9, finished_s=21.7)
    )
    run = replace(summary(replace(early, history=told), never).run, began_s=20.0, policy="drf", racks=2)
    written = json_from_summary(summary_from_run(run), version="1.2.3")
    assert (written["racks"], written["runs"][0]["policy"]) == (2, "drf")
    placed, waiting = written["jobs"]
    assert placed["trace"] == {"submit_s": 1000.0, "work_s": 60.0, "wait_s": 50.0, "start_s": 1050.0}
    reported = {"queued_s": 0.1, "placed_s": 0.4, "started_s": 0.9, "freed_s": 1.5, "finished_s": 1.7}
    assert placed["reported"] == pytest.approx(reported)
    assert (waiting["trace"]["wait_s"], waiting["trace"]["start_s"]) == (None, None)
    assert set(waiting["reported"].values()) == {None}


def test_cpu_jobs_have_measures_of_their_own_and_their_waits_after_stops_count() -> None:
    training = followed("a", started_s=1.0)
    stopped = followed("b", gpus=0, placed_s=2.0, started_s=3.0, finished_s=20.0)
    assert stopped.history is not None
    stopped = replace(stopped, history=replace(stopped.history, attempt=3, stops=2, waited_again_s=4.0))
    result = summary(training, stopped)
    assert result.metrics["gpu_wait_mean_s"] == pytest.approx(100.0)
    assert result.metrics["cpu_wait_mean_s"] == pytest.approx(700.0)
    assert result.metrics["cpu_placement_wait_mean_s"] == pytest.approx(600.0)
    assert result.metrics["cpu_first_wait_mean_s"] == pytest.approx(300.0)
    assert result.metrics["cpu_started_10min"] == pytest.approx(1.0)
    assert result.metrics["aborts"] == 2
    (_, told) = json_from_summary(result, version="")["jobs"]
    assert (told["kind"], told["stops"], told["waited_again_s"]) == ("cpu", 2, 4.0)


def test_a_cpu_job_need_not_say_why_it_waits() -> None:
    """The planner tells of a few CPU jobs at a time."""
    assert summary(followed("a", gpus=0, placed_s=50.0)).problems == ()
