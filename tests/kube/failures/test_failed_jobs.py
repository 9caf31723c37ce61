"""The failed jobs of each user, as the API server has them."""

from __future__ import annotations

from typing import Any

import pytest

from coda.correlation import Alike, Outcome
from coda.correlation.failed_jobs import WINDOW_S
from coda_kube.failures.failed_jobs import MOST_JOBS, FailedJobs, failed_job_from_json
from coda_kube.objects.json_types import Json
from coda_kube.objects.names import ANNOTATION_USER
from coda_kube.objects.quantities import time_from_seconds

NOW_S = 1.8e9


def job(name: str, *, user: str = "ann", namespace: str = "team", ago_s: float = 60.0, **status: Any) -> Json:
    failure = {"attempt": 2, "signature": "s", "time": time_from_seconds(NOW_S - ago_s)}
    return {
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": f"uid-{namespace}-{name}",
            "annotations": {ANNOTATION_USER: user},
        },
        "status": {"phase": "Failed", "reason": "RankFailed", "attempt": 2, "failure": failure} | status,
    }


def known(*jobs: Json) -> FailedJobs:
    failed = FailedJobs()
    for each in jobs:
        failed.see(each, NOW_S)
    return failed


def names(failed: FailedJobs, mine: Json) -> tuple[str, ...]:
    return failed.alike(mine, "s", NOW_S).names


MINE = job("mine")


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        pytest.param({}, Outcome.STOPPED, id="failed"),
        pytest.param({"phase": "Restarting"}, Outcome.TRIED, id="is tried again"),
        pytest.param({"reason": "DeadlineExceeded"}, Outcome.TRIED, id="ended by its deadline"),
        pytest.param({"phase": "Succeeded", "reason": "Succeeded"}, Outcome.RECOVERED, id="succeeded later"),
    ],
)
def test_what_became_of_a_job(status: dict[str, Any], outcome: Outcome) -> None:
    failed = failed_job_from_json(job("a", **status))
    assert failed is not None
    assert failed.outcome is outcome


def test_a_job_that_was_cut_short_says_so() -> None:
    cut = job("a")
    cut["status"]["failure"]["cutShort"] = True
    failed = failed_job_from_json(cut)
    assert failed is not None
    assert failed.outcome is Outcome.CUT_SHORT


def test_nobody_influences_the_jobs_of_others() -> None:
    """Not even who owns a namespace with the name of a person, or of an account of Kubernetes."""
    others = [
        job("a", user="bob"),
        job("b", user="system:serviceaccount:ann:pipeline", namespace="ann"),
        job("c", user="", namespace="ann"),
    ]
    assert names(known(*others), MINE) == ()
    assert names(known(job("d", namespace="elsewhere")), MINE) == ("elsewhere/*",)
    pipelines = job("x", user="system:serviceaccount:system:p", namespace="system")
    assert names(known(pipelines), job("y", user="system", namespace="other")) == ()


def test_jobs_of_other_namespaces_are_counted_and_not_named() -> None:
    """Whoever reads a namespace's jobs may know nothing of what its users do elsewhere."""
    others = [
        job("a", ago_s=1),
        job("secret", namespace="elsewhere", ago_s=2),
        job("b", namespace="elsewhere", ago_s=3),
    ]
    assert names(known(*others), MINE) == ("team/a", "elsewhere/*", "elsewhere/*")
    assert len(known(*others).alike(MINE, "s", NOW_S).stops_s) == 3


def test_a_job_that_counts_for_another_user_counts_no_more_for_the_first() -> None:
    failed = known(job("a"), job("a", user="bob"))
    assert names(failed, MINE) == ()
    assert names(failed, job("mine", user="bob")) == ("team/a",)
    for number in range(MOST_JOBS + 1):
        failed.see(job(f"j{number}"), NOW_S)


def test_a_restart_knows_the_same_and_the_order_does_not_matter() -> None:
    jobs = [job(name, ago_s=60.0 + number) for number, name in enumerate("abc")]
    before, after = known(*jobs), known(*reversed(jobs))
    assert before.alike(MINE, "s", NOW_S) == after.alike(MINE, "s", NOW_S)
    assert len(before.alike(MINE, "s", NOW_S).stops_s) == 3


def test_a_job_that_is_gone_or_old_is_forgotten() -> None:
    failed = known(job("a"), job("b"), job("c", ago_s=WINDOW_S))
    failed.forget("uid-team-a")
    failed.forget("uid-team-a")
    assert names(failed, MINE) == ("team/b",)
    failed.see(job("b", failure=None), NOW_S)  # another attempt failed otherwise, or the status was lost
    assert failed.alike(MINE, "s", NOW_S) == Alike()


def test_memory_is_bounded_by_users_and_days() -> None:
    failed = known(*(job(f"j{number}", ago_s=600.0 - number / 10) for number in range(3 * MOST_JOBS)))
    assert len(names(failed, MINE)) == MOST_JOBS
    assert names(failed, MINE)[0] == f"team/j{3 * MOST_JOBS - 1}"
    failed.forget_all()
    assert names(failed, MINE) == ()


@pytest.mark.parametrize("failure", [None, {}, {"signature": "s"}, {"time": "2026-01-01T00:00:00Z"}, {"signature": ""}])
def test_a_failure_of_an_older_version_is_like_nothing(failure: Json | None) -> None:
    assert failed_job_from_json(job("a", failure=failure)) is None
