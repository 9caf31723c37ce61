"""A finished TrainingJob becomes its record; what a user or a kubelet wrote into it cannot spoil the store."""

from __future__ import annotations

from typing import Any

import pytest

from coda.history import Ending
from coda.history.delay_causes import DelayCause
from coda.history.time_spent import Doing, begun, moved_on
from coda_kube.objects.names import ANNOTATION_USER, FINALIZER
from coda_kube.objects.quantities import seconds_from_time, time_from_seconds
from coda_operator.history import finished_job
from coda_operator.view.job_record import JobRecord, record_from_json
from coda_operator.view.packed_jobs import packed_job, unpacked_job
from tests.operator_tests.view.test_packed_jobs import TIME, job_json

BEGAN_S = seconds_from_time(TIME)
TUNING = {
    "attempt": 2,
    "phase": "Tuned",
    "answer": {"coresPerReplica": 24, "outcome": "Found"},
    "steps": [
        {"coresPerReplica": 16, "gpuUtilization": 0.5, "variance": 0.0, "windows": 1},
        {"coresPerReplica": 24, "gpuUtilization": 0.75, "variance": 0.0, "windows": 2},
    ],
}


def job(phase: str = "Succeeded", *, labels: dict[str, str] | None = None, user: str = "", **status: Any) -> JobRecord:
    """As the operator holds it: packed while its record is not stored."""
    known = job_json(7, phase, completionTime=time_from_seconds(BEGAN_S + 1000), **status)
    known["metadata"] |= {"finalizers": [FINALIZER], "labels": labels or {}, "annotations": {ANNOTATION_USER: user}}
    return record_from_json("team-7/train-7", unpacked_job(packed_job(known)))


def test_what_the_operator_holds_of_a_finished_job_is_its_record() -> None:
    held = job(tuning=TUNING, cores=96, labels={"app.kubernetes.io/name": "bert"})
    spent = moved_on(begun(Doing.WAITING, DelayCause.CAPACITY, BEGAN_S), Doing.RUNNING, None, BEGAN_S + 200.0)
    kept = finished_job(held, spent, BEGAN_S + 5000)
    assert (kept.uid, kept.attempt, kept.namespace, kept.name) == (held.uid, 2, "team-7", "train-7")
    assert kept.owner == "team-7"
    assert (kept.category, kept.model, kept.replicas, kept.gpus_per_replica) == ("NLP", "bert", 4, 8)
    assert (kept.cores_asked, kept.cores_tuned, kept.cores_given) == (None, 24, 24)
    assert (kept.ending, kept.failures) == (Ending.SUCCEEDED, 1)
    assert (kept.waits, kept.held_s, kept.run_s) == ((("Capacity", 200.0),), 800.0, 800.0)
    assert kept.idle_gpu_s == pytest.approx(32 * 800.0 * 0.25)


def test_its_owner_is_who_asked_for_it() -> None:
    assert finished_job(job(user="ann@example.com\0"), None, BEGAN_S + 5000).owner == "ann@example.com"


def test_what_nobody_measured_is_unknown_and_not_zero() -> None:
    kept = finished_job(job("Failed"), None, BEGAN_S + 5000)
    assert (kept.ending, kept.cores_tuned, kept.idle_gpu_s) == (Ending.FAILED, None, None)
    assert kept.model == ""


@pytest.mark.parametrize(("outcome", "tuned"), [("Limited", 24), ("Refused", None), ("Abandoned", None)])
def test_only_cores_that_a_search_found_are_recorded(outcome: str, tuned: int | None) -> None:
    """The store teaches them to its owner's next jobs: a search that was cut short has nothing to teach."""
    answer = {"coresPerReplica": 24, "outcome": outcome}
    kept = finished_job(job(tuning=TUNING | {"answer": answer}, cores=96), None, BEGAN_S + 5000)
    assert kept.cores_tuned == tuned
    assert kept.idle_gpu_s is not None  # what was measured stays measured


def test_a_tuning_that_cannot_be_read_costs_the_cores_and_not_the_record() -> None:
    kept = finished_job(job(tuning=TUNING | {"attempt": -1}), None, BEGAN_S + 5000)
    assert (kept.cores_tuned, kept.idle_gpu_s) == (None, None)


def test_a_job_of_less_than_a_second_ends_no_sooner_than_it_starts() -> None:
    """The account has whole seconds, and the times in the status have milliseconds."""
    short = job(startTime=time_from_seconds(BEGAN_S + 1000.4))
    kept = finished_job(short, begun(Doing.RUNNING, None, BEGAN_S), BEGAN_S + 5000)
    assert kept.started_s == kept.ended_s == BEGAN_S + 1000


def test_a_job_that_is_deleted_while_it_runs_ended_now() -> None:
    kept = finished_job(job("Running", reason="Running"), None, BEGAN_S + 5000)
    assert (kept.ending, kept.reason, kept.ended_s, kept.held_s) == (Ending.DELETED, "Deleted", BEGAN_S + 5000, 5000.0)


def test_a_reason_that_no_column_takes_is_cut() -> None:
    kept = finished_job(job("Failed", reason="nul\0" + "x" * 1000), None, BEGAN_S)
    assert kept.reason == "nul" + "x" * 125


TRIAL = {"attempt": 2, "since": TIME, "outcome": "Failed", "seconds": 40, "message": "it failed"}


def test_what_came_of_its_trial_is_kept_and_none_of_it_counts_as_time_with_the_gang() -> None:
    """It failed in its trial: the whole time is a wait, also for an operator that saw nothing of it."""
    failed = job("Failed", reason="TrialFailed", trial=TRIAL, cores=4, launchTime=TIME, startTime=TIME)
    for spent in (
        None,
        moved_on(begun(Doing.WAITING, DelayCause.GPUS, BEGAN_S), Doing.WAITING, DelayCause.TRIAL, BEGAN_S + 900.0),
    ):
        kept = finished_job(failed, spent, BEGAN_S + 5000)
        assert (kept.held_s, kept.run_s, kept.started_s, kept.cores_given) == (0.0, 0.0, 0.0, 4)
        assert (kept.trial, kept.trial_s, kept.trial_saved_gpu_s) == ("Failed", 40.0, 40.0 * 31)


def test_a_job_deleted_while_its_trial_runs_pays_for_it_until_then() -> None:
    under_way = {"attempt": 2, "since": TIME}
    kept = finished_job(job("Running", trial=under_way, launchTime=TIME), None, BEGAN_S + 70)
    assert (kept.trial, kept.trial_s, kept.held_s, kept.trial_saved_gpu_s) == ("Unclear", 70.0, 0.0, 0.0)
    waiting = finished_job(job("Queued", trial=under_way, launchTime=None), None, BEGAN_S + 70)
    assert (waiting.trial, waiting.trial_s) == ("", 0.0)
