"""What finished jobs and their pods leave behind in the extender: jobs stay in the API server for weeks."""

from __future__ import annotations

import gc
import tracemalloc

import orjson
import pytest

from coda_extender.cluster.cluster import ExtenderCluster
from coda_extender.planner.snapshot_feed import SnapshotFeed
from coda_kube.objects.names import ANNOTATION_PLAN, ANNOTATION_PLANNED, LABEL_JOB_UID
from tests.extender.fake_api import FakeApi
from tests.extender.objects import JOBS, PODS, Item, job_json, node_json, placement, pod_json, rank_json
from tests.extender.replicas import replica, state_of, status
from tests.lengths import LONG

RANKS = 4
JOBS_COUNT = 50_000 if LONG else 250  # in each of two measurements
MOST_BYTES = 1024
CREATED = "2026-01-01T00:00:00Z"


def versioned(item: Item, version: int) -> Item:
    """The object as the cache gets it: parsed anew."""
    metadata = item["metadata"] | {"namespace": "default", "resourceVersion": str(version)}
    parsed: Item = orjson.loads(orjson.dumps(item | {"metadata": metadata}))
    return parsed


class Cluster:
    """A replica's caches, and a planner's feed that reads them now and then."""

    def __init__(self) -> None:
        self.caches = ExtenderCluster(FakeApi(), in_flight_limit_s=30.0)
        guard = self.caches.guard
        self.feed = SnapshotFeed(self.caches.state, guard.in_flight, self.caches.held_back)
        self.version = 0
        self.uid = ""  # of the next jobs and their ranks; empty: by the name
        self.caches.state.on_node(None, node_json("n1", gpus=1 << 20))

    def set_job(self, name: str, phase: str) -> None:
        self.version += 1
        item = job_json(name, replicas=RANKS, phase=phase, placement=placement(*["n1"] * RANKS))
        item["metadata"]["annotations"] = {"kubectl.kubernetes.io/last-applied-configuration": "x" * 2000}
        item["metadata"]["uid"] = self.uid or item["metadata"]["uid"]
        item["spec"]["template"] = {"spec": {"containers": [{"name": f"c{number}"} for number in range(20)]}}
        self.caches.jobs.put(versioned(item, self.version))

    def set_pods(self, name: str, phase: str) -> None:
        for rank in range(RANKS):
            self.version += 1
            pod = rank_json(name, rank, "n1", node="n1")
            pod["status"]["phase"] = phase
            if self.uid:
                pod["metadata"]["uid"] = f"{self.uid}-{rank}"
                pod["metadata"]["labels"][LABEL_JOB_UID] = pod["metadata"]["ownerReferences"][0]["uid"] = self.uid
            self.caches.pods.put(versioned(pod, self.version))

    def set_pod(self, pod: Item, phase: str, *, deleted: bool = False) -> None:
        self.version += 1
        metadata = pod["metadata"] | {"deletionTimestamp": CREATED, "deletionGracePeriodSeconds": 30}
        item = pod | {"metadata": metadata if deleted else pod["metadata"], "status": {"phase": phase}}
        self.caches.pods.put(versioned(item, self.version))

    def live(self, name: str, *, job_first: bool) -> None:
        """A job from its acceptance to its end."""
        self.set_job(name, "Queued")
        self.set_job(name, "Launched")
        self.set_pods(name, "Running")
        self.set_job(name, "Running")
        [*self.feed.changes()]
        if job_first:
            self.set_job(name, "Succeeded")
            self.set_pods(name, "Succeeded")
        else:
            self.set_pods(name, "Succeeded")
            self.set_job(name, "Succeeded")


def grown_by_jobs(cluster: Cluster, name: str) -> int:
    """The bytes that finished jobs leave. Python's table of interned words may double in one measurement of two."""
    gc.collect()
    before = tracemalloc.get_traced_memory()[0]
    for number in range(JOBS_COUNT):
        cluster.live(f"{name}-{number}", job_first=number % 8 == 0)
    [*cluster.feed.changes()]
    gc.collect()
    return tracemalloc.get_traced_memory()[0] - before


def test_a_finished_job_and_its_pods_take_less_than_a_kibibyte() -> None:
    cluster = Cluster()
    tracemalloc.start()
    try:
        for number in range(20_000):  # what is remembered of late is as much as it gets
            cluster.caches.jobs.forget(f"default/before-{number}")
            cluster.caches.pods.forget(f"default/before-{number}")
            for log in cluster.caches.state.changes.values():
                log.add(f"default/before-{number}")
        grown = min(grown_by_jobs(cluster, "gang"), grown_by_jobs(cluster, "more"))
    finally:
        tracemalloc.stop()
    assert grown / JOBS_COUNT < MOST_BYTES
    assert not cluster.caches.state.pod_by_id
    assert not cluster.caches.state.job_json_by_id


CPU_NOTES = {ANNOTATION_PLAN: "plan", ANNOTATION_PLANNED: CREATED}


@pytest.mark.parametrize(
    "pod",
    [
        pytest.param(pod_json("web", node="n1", scheduler="default-scheduler"), id="foreign"),
        pytest.param(
            pod_json("work", node="n1", metadata={"annotations": CPU_NOTES, "creationTimestamp": CREATED}),
            id="CPU job",
        ),
        pytest.param(rank_json("gang", 0, "n1", node="n1"), id="rank of a finished job"),
    ],
)
def test_of_a_pod_that_ends_while_it_is_deleted_nothing_is_kept(pod: Item) -> None:
    """The kubelet says how a deleted pod ended before it lets it go. A standby never asks what leaves."""
    cluster = Cluster()
    cluster.set_job("gang", "Succeeded")
    state = cluster.caches.state
    cluster.set_pod(pod, "Running")
    cluster.set_pod(pod, "Running", deleted=True)
    assert [*state._stopped._deleted_s] == [pod["metadata"]["uid"]]
    cluster.set_pod(pod, "Failed", deleted=True)
    assert not state.pod_by_id
    assert not state._stopped._deleted_s
    assert not state._stopped._stopped_by_owner


def test_ranks_that_ended_count_as_bound_while_their_job_lives() -> None:
    cluster = Cluster()
    cluster.set_job("gang", "Launched")
    cluster.set_pods("gang", "Succeeded")
    known = cluster.caches.state.job(next(iter(cluster.caches.state.job_json_by_id)))
    assert known is not None
    assert known.bound == frozenset(range(RANKS))


@pytest.mark.parametrize("ended", ["finished", "deleted"])
def test_a_rank_that_ends_before_its_job_is_seen_is_kept_beside_an_older_job_of_that_name(ended: str) -> None:
    """Else the room of that rank is withheld until the job ends: nothing says any more that it holds none."""
    cluster = Cluster()
    cluster.uid = "old"
    cluster.set_job("gang", "Running")
    if ended == "finished":
        cluster.set_job("gang", "Succeeded")
    else:
        cluster.caches.jobs.drop(cluster.caches.jobs.by_key["default/gang"])
    cluster.set_pods("gang", "Succeeded")
    assert not cluster.caches.state.pod_by_id
    cluster.uid = "new"
    cluster.set_pods("gang", "Succeeded")
    cluster.set_job("gang", "Running")
    known = cluster.caches.state.job(next(iter(cluster.caches.state.job_json_by_id)))
    assert known is not None
    assert known.bound == frozenset(range(RANKS))


def test_ranks_of_a_job_that_runs_after_its_template_was_mended_count_as_bound() -> None:
    cluster = Cluster()
    cluster.set_job("gang", "Failed")
    cluster.set_job("gang", "Running")
    cluster.set_pods("gang", "Succeeded")
    known = cluster.caches.state.job(next(iter(cluster.caches.state.job_json_by_id)))
    assert known is not None
    assert known.bound == frozenset(range(RANKS))


def test_a_late_answer_brings_no_finished_job_back() -> None:
    cluster = Cluster()
    cluster.set_job("gang", "Queued")
    late = cluster.caches.jobs.by_key["default/gang"]
    cluster.set_job("gang", "Succeeded")
    cluster.caches.jobs.put(late)
    assert not cluster.caches.jobs.by_key


async def test_a_job_that_finished_with_a_reason_loses_it_and_is_then_forgotten() -> None:
    api = FakeApi()
    told = {"code": "InsufficientGPUs", "message": "old", "since": "2024-01-01T00:00:00Z"}
    api.set(JOBS, job_json("gang", phase="Succeeded", pending=told))
    async with replica(api) as one:
        await api.until(lambda: "pending" not in status(api, "gang"))
        await api.until(lambda: not one.cluster.state.job_json_by_id)


async def test_a_new_job_of_a_finished_one_s_name_starts() -> None:
    api = FakeApi()
    api.set("/api/v1/nodes", node_json("n1"))
    api.set(JOBS, job_json("gang", phase="Succeeded"))
    async with replica(api) as one:
        await api.until(lambda: one.cluster.is_synced())
        api.remove(f"{JOBS}/gang")
        api.set(JOBS, job_json("gang"))
        await api.until(lambda: state_of(api, "gang") == "Released")


async def test_a_foreign_pod_that_ended_is_forgotten() -> None:
    api = FakeApi()
    async with replica(api) as one:
        api.set(PODS, rank_json("other", 0, "n1", node="n1") | {"metadata": {"name": "web", "uid": "u"}})
        await api.until(lambda: "default/web" in one.cluster.state.pod_by_id)
        api.change(f"{PODS}/web", lambda pod: pod["status"].update(phase="Failed"))
        await api.until(lambda: not one.cluster.state.pod_by_id)
        assert not one.cluster.pods.by_key
