"""A job as its trial: of one rank with one GPU, for whoever reads its size."""

from __future__ import annotations

from typing import Any

import pytest

from coda.model.trial_run import TrialOutcome, TrialRun, TrialTerms
from coda_agent.cluster.jobs import tuned_job_from_json
from coda_kube.objects.pods.trial_spec import runs_trial, spec_of_attempt, trial_from_json, trial_json, tried_spec
from coda_kube.objects.read import job_from_json
from tests.extender.objects import Item, job_json, placement

TRIAL = {"attempt": 1, "since": "2026-11-25T10:00:00.000Z"}


def gang(**status: Any) -> Item:
    item = job_json("train", phase="Running", placement=placement("n1"))
    item["metadata"] |= {"namespace": "team", "resourceVersion": "1"}
    item["spec"] |= {
        "replicas": 8,
        "gpusPerReplica": 8,
        "resumable": True,
        "stopNoticeSeconds": 60,
        "activeDeadlineSeconds": 86400,
        "locality": {"required": "rack"},
        "trial": {"runSeconds": 120, "waitSeconds": 60},
    }
    item["status"] |= status
    return item


def test_for_the_planner_a_trial_is_a_job_of_one_rank_that_ends_soon_and_is_never_moved() -> None:
    """The limit lets it run beside promises."""
    job = job_from_json(gang(trial=TRIAL), {})
    assert job is not None
    assert (job.replicas, job.run_limit_s, job.resumable, job.stop_notice_s, job.within) == (1, 120.0, False, 0.0, None)
    whole = job_from_json(gang(), {})
    assert whole is not None
    assert (whole.replicas, whole.run_limit_s, whole.resumable) == (8, 86400.0, True)


@pytest.mark.parametrize(
    ("status", "runs"),
    [
        pytest.param({"trial": TRIAL, "attempt": 1}, True, id="its attempt"),
        pytest.param({"trial": TRIAL | {"outcome": "Passed"}, "attempt": 1}, True, id="its pod is being deleted"),
        pytest.param({"trial": TRIAL, "attempt": 2}, False, id="the gang's attempt"),
        pytest.param({"trial": TRIAL, "attempt": 1, "phase": "Failed"}, False, id="it has ended with the job"),
        pytest.param({"attempt": 1}, False, id="no trial"),
    ],
)
def test_which_attempt_is_the_trial(status: Item, runs: bool) -> None:
    assert runs_trial(status) is runs
    assert (spec_of_attempt({"spec": gang()["spec"], "status": status})["replicas"] == 1) is runs


@pytest.mark.parametrize(("cores", "of_trial"), [(64, 8), (60, 8), (4, 1), ("auto", "auto")])
def test_a_trial_has_its_part_of_the_cores(cores: int | str, of_trial: int | str) -> None:
    assert tried_spec(gang()["spec"] | {"cpusPerReplica": cores})["cpusPerReplica"] == of_trial


@pytest.mark.parametrize(("cores", "of_trial"), [(64, 8), (60, 8), (12, 2), ("auto", "auto")])
def test_its_part_is_rounded_up_to_whole_processor_cores_once_a_kubelet_asked_for_them(
    cores: int | str, of_trial: int | str
) -> None:
    item = gang(trial=TRIAL, coresMultipleOf=2)
    item["spec"]["cpusPerReplica"] = cores
    assert spec_of_attempt(item)["cpusPerReplica"] == of_trial
    item["spec"]["cpusPerReplica"] = 12
    item["status"]["coresMultipleOf"] = 8
    assert spec_of_attempt(item)["cpusPerReplica"] == 8


def test_nobody_looks_for_the_cores_of_a_trial() -> None:
    item = gang(trial=TRIAL)
    item["spec"]["cpusPerReplica"] = "auto"
    assert tuned_job_from_json(item, 64) is None
    item["status"]["trial"] = {"attempt": 9}
    assert tuned_job_from_json(item, 64) is not None


@pytest.mark.parametrize(
    "trial",
    [
        TrialRun(attempt=1),
        TrialRun(attempt=3, since_s=1000.5, outcome=TrialOutcome.TIME_OVER, held_s=300.0, message="it ran"),
    ],
)
def test_a_trial_is_read_as_it_was_written(trial: TrialRun) -> None:
    assert trial_from_json({"trial": trial_json(trial)}) == trial
    assert trial_from_json({}) is None


def test_a_trial_that_says_nothing_takes_five_minutes_at_most() -> None:
    assert TrialTerms() == TrialTerms(run_s=300.0, wait_s=300.0)
