"""What finished jobs and their ended pods leave behind in the operator: both stay in the API server for weeks."""

from __future__ import annotations

import asyncio
import gc
import sys
import tracemalloc
from itertools import pairwise
from statistics import median
from typing import Any

import orjson
import pytest
from prometheus_client import CollectorRegistry

from coda_kube.objects.names import (
    ANNOTATION_PLAN,
    KIND,
    LABEL_ATTEMPT,
    LABEL_JOB,
    LABEL_JOB_UID,
    LABEL_RANK,
    RANK_FINALIZER,
)
from coda_kube.objects.quantities import time_from_seconds
from coda_operator.history import Outbox
from coda_operator.metrics import HistoryMetrics, Metrics
from coda_operator.reconcile.events import Recorder
from coda_operator.reconcile.reconciler import Reconciler
from coda_operator.reconcile.request_slots import RequestSlots
from coda_operator.view.cluster import ClusterView
from coda_operator.work_queue import WorkQueue
from tests.lengths import LONG
from tests.operator_tests.fake_cluster import PODS, FakeCluster, clock
from tests.operator_tests.operators import CONFIG, operator
from tests.operator_tests.rest_of_cluster import finish, rest_of_cluster
from tests.operator_tests.view.test_packed_jobs import job_json

RANKS = 4
NODES = 50
JOBS_COUNT = 100_000 if LONG else 300
MOST_BYTES = 1024
BATCH = 25  # jobs: most batches meet no leap of a table


class Process:
    """What an operator holds, fed by hand: no watch and no kopf."""

    def __init__(self) -> None:
        api = FakeCluster()
        self.queue = WorkQueue(lambda key: self.reconciler.reconcile(key), clock=clock)
        self.view = ClusterView(api, self.queue.wake, self.queue.wake_soon, clock=clock, config=CONFIG)
        self.recorder = Recorder(api, "operator-0")
        requests, metrics = RequestSlots(lambda: True, at_once=8), Metrics(CollectorRegistry())
        outbox = Outbox(None, self.queue.wake, HistoryMetrics(metrics.registry), clock=clock)
        self.reconciler = Reconciler(api, self.view, requests, self.recorder, metrics, CONFIG, outbox, clock=clock)
        self.version = 10_000_000

    def parsed(self, item: dict[str, Any]) -> Any:
        """The object as the cache gets it."""
        self.version += 1
        return orjson.loads(
            orjson.dumps(item | {"metadata": item["metadata"] | {"resourceVersion": str(self.version)}})
        )

    def set_job(self, number: int, phase: str) -> None:
        job = job_json(number, phase)
        job["status"]["completionTime"] = time_from_seconds(clock())
        job["status"]["placement"]["nodes"] = [f"node-{(number + rank) % NODES}" for rank in range(RANKS)]
        self.view.apply_job_event("MODIFIED", self.parsed(job))

    def set_pods(self, number: int, phase: str, *, held: bool) -> None:
        for rank in range(RANKS):
            self.view.pods.put(self.parsed(pod_json(number, rank, phase, held=held)))

    def drop_pods(self, number: int) -> None:
        for rank in range(RANKS):
            self.view.pods.drop(self.parsed(pod_json(number, rank, "Succeeded", held=False)))

    def live(self, number: int, *, is_leader: bool) -> None:
        """A job from its start to its end; pods are let go after it, and of some a collector takes them away."""
        if is_leader:
            self.set_job(number, "Running")
        self.set_pods(number, "Running", held=True)
        self.set_pods(number, "Succeeded", held=True)
        if is_leader:
            self.set_job(number, "Succeeded")
        self.set_pods(number, "Succeeded", held=False)
        if number % 4 == 0:
            self.drop_pods(number)


def pod_json(number: int, rank: int, phase: str, *, held: bool) -> dict[str, Any]:
    """A rank of `job_json(number)`."""
    job = job_json(number)["metadata"]
    main = {"name": "main", "state": {"running": {}} if phase == "Running" else {"terminated": {"exitCode": 0}}}
    labels = {LABEL_JOB: job["name"], LABEL_JOB_UID: job["uid"], LABEL_ATTEMPT: "2", LABEL_RANK: str(rank)}
    return {
        "metadata": {
            "name": f"{job['name']}-2-{rank}",
            "namespace": job["namespace"],
            "uid": f"6b4d5d1e-0000-4000-8000-{number * RANKS + rank:012d}",
            "labels": labels,
            "annotations": {ANNOTATION_PLAN: f"{number:016x}"},
            "finalizers": [RANK_FINALIZER] if held else [],
            "ownerReferences": [{"kind": KIND, "uid": job["uid"], "name": job["name"], "controller": True}],
        },
        "spec": {"nodeName": f"node-{(number + rank) % NODES}", "containers": [{"name": "main"}]},
        "status": {"phase": phase, "containerStatuses": [main]},
    }


async def all_work_done(process: Process) -> None:
    """Until no work is under way or due within a second."""
    await asyncio.sleep(1.0)
    assert not process.queue.is_busy()


@pytest.mark.parametrize("is_leader", [True, False], ids=["leader", "standby"])
async def test_a_finished_job_and_its_pods_take_less_than_a_kibibyte(is_leader: bool) -> None:
    """In the median of some batches of jobs: the interpreter's own tables grow by leaps of megabytes."""
    process = Process()
    sizes: list[int] = []
    tracemalloc.start()
    try:
        for number in range(20_000):  # what is remembered of late is as much as it gets
            process.view.pods.forget(sys.intern(f"team-1/train-before-{number}-2-0"))
        for number in range(JOBS_COUNT):
            if number % BATCH == 0:
                await all_work_done(process)
                gc.collect()
                sizes.append(tracemalloc.get_traced_memory()[0])
            process.live(number, is_leader=is_leader)
        await all_work_done(process)
    finally:
        tracemalloc.stop()
        await process.queue.stop()
    assert median(after - before for before, after in pairwise(sizes)) / BATCH < MOST_BYTES
    assert not process.view.pods.by_key


async def test_a_rank_that_ended_is_known_again_after_a_fail_over_though_nothing_holds_its_pod() -> None:
    """A replica that does not lead knows no job, and forgets the ended pods that nothing holds."""
    api = FakeCluster()
    async with rest_of_cluster(api, exit_code=lambda attempt, rank: None):
        async with operator(api):
            job = api.submit()
            await api.until(lambda: api.status(job).get("phase") == "Running", timeout_s=600)
        api.change(f"{PODS}/job-1-1", lambda pod: finish(pod, 0))
        api.change(f"{PODS}/job-1-1", lambda pod: pod["metadata"].update(finalizers=[]))
        async with operator(api):
            api.change(f"{PODS}/job-1-0", lambda pod: finish(pod, 0))
            await api.until(lambda: api.status(job).get("phase") != "Running", timeout_s=600)
    assert api.status(job)["phase"] == "Succeeded"
    assert api.status(job)["attempt"] == 1


async def test_a_finished_job_whose_status_is_lost_starts_no_pod_of_its_last_attempt_again() -> None:
    api = FakeCluster()
    async with rest_of_cluster(api), operator(api) as process:
        job = api.submit()
        await api.until(lambda: api.status(job).get("phase") == "Succeeded", timeout_s=600)
        await api.until(lambda: not any(pod["metadata"]["finalizers"] for pod in api.pods().values()))
        assert len(api.pods()) == 2
        await api.until(lambda: not process.cluster.pods.by_key)
        api.change(job, lambda item: item.pop("status"))
        await api.until(lambda: api.status(job).get("phase") == "Running", timeout_s=600)
        assert api.status(job)["attempt"] == 2


async def test_pods_of_a_finished_job_that_something_else_holds_are_let_go() -> None:
    """What was forgotten is looked at again as soon as it changes."""
    api = FakeCluster()
    async with rest_of_cluster(api), operator(api) as process:
        job = api.submit()
        await api.until(lambda: api.status(job).get("phase") == "Succeeded", timeout_s=600)
        await api.until(lambda: not process.cluster.pods.by_key)
        api.change(f"{PODS}/job-1-0", lambda pod: pod["metadata"].update(finalizers=[RANK_FINALIZER]))
        await api.until(lambda: not api.pods()["job-1-0"]["metadata"]["finalizers"], timeout_s=60)
        await api.until(lambda: not process.cluster.pods.by_key)
