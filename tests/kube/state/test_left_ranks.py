"""Pods whose job is gone: their tenant holds what they use until they have ended."""

from __future__ import annotations

from typing import Any

import pytest

from coda.cache.job_facts import facts_of
from coda.model import Job, JobId, Phase, Resources
from coda.model.capacity import free_by_node
from coda.tenants import TenantLedger
from coda_kube.cluster_state import ClusterState
from coda_kube.objects.json_types import Json
from tests.extender.objects import job_json, node_json, placement, rank_json

QUOTA = 64
TEAM: Json = {
    "metadata": {"name": "team", "creationTimestamp": "2026-01-01T00:00:00Z", "generation": 1},
    "spec": {"namespaces": ["default"], "quota": {"gpus": QUOTA}, "mayBorrow": False},
}


BIG = Job(
    id=JobId("default/big"),
    uid="big",
    phase=Phase.QUEUED,
    attempt=1,
    generation=1,
    replicas=QUOTA + 1,
    request=Resources(gpus=1, pods=1),
    virtual_cluster="team",
)


def in_default(item: Json, **metadata: Any) -> Json:
    return item | {"metadata": {"resourceVersion": "1"} | item["metadata"] | {"namespace": "default"} | metadata}


def job(phase: str = "Running", **metadata: Any) -> Json:
    return in_default(job_json("train", replicas=2, phase=phase, placement=placement("n0", "n1")), **metadata)


def rank(number: int) -> Json:
    return in_default(rank_json("train", number, f"n{number}", node=f"n{number}"), uid=f"pod-{number}")


class Watched:
    """What the planner keeps, and what the tenant is charged by it: in the planner's sums and in its status."""

    def __init__(self) -> None:
        self.state = ClusterState()
        for number in range(2):
            self.state.on_node(None, node_json(f"n{number}"))
        self.state.on_virtual_cluster(None, TEAM)

    def charged(self) -> int:
        """What the team's quota is charged, by the planner's sum; the status says the same."""
        world = self.state.snapshot()
        tenants = TenantLedger()
        tenants.set_quotas(world.virtual_clusters)
        for one in world.jobs:
            facts = facts_of(one)
            tenants.add(one, facts.nodes + facts.leaving)
        shortage = tenants.shortage(BIG)
        assert shortage is not None
        used = self.state.tenants.status_of("team")["gpus"]["used"]
        assert shortage.left == QUOTA - used
        return int(used)


@pytest.fixture
def watched() -> Watched:
    """A running job of two ranks, in a namespace of the team's."""
    one = Watched()
    one.state.on_job(None, job())
    for number in range(2):
        one.state.on_pod(None, rank(number))
    assert one.charged() == 16
    return one


def test_a_deleted_job_is_charged_until_each_of_its_pods_has_ended(watched: Watched) -> None:
    watched.state.on_job(job(), None)
    assert watched.charged() == 16
    watched.state.on_pod(rank(0), rank(0) | {"status": {"phase": "Failed"}})
    assert watched.charged() == 8
    watched.state.on_pod(rank(1), None)
    assert watched.charged() == 0
    assert not [*watched.state.snapshot().jobs]


def test_a_job_that_is_submitted_again_under_its_name_does_not_hide_the_first(watched: Watched) -> None:
    watched.state.on_job(job(), job(uid="another") | {"status": {"phase": "Queued"}})
    assert watched.charged() == 16
    watched.state.on_pod(rank(0), None)
    assert watched.charged() == 8


def test_pods_that_run_on_without_an_owner_are_charged(watched: Watched) -> None:
    """`kubectl delete --cascade=orphan` takes the owner off the pods, and then removes the job."""
    for number in range(2):
        watched.state.on_pod(rank(number), in_default(rank(number), ownerReferences=[]))
    watched.state.on_job(job(), None)
    assert watched.charged() == 16
    watched.state.on_pod(rank(0), None)
    assert watched.charged() == 8


@pytest.mark.parametrize("stamp", ["alice", None])
@pytest.mark.parametrize("is_orphan", [True, False])
def test_what_is_left_counts_for_the_user_who_asked_for_it(stamp: str | None, is_orphan: bool) -> None:
    """Else whoever leaves a rank behind would begin again with nothing in their share."""
    watched = Watched()
    pod = in_default(rank(0), **({"ownerReferences": []} if is_orphan else {}))
    if stamp:
        pod["metadata"]["annotations"] = pod["metadata"]["annotations"] | {"coda.scheduler/user": stamp}
    watched.state.on_pod(None, pod)
    assert [(left.user, left.ending) for left in watched.state.snapshot().jobs] == [(stamp or "default", ("n0",))]


def test_a_new_leader_charges_the_pods_of_a_job_that_had_finished() -> None:
    watched = Watched()
    watched.state.on_job(None, job("Succeeded"))
    watched.state.on_pod(None, rank(0))
    assert watched.charged() == 8
    watched.state.on_pod(rank(0), None)
    assert watched.charged() == 0


def test_pods_that_are_seen_before_their_job_are_charged_once() -> None:
    watched = Watched()
    for number in range(2):
        watched.state.on_pod(None, rank(number))
    watched.state.on_job(None, job())
    assert watched.charged() == 16


def test_what_is_left_follows_its_namespace_to_another_team(watched: Watched) -> None:
    watched.state.on_job(job(), None)
    assert watched.charged() == 16
    watched.state.on_virtual_cluster(TEAM, TEAM | {"spec": TEAM["spec"] | {"namespaces": ["other"]}})
    assert watched.charged() == 0


def test_forged_labels_charge_nobody_but_the_forger() -> None:
    watched = Watched()
    forged = in_default(rank(0), namespace="other", ownerReferences=[])
    watched.state.on_pod(None, forged)
    assert watched.charged() == 0


@pytest.mark.parametrize("phase", ["Queued", "Launched", "Running"])
def test_pods_of_a_job_that_cannot_be_read_hold_what_they_have(phase: str) -> None:
    """A planner that starts has no earlier version of it: one rank is bound, and one is not yet."""
    watched, odd = Watched(), job(phase)
    odd["status"]["request"]["resources"] = {"memory": "lots"}
    state, waiting = watched.state, in_default(rank_json("train", 1, "n1"), uid="pod-1")
    state.on_job(None, odd)
    state.on_pod(None, rank(0))
    state.on_pod(None, waiting)
    for _ in range(2):
        assert watched.charged() == 16
        assert free_by_node(state.snapshot())["n1"].gpus == 0
        state.on_pod(waiting, rank(1))
    state.on_job(odd, job("Running"))
    assert [one.id for one in state.snapshot().jobs] == ["default/train"]
    assert watched.charged() == 16
