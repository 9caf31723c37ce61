"""What became of every job: each ends once, and whatever was not asked for is a problem."""

from __future__ import annotations

from typing import Any

import pytest

from coda_lab.experiments.load.account import Account
from coda_lab.experiments.load.plans import Act, End, JobPlan, PodPlan


def account_of(**changes: Any) -> Account:
    usual: dict[str, Any] = {"name": "j", "replicas": 2, "gpus_per_replica": 4, "cpus_per_replica": 1, "run_s": 1.0}
    plan = JobPlan(**(usual | changes))
    account = Account()
    account.add_job(plan)
    return account


def job(**status: Any) -> dict[str, Any]:
    return {"metadata": {"name": "j"}, "status": {"attempt": 1, "failures": 0, "disruptions": 0} | status}


def see(account: Account, *states: dict[str, Any] | None) -> None:
    before: dict[str, Any] | None = None
    for state in states:
        account.on_job(before, state)
        before = state


def test_a_job_that_runs_and_succeeds_is_no_problem() -> None:
    account = account_of()
    assert account.open_gpus == 8
    see(account, job(phase="Queued"), job(phase="Running"), job(phase="Succeeded"), None)
    assert (account.open_gpus, account.open_jobs, account.problems()) == (0, 0, ())
    assert account.jobs["j"].end is End.SUCCEEDED


@pytest.mark.parametrize(
    ("changes", "states", "problem"),
    [
        pytest.param({}, [job(phase="Running"), None], "is lost", id="vanished"),
        pytest.param({}, [job(phase="Running")], "never ended: it is Running in attempt 1", id="stuck"),
        pytest.param(
            {},
            [job(phase="Queued", pending={"message": "8 GPUs are missing"})],
            "never ended: it is Queued in attempt 1: 8 GPUs are missing",
            id="stuck in the queue",
        ),
        pytest.param({}, [], "not accepted", id="never seen"),
        pytest.param(
            {}, [job(phase="Failed", reason="RankFailed", message="m")], "failed, which nothing", id="fails unasked"
        ),
        pytest.param(
            {"failing_rank": 0, "fails_always": True, "retries": 0},
            [job(phase="Succeeded")],
            "succeeded, which nothing",
            id="succeeds though it fails",
        ),
        pytest.param(
            {}, [job(phase="Succeeded", attempt=3, disruptions=1)], "ran to attempt 3", id="one attempt too many"
        ),
    ],
)
def test_what_was_not_asked_for_is_a_problem(
    changes: dict[str, Any], states: list[dict[str, Any] | None], problem: str
) -> None:
    account = account_of(**changes)
    see(account, *states)
    (said,) = account.problems()
    assert problem in said


def test_a_job_deleted_by_the_test_counts_as_deleted_once_it_is_gone() -> None:
    account = account_of(act=Act.DELETE)
    see(account, job(phase="Running"))
    account.jobs["j"].deletion_asked = True
    assert account.open_jobs == 1
    see(account, job(phase="Running"), None)
    assert (account.open_jobs, account.problems(), account.as_json()["deleted_by_the_test"]) == (0, (), 1)


def test_attempts_after_disruptions_resumes_and_edits_are_accounted_for() -> None:
    account = account_of(act=Act.SUSPEND)
    account.jobs["j"].asked_anew = 1
    see(account, job(phase="Succeeded", attempt=3, disruptions=1))
    assert account.problems() == ()


def test_an_attempt_that_was_ordered_to_stop_is_accounted_for_once() -> None:
    account = account_of()
    stopping = job(phase="Running", placement={"attempt": 1, "stop": {"cause": "Migrate"}})
    see(account, stopping, stopping, job(phase="Succeeded", attempt=2))
    assert account.problems() == ()
    account = account_of()
    see(account, stopping, job(phase="Succeeded", attempt=3))
    (said,) = account.problems()
    assert "ordered to stop 1 times" in said


def test_a_stop_that_nobody_saw_is_known_by_what_the_job_says_of_it() -> None:
    account = account_of()
    see(account, job(phase="Running"), job(phase="Running", attempt=2, lastStop={"attempt": 1, "cause": "Migrate"}))
    see(account, job(phase="Succeeded", attempt=2, lastStop={"attempt": 1, "cause": "Migrate"}))
    assert account.problems() == ()


def test_roll_backs_are_counted_once_each_by_reason() -> None:
    account = account_of()
    rolling = job(phase="Restarting", reason="NodeLost")
    see(account, job(phase="Running"), rolling, rolling, job(phase="Queued", attempt=2), rolling)
    assert account.as_json()["roll_backs_by_reason"] == {"NodeLost": 2}


def test_each_end_is_told_once() -> None:
    told: list[str] = []
    account = account_of()
    account.changed = lambda: told.append("changed")
    see(account, job(phase="Succeeded"), job(phase="Succeeded"))
    assert told == ["changed"]


def test_jobs_of_others_are_nobodys_business() -> None:
    account = account_of()
    account.on_job(None, {"metadata": {"name": "somebody-elses"}, "status": {"phase": "Failed"}})
    assert set(account.jobs) == {"j"}


@pytest.mark.parametrize(
    ("states", "problems"),
    [
        pytest.param([{"phase": "Succeeded"}, None], (), id="done and swept"),
        pytest.param([{"phase": "Failed", "reason": "OutOfcpu"}], (), id="refused by its kubelet: counted"),
        pytest.param([{"phase": "Running"}], ("foreign pod p never ended",), id="stuck"),
        pytest.param([{"phase": "Running"}, None], ("foreign pod p vanished before it ended",), id="vanished"),
    ],
)
def test_foreign_pods_are_accounted_for_too(states: list[dict[str, Any] | None], problems: tuple[str, ...]) -> None:
    account = Account()
    account.add_pod(PodPlan(name="p", gpus=1, cpus=1, run_s=1.0))
    before: dict[str, Any] | None = None
    for status in states:
        new = None if status is None else {"metadata": {"name": "p"}, "status": status}
        account.on_pod(before, new)
        before = new
    assert account.problems() == problems
