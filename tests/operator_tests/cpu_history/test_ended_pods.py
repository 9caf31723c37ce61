"""A pod that is a CPU job -> its record: how it ended, what it waited for, what it held."""

from __future__ import annotations

from typing import Any

import pytest

from coda.history.cpu_jobs import CpuEnding, FinishedCpuJob
from coda_kube.objects.json_types import Json
from coda_kube.objects.names import LABEL_JOB_UID
from coda_operator.cpu_history.ended_pod import finished_cpu_job, seen_pod
from tests.operator_tests.cpu_history.pods import CREATED_S, cpu_pod, evicted, phase


def record(pod: Json, *, ended_s: float = CREATED_S + 100.0) -> FinishedCpuJob:
    seen = seen_pod(pod, CREATED_S + 20.0, None)
    assert seen is not None
    return finished_cpu_job(seen, ended_s)


@pytest.mark.parametrize(
    ("pod", "ending"),
    [
        pytest.param(cpu_pod(phase("Succeeded")), CpuEnding.SUCCEEDED, id="it succeeded"),
        pytest.param(cpu_pod(phase("Failed")), CpuEnding.FAILED, id="it failed"),
        pytest.param(cpu_pod(phase("Running")), CpuEnding.DELETED, id="somebody deleted it"),
        pytest.param(cpu_pod(evicted("Failed"), borrows=True), CpuEnding.RECLAIMED, id="it gave borrowed cores back"),
        pytest.param(cpu_pod(evicted("Running"), borrows=True), CpuEnding.RECLAIMED, id="and was killed for it"),
        pytest.param(cpu_pod(evicted("Failed")), CpuEnding.EVICTED, id="a drain"),
        pytest.param(
            cpu_pod(evicted("Failed", "TerminationByKubelet"), borrows=True), CpuEnding.EVICTED, id="a full disk"
        ),
        pytest.param(cpu_pod(evicted("Pending"), borrows=True, node=None), CpuEnding.EVICTED, id="never bound"),
        pytest.param(cpu_pod(evicted("Succeeded"), borrows=True), CpuEnding.SUCCEEDED, id="it was done meanwhile"),
    ],
)
def test_how_a_pod_ended(pod: Json, ending: CpuEnding) -> None:
    assert record(pod).ending is ending


def test_the_causes_of_its_wait_are_the_whole_wait() -> None:
    job = record(cpu_pod(phase("Succeeded"), waits="InsufficientCPU=6,QuotaExceeded=2"))
    assert (job.wait_s, job.held_s) == (10.0, 90.0)
    assert job.waits == (("InsufficientCPU", 6.0), ("Queued", 2.0), ("QuotaExceeded", 2.0))


def test_causes_of_more_than_the_wait_count_in_proportion() -> None:
    """The leader's clock, and whole seconds."""
    job = record(cpu_pod(phase("Succeeded"), waits="InsufficientCPU=15,QuotaExceeded=5"))
    assert job.waits == (("InsufficientCPU", 7.5), ("QuotaExceeded", 2.5))


def test_a_pod_that_was_deleted_while_it_waited_has_waited_until_then() -> None:
    job = record(cpu_pod({}, gated=True), ended_s=CREATED_S + 50.0)
    assert (job.ending, job.wait_s, job.held_s, job.run_s) == (CpuEnding.DELETED, 50.0, 0.0, 0.0)
    assert job.waits == (("Queued", 50.0),)


@pytest.mark.parametrize("text", ["", "x", "A=-1", "A=1e9", "A=999999999999", "=1", "A B=1", "A=", "A=1;B=2"])
def test_an_annotation_that_nobody_of_ours_wrote_says_nothing(text: str) -> None:
    assert record(cpu_pod(phase("Succeeded"), waits=text)).waits == (("Queued", 10.0),)


def test_the_run_is_measured_by_one_clock() -> None:
    """The node's is an hour ahead: that changes nothing."""
    status = phase("Succeeded", started_s=CREATED_S + 3612.0, finished_s=CREATED_S + 3642.0)
    assert record(cpu_pod(status)).run_s == 30.0


def test_a_run_is_never_longer_than_the_pod_held_its_cores() -> None:
    status = phase("Succeeded", started_s=CREATED_S, finished_s=CREATED_S + 7200.0)
    assert record(cpu_pod(status)).run_s == 90.0


def test_a_pod_that_was_killed_has_run_since_it_was_seen_running() -> None:
    assert record(cpu_pod(phase("Running", started_s=CREATED_S + 9000.0))).run_s == 80.0


def test_bare_pods_of_a_user_have_no_name() -> None:
    bare, owned = record(cpu_pod(phase("Failed"), owner=None)), record(cpu_pod(phase("Failed")))
    assert (bare.kind, bare.name, bare.controller) == ("v1/Pod", "", "")
    assert (owned.kind, owned.name, owned.controller) == ("batch/Job", "sweep", "uid-sweep")
    assert (owned.owner, owned.namespace, owned.cpu_m) == ("ann", "default", 2000)


@pytest.mark.parametrize("labels", [{LABEL_JOB_UID: "x"}])
def test_ranks_of_gangs_are_no_cpu_jobs(labels: dict[str, Any]) -> None:
    pod = cpu_pod(phase("Succeeded"))
    pod["metadata"]["labels"] = labels
    assert seen_pod(pod, CREATED_S, None) is None


def test_a_request_that_no_database_holds_is_cut() -> None:
    job = record(cpu_pod(phase("Failed"), cpu="9000000000000000000"))
    assert job.cpu_m == 2**62


def test_a_container_that_was_started_again_has_run_since_it_was_first_seen_running() -> None:
    """It says only when its last start was: here a minute before its end, 100 hours after the first."""
    hours_s = 360_000.0
    begun = seen_pod(cpu_pod(phase("Running", started_s=CREATED_S + 20.0)), CREATED_S + 20.0, None)
    ended = phase("Succeeded", started_s=CREATED_S + hours_s, finished_s=CREATED_S + hours_s + 60.0)
    ended["containerStatuses"][0]["restartCount"] = 1
    seen = seen_pod(cpu_pod(ended), CREATED_S + hours_s + 60.0, begun)
    assert seen is not None
    assert finished_cpu_job(seen, CREATED_S + hours_s + 60.0).run_s == hours_s + 40.0
