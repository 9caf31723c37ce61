"""What the operator keeps of finished jobs: what may still matter, in a few hundred bytes each."""

from __future__ import annotations

import gc
import tracemalloc
from dataclasses import replace
from typing import Any

import orjson
import pytest

from coda_kube.api.client import Client
from coda_operator.view import ClusterView
from coda_operator.view.job_record import record_from_json
from coda_operator.view.packed_jobs import KnownJob, packed_job, unpacked_job
from tests.operator_tests.fake_cluster import FakeCluster
from tests.operator_tests.operators import operator
from tests.operator_tests.rest_of_cluster import rest_of_cluster

TIME = "2026-11-01T10:20:30.000Z"
JOBS = 1500


def job_json(number: int, phase: str = "Succeeded", **status: Any) -> dict[str, Any]:
    """A job of four ranks as the API server has it."""
    return {
        "apiVersion": "coda.scheduler/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {
            "name": f"train-{number}",
            "namespace": f"team-{number % 12}",
            "uid": f"5a3c5c1e-0000-4000-8000-{number:012d}",
            "resourceVersion": str(1000 + number),
            "generation": 1,
            "creationTimestamp": TIME,
            "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "x" * 900},
        },
        "spec": {
            "replicas": 4,
            "gpusPerReplica": 8,
            "cpusPerReplica": "auto",
            "category": "NLP",
            "retries": 3,
            "startDeadlineSeconds": 1800,
            "successPolicy": "AllRanks",
            "suspend": False,
            "ttlSecondsAfterFinished": 604800,
            "template": {"spec": {"containers": [{"name": "main", "env": [{"name": "A", "value": "v" * 1000}]}]}},
        },
        "status": {
            "phase": phase,
            "attempt": 2,
            "failures": 1,
            "observedGeneration": 1,
            "gpus": 32,
            "queuedTime": TIME,
            "launchTime": TIME,
            "startTime": TIME,
            "completionTime": TIME,
            "message": "all ranks succeeded",
            "request": {"resources": {"nvidia.com/gpu": "8", "cpu": "32", "memory": "64Gi"}, "cpusPerReplica": 32},
            "placement": {
                "attempt": 2,
                "planId": f"{number:016x}",
                "epoch": 3,
                "generation": 1,
                "state": "Released",
                "nodes": [f"node-{number + rank}" for rank in range(4)],
                "cpusPerReplica": 32,
                "committedTime": TIME,
                "bindDeadline": TIME,
            },
            **status,
        },
    }


def test_a_finished_job_takes_a_few_hundred_bytes() -> None:
    view = ClusterView(Client.__new__(Client), lambda _key: None, lambda _key: None)
    tracemalloc.start()
    try:
        grown = min(grown_by_jobs(view, range(JOBS)), grown_by_jobs(view, range(JOBS, 2 * JOBS)))
    finally:
        tracemalloc.stop()
    assert len(view.jobs.by_key) == 2 * JOBS
    assert grown / JOBS < 768


def grown_by_jobs(view: ClusterView, numbers: range) -> int:
    """The bytes that these jobs take. Python's table of interned words may double in one measurement of two."""
    jobs = [orjson.dumps(job_json(number)) for number in numbers]
    gc.collect()
    before = tracemalloc.get_traced_memory()[0]
    for job in jobs:
        view.jobs.put(orjson.loads(job))
    gc.collect()
    return tracemalloc.get_traced_memory()[0] - before


async def test_a_job_as_the_operator_leaves_it_is_packed_into_a_few_bytes() -> None:
    """The words that the packer knows are those of today's statuses: else a job takes 600 bytes and more."""
    api = FakeCluster()
    async with rest_of_cluster(api), operator(api):
        job = api.submit()
        await api.until(lambda: api.status(job).get("phase") == "Succeeded", timeout_s=600)
        (made,) = api.all("trainingjobs")
    assert made["status"]["delays"]["doing"] == "Ended"
    as_the_api_server_says_it = orjson.loads(orjson.dumps(made, option=orjson.OPT_SORT_KEYS))
    assert len(packed_job(as_the_api_server_says_it)) < 350


@pytest.mark.parametrize("phase", ["Succeeded", "Failed", "Running", "Queued"])
def test_a_packed_job_says_what_may_still_matter(phase: str) -> None:
    job = job_json(7, phase)
    before = record_from_json("team-7/train-7", job)
    after = record_from_json("team-7/train-7", unpacked_job(packed_job(job)))
    ended = phase in ("Succeeded", "Failed")
    assert (after.json == job) is not ended
    assert replace(after, json={}, placement=None) == replace(before, json={}, placement=None)
    assert after.request == before.request
    assert after.version == before.version


def test_of_a_packed_jobs_annotations_those_stay_by_which_a_tool_knows_it() -> None:
    job = job_json(7)
    job["metadata"]["annotations"]["argocd.argoproj.io/tracking-id"] = "train:x"
    packed = unpacked_job(packed_job(job))
    assert packed["metadata"]["annotations"] == {"argocd.argoproj.io/tracking-id": "train:x"}
    assert record_from_json("team-7/train-7", packed).terms.is_applied


def test_a_refused_template_is_kept_because_it_may_be_edited() -> None:
    job = job_json(7, "Failed", reason="TemplateRefused")
    assert unpacked_job(packed_job(job)) == job


def test_bytes_of_a_job_that_runs_take_no_more_than_their_length() -> None:
    job = job_json(7, "Running")
    tracemalloc.start()
    try:
        packed = [packed_job(job) for _ in range(100)]
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert taken < 120 * len(packed[0])


def test_a_known_job_reads_as_its_json() -> None:
    known = KnownJob(job_json(7))
    assert known["metadata"] == {
        "name": "train-7",
        "namespace": "team-7",
        "uid": "5a3c5c1e-0000-4000-8000-000000000007",
        "resourceVersion": "1007",
    }
    assert known["status"] == {"phase": "Succeeded"}
    assert known.get("status") == known["status"]
    assert known.get("spec") is None
    assert known or False
    with pytest.raises(KeyError):
        known["spec"]
    assert KnownJob(job_json(7) | {"status": None})["status"] == {"phase": None}
    failed = {"phase": "Running", "failures": 2, "disruptions": 0}
    assert KnownJob(job_json(7) | {"status": failed})["status"] == {"phase": "Running", "failures": 2}
    assert KnownJob(job_json(7) | {"status": failed | {"phase": "Failed"}})["status"] == {"phase": "Failed"}
