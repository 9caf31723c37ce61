"""Whose a namespace is, and what each virtual cluster uses."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coda.cycle import Part
from coda.model import Job, Phase, Resources
from coda.model.world import VirtualCluster
from coda_kube.cluster_state import ClusterState
from coda_kube.objects.json_types import Json
from coda_kube.objects.quantities import seconds_from_time
from coda_kube.quotas.virtual_clusters import VirtualClusters
from tests.builders import job, planned, running
from tests.extender.objects import job_json, node_json

OLD, NEW = "2026-01-01T00:00:00Z", "2026-02-01T00:00:00Z"


def vc_json(name: str, *namespaces: str, created: str = OLD, **spec: Any) -> Json:
    metadata = {"name": name, "creationTimestamp": created, "generation": 3, "resourceVersion": "1"}
    return {"metadata": metadata, "spec": {"namespaces": list(namespaces)} | spec}


def known(*items: Json) -> VirtualClusters:
    tenants = VirtualClusters()
    for item in items:
        tenants.note(None, item)
    return tenants


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        pytest.param({}, VirtualCluster(name="lab"), id="no quota"),
        pytest.param(
            {"quota": {"gpus": 8, "cpus": 64}, "weight": 3, "mayBorrow": False},
            VirtualCluster(name="lab", gpus=8, cpu_m=64_000, weight=3.0, may_borrow=False),
            id="all fields",
        ),
        pytest.param({"quota": {"gpus": 0}}, VirtualCluster(name="lab", gpus=0), id="a quota of nothing"),
    ],
)
def test_reads_what_is_the_tenant_s_own(spec: dict[str, Any], expected: VirtualCluster) -> None:
    assert known(vc_json("lab", "a", **spec)).get("lab") == expected


def test_says_which_namespaces_change_hands() -> None:
    tenants = VirtualClusters()
    assert set(tenants.note(None, vc_json("lab", "a", "b"))) == {"a", "b"}
    assert set(tenants.note(None, vc_json("lab", "b", "c"))) == {"a", "c"}
    assert set(tenants.note(None, vc_json("firm", "c", "d", created=NEW))) == {"d"}
    assert (tenants.tenant_of("c"), tenants.tenant_of("d"), tenants.tenant_of("e")) == ("lab", "firm", "")
    assert set(tenants.note(vc_json("lab", "b", "c"), None)) == {"b", "c"}
    assert tenants.tenant_of("c") == "firm"


def test_a_namespace_of_two_counts_for_the_older_and_both_say_so() -> None:
    tenants = known(vc_json("young", "a", "b", created=NEW), vc_json("old", "a"))
    assert (tenants.tenant_of("a"), tenants.tenant_of("b")) == ("old", "young")
    conditions = {name: tenants.status_of(name)["conditions"][0] for name in ("old", "young")}
    assert {name: condition["status"] for name, condition in conditions.items()} == {"old": "True", "young": "True"}
    expected = "one namespace is another's: a is named by old too, and counts for old, the older"
    assert conditions["young"]["message"] == expected
    assert known(vc_json("lab", "a")).status_of("lab")["conditions"][0]["status"] == "False"


def test_adds_up_what_jobs_hold_and_wait_for() -> None:
    tenants = known(vc_json("lab", "team", quota={"gpus": 3, "cpus": 1}))
    jobs = [
        running(job("gang", gpus=2, cores=8, replicas=2, virtual_cluster="lab"), "n1", "n2"),
        job("waits", gpus=8, replicas=2, virtual_cluster="lab"),
        running(job("pod", gpus=0, cores=1.5, virtual_cluster="lab"), "n1"),
        job("pod-waits", gpus=0, cores=2, virtual_cluster="lab"),
        running(job("other", gpus=8), "n1"),
    ]
    for one in jobs:
        tenants.count(None, one)
    status = tenants.status_of("lab")
    assert status["gpus"] == {"used": 4, "own": 3, "borrowed": 1, "waiting": 16}
    assert status["cpus"] == {"used": "1500m", "own": "1", "borrowed": "500m", "waiting": "2"}
    assert status["jobs"] == {"running": 2, "waiting": 2}
    assert status["observedGeneration"] == 3


VERSIONS = st.lists(
    st.tuples(st.sampled_from("abc"), st.sampled_from(("gone", "waits", "planned", "runs", "ended")), st.booleans()),
    max_size=30,
)


@settings(max_examples=100, deadline=None)
@given(VERSIONS)
def test_counting_changes_gives_the_sum_over_all(versions: list[tuple[str, str, bool]]) -> None:
    """A law: whatever jobs went through, the sums are those of the jobs that are left."""
    tenants, left = known(vc_json("lab", "team")), dict[str, Job]()
    for name, state, is_lab in versions:
        after = _job_in(name, state, "lab" if is_lab else "firm")
        tenants.count(left.pop(name, None), after)
        if after is not None:
            left[name] = after
    afresh = known(vc_json("lab", "team"))
    for one in left.values():
        afresh.count(None, one)
    assert tenants.status_of("lab") == afresh.status_of("lab")


def _job_in(name: str, state: str, tenant: str) -> Job | None:
    built = job(name, gpus=ord(name) - ord("a"), cores=2, virtual_cluster=tenant)
    by_state = {
        "gone": None,
        "waits": built,
        "planned": planned(built, "n1"),
        "runs": running(built, "n1"),
        "ended": planned(built, "n1", phase=Phase.SUCCEEDED),
    }
    return by_state[state]


def waiting_json(name: str, namespace: str = "team") -> Json:
    item = job_json(name)
    item["metadata"] |= {"namespace": namespace, "resourceVersion": "1"}
    return item


def test_an_edit_changes_at_most_so_many_jobs_at_once() -> None:
    """Filter calls are answered on the same loop, and a namespace may have 10 000 pods."""
    state = ClusterState()
    for number in range(25):
        state.on_job(None, waiting_json(f"job-{number}"))
    state.on_job(None, waiting_json("other", "elsewhere"))
    lab = vc_json("lab", "team")
    state.on_virtual_cluster(None, lab)
    state.on_job(None, waiting_json("later"))
    changed = [state.tenants.amounts_of("lab").waiting]
    while state.read_tenants(10):
        changed.append(state.tenants.amounts_of("lab").waiting)
    assert changed == [1, 10, 20]  # the one that came later had its tenant at once
    assert state.tenants.amounts_of("lab").waiting == 26
    version = state.version
    assert not state.read_tenants(10)
    assert state.version == version


def test_a_status_of_a_virtual_cluster_is_no_change_of_what_counts() -> None:
    """The planner writes it every 5 s, and would cause a cycle each time."""
    state = ClusterState()
    lab = vc_json("lab", "team")
    state.on_virtual_cluster(None, lab)
    before = state.version, state.changes[Part.TENANTS].end
    again = vc_json("lab", "team") | {"status": {"gpus": {"used": 1}}}
    again["metadata"] |= {"generation": 4, "resourceVersion": "2"}
    state.on_virtual_cluster(lab, again)
    assert (state.version, state.changes[Part.TENANTS].end) == before
    assert state.tenants.status_of("lab")["observedGeneration"] == 4
    state.on_virtual_cluster(again, vc_json("lab", "team", quota={"gpus": 1}))
    assert state.version > before[0]


def test_an_edit_that_cannot_be_read_leaves_the_tenant_as_it_was() -> None:
    tenants, lab = known(vc_json("lab", "team")), vc_json("lab", "team")
    with pytest.raises(ValueError, match="many"):
        tenants.note(lab, vc_json("lab", "team", quota={"gpus": "many"}))
    assert tenants.get("lab") == VirtualCluster(name="lab")


def test_jobs_follow_their_namespace() -> None:
    """Jobs that are there already, and those that come later; and back again when the virtual cluster goes."""
    state = ClusterState()
    state.on_node(None, node_json("n1"))

    state.on_job(None, waiting_json("before"))
    lab = vc_json("lab", "team", quota={"gpus": 4})
    state.on_virtual_cluster(None, lab)
    state.on_job(None, waiting_json("after"))
    found = state.snapshot()
    assert {one.virtual_cluster for one in found.jobs} == {"lab"}
    assert found.virtual_clusters == (VirtualCluster(name="lab", gpus=4),)
    assert state.tenants.status_of("lab")["jobs"]["waiting"] == 2
    state.on_virtual_cluster(lab, None)
    found = state.snapshot()
    assert ({one.virtual_cluster for one in found.jobs}, found.virtual_clusters) == ({""}, ())


def test_tenants_at_the_top_say_that_they_own_more_than_the_cluster_has() -> None:
    """Those that own some of it. Parts of them say what their parents leave them, as before."""
    tenants = known(vc_json("a", quota={"gpus": 100}), vc_json("b", quota={"gpus": 20}), vc_json("c"))
    tenants.note(None, vc_json("part", parent="a", quota={"gpus": 8}))

    def said(name: str, gpus: int) -> tuple[str, str, str]:
        condition = tenants.status_of(name, there=Resources(gpus=gpus))["conditions"][2]
        return condition["status"], condition["reason"], condition["message"]

    more = "the top-level VirtualClusters own 120 GPUs together, and the cluster has 119 GPUs: what is owned is not"
    assert said("a", 119) == said("b", 119) == ("True", "ClusterHasLess", f"{more} always there")
    assert said("c", 119)[1] == said("part", 119)[1] == said("a", 120)[1] == "WithinQuota"
    alone = known(vc_json("lab", quota={"cpus": 9})).status_of("lab", there=Resources(cpu_m=1000))["conditions"][2]
    assert alone["message"].startswith("VirtualCluster lab owns 9 cores, and the cluster has 1 core:")


def test_an_edit_of_the_spec_has_the_time_that_the_api_server_gave_it() -> None:
    """Whoever writes the status or annotations edits no quota."""
    lab = vc_json("lab", "team", quota={"gpus": 4})
    assert lost_s(lab) == -inf
    spec: Json = {"f:spec": {"f:quota": {}}}
    notes: Json = {"f:metadata": {"f:annotations": {}}}
    lab["metadata"]["managedFields"] = [
        {"manager": "helm", "time": OLD, "fieldsV1": spec},
        {"manager": "kubectl", "time": "2026-01-01T00:00:09Z", "fieldsV1": spec | notes},
        {"manager": "notes", "time": NEW, "fieldsV1": notes},
        {"manager": "coda-extender", "time": NEW, "subresource": "status", "fieldsV1": {"f:spec": {}, "f:status": {}}},
        {"manager": "odd", "time": "yesterday", "fieldsV1": spec},
        {},
    ]
    assert lost_s(lab) == seconds_from_time(OLD) + 9


def lost_s(item: Json) -> float:
    """As the first look finds it."""
    tenants = known(item)
    tenants.note_losses()
    return tenants.by_name()[item["metadata"]["name"]].lost_s
