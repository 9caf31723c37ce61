"""What an uninstallation decides; tests/deploy/test_uninstall.py carries it out on a cluster."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import yaml

from coda.errors import Outage
from coda_kube.objects.json_types import Json
from coda_kube.objects.pods.node_terms import pinned
from coda_lab.host.paths import chart, manifests
from coda_lab.install import objects_in
from coda_operator.uninstall.leftovers import RECORDS, node_patch
from coda_operator.uninstall.parallel import AT_ONCE, in_parallel
from coda_operator.uninstall.removal import MUTATING, VALIDATING
from coda_operator.uninstall.waiting_pods import Fate, fate_of, remade

GATE = {"name": "coda.scheduler/admission"}
RELEASED = {
    "coda.scheduler/plan": "p1",
    "coda.scheduler/planned-time": "2026-01-01T00:00:00Z",
    "coda.scheduler/queued-time": "2026-01-01T00:00:00Z",
}
IGNORING = {"podFailurePolicy": {"rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}]}}


ENDING = {"podFailurePolicy": {"rules": [{"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget"}]}]}}


def pod(owner: str = "", *, notes: dict[str, str] | None = None, **spec: Any) -> Json:
    api_version, _, kind = owner.rpartition("/")
    owners = [{"apiVersion": api_version, "kind": kind, "uid": "u1", "controller": True}] if owner else []
    return {
        "metadata": {"name": "p", "namespace": "n", "annotations": notes or {}, "ownerReferences": owners},
        "spec": {"schedulerName": "coda", "containers": [], "schedulingGates": [GATE]} | spec,
    }


@pytest.mark.parametrize(
    ("waiting", "job", "expected"),
    [
        pytest.param(pod("apps/v1/ReplicaSet"), None, Fate.EVICT, id="of a Deployment"),
        pytest.param(pod("apps/v1/StatefulSet"), None, Fate.EVICT, id="of a StatefulSet"),
        pytest.param(pod("batch/v1/Job"), {"spec": IGNORING}, Fate.EVICT, id="of a Job that ignores it"),
        pytest.param(pod("batch/v1/Job"), {"spec": {}}, Fate.COUNT, id="of a Job that counts it"),
        pytest.param(pod("batch/v1/Job"), {"spec": {"backoffLimitPerIndex": 1}}, Fate.LET_GO, id="of a Job by index"),
        pytest.param(pod("batch/v1/Job"), {"spec": ENDING}, Fate.LET_GO, id="of a Job that an eviction would end"),
        pytest.param(pod("batch/v1/Job"), None, Fate.LET_GO, id="of a Job that is gone"),
        pytest.param(pod("argoproj.io/v1/Workflow"), None, Fate.LET_GO, id="of another controller"),
        pytest.param(pod("batch.volcano.sh/v1/Job"), None, Fate.LET_GO, id="of another group's Job"),
        pytest.param(pod(), None, Fate.REMAKE, id="of nobody"),
        pytest.param(pod(schedulingGates=[GATE, {"name": "x"}]), None, Fate.REMAKE, id="with another gate"),
        pytest.param(pod(notes=RELEASED, schedulingGates=[]), None, Fate.REMAKE, id="released and not bound"),
        pytest.param(pod(notes=RELEASED, schedulingGates=[], nodeName="a"), None, None, id="bound"),
        pytest.param(pod("x/v1/Y", notes=RELEASED, schedulingGates=[]), None, None, id="let go already"),
        pytest.param(pod(schedulingGates=[]), None, None, id="names the scheduler itself"),
        pytest.param(pod(schedulingGates=[{"name": "x"}]), None, None, id="another gate alone"),
    ],
)
def test_what_becomes_of_a_pod_that_waits(waiting: Json, job: Json | None, expected: Fate | None) -> None:
    assert fate_of(waiting, job) is expected


def test_a_pod_that_ends_already_is_left_alone() -> None:
    ending = pod()
    ending["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert fate_of(ending, None) is None


def test_a_pod_whose_name_somebody_holds_is_only_let_go() -> None:
    held = pod()
    held["metadata"]["finalizers"] = ["somebody.example.com/else"]
    assert fate_of(held, None) is Fate.LET_GO


def test_a_pod_that_cannot_be_read_holds_nobody_up() -> None:
    forged = {"coda.scheduler/plan": "p", "coda.scheduler/planned-time": "yesterday"}
    assert fate_of(pod(notes=forged), None) is Fate.REMAKE
    assert fate_of(pod(notes=forged, schedulingGates=[]), None) is None


async def test_an_error_of_one_ends_all_and_is_the_one_that_is_raised() -> None:
    async def fail() -> int:
        raise Outage("away")

    async def wait() -> int:
        await asyncio.Event().wait()
        return 1

    with pytest.raises(Outage, match="away"):
        await in_parallel([wait(), fail(), wait()])


async def test_no_more_than_a_few_requests_are_under_way() -> None:
    under_way, most = 0, 0

    async def work(number: int) -> int:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0)
        under_way -= 1
        return number

    assert await in_parallel(work(number) for number in range(100)) == list(range(100))
    assert most == AT_ONCE


MINE = {"key": "nvidia.com/gpu", "operator": "Exists"}


def test_a_pod_of_nobodys_is_made_anew_as_its_maker_asked_for_it() -> None:
    zone = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}
    wish = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [zone]}}}
    waited = pod(
        notes={**RELEASED, "coda.scheduler/user": "ann", "mine": "1", "coda.scheduler/throttling": "false"},
        schedulingGates=[GATE, {"name": "x"}],
        tolerations=[MINE, {"key": "coda.scheduler/pool", "operator": "Exists"}, MINE, {"key": "other"}],
        affinity=pinned(wish, "node-7"),
    )
    waited["metadata"] |= {"uid": "u", "resourceVersion": "5", "labels": {"a": "b"}, "managedFields": []}
    waited["status"] = {"phase": "Pending"}
    fresh = remade(waited)
    assert set(fresh) == {"apiVersion", "kind", "metadata", "spec"}
    assert fresh["metadata"] == {
        "name": "p",
        "namespace": "n",
        "labels": {"a": "b"},
        "ownerReferences": [],
        "annotations": {"mine": "1", "coda.scheduler/throttling": "false"},
    }
    assert fresh["spec"]["schedulerName"] == "default-scheduler"
    assert fresh["spec"]["schedulingGates"] == [{"name": "x"}]
    assert fresh["spec"]["tolerations"] == [MINE, {"key": "other"}]
    terms = fresh["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert [term["matchExpressions"] for term in terms["nodeSelectorTerms"]] == [zone["matchExpressions"]]
    assert not any(term["matchFields"] for term in terms["nodeSelectorTerms"])


def test_a_pod_that_asked_for_no_node_has_no_pin_afterwards() -> None:
    fresh = remade(pod(notes=RELEASED, affinity=pinned({}, "node-7")))
    assert fresh["spec"]["affinity"] == {"nodeAffinity": {}}


def test_only_what_is_codas_is_taken_off_a_node() -> None:
    kept = {"key": "nvidia.com/gpu", "effect": "NoSchedule"}
    node = {
        "metadata": {
            "resourceVersion": "7",
            "labels": {"coda.scheduler/x": "1", "topology.coda.scheduler/rack": "r1", "zone": "a"},
        },
        "spec": {"taints": [{"key": "coda.scheduler/pool", "effect": "NoSchedule"}, kept]},
    }
    assert node_patch(node) == {
        "metadata": {"labels": {"coda.scheduler/x": None}, "resourceVersion": "7"},
        "spec": {"taints": [kept]},
    }
    assert node_patch({"metadata": {"resourceVersion": "7"}, "spec": {"taints": [kept]}}) is None
    assert node_patch({"metadata": {"resourceVersion": "7", "labels": {"zone": "a"}}}) is None


def test_it_removes_every_policy_there_is() -> None:
    names: dict[str, set[str]] = {}
    for item in objects_in(manifests()):
        names.setdefault(item["kind"], set()).add(item["metadata"]["name"])
    assert set(MUTATING) == names["MutatingAdmissionPolicy"] == names["MutatingAdmissionPolicyBinding"]
    assert set(VALIDATING) == names["ValidatingAdmissionPolicy"] == names["ValidatingAdmissionPolicyBinding"]


def test_it_removes_every_object_that_a_role_lets_a_part_write() -> None:
    written: dict[str, set[str]] = {}
    for item in objects_in(manifests()):
        for rule in item.get("rules", ()) if item["kind"] == "Role" else ():
            for resource in rule["resources"]:
                written.setdefault(resource, set()).update(rule.get("resourceNames", ()))
    removed = {path.rpartition("/")[2]: set(names) for path, names in RECORDS.items()}
    removed["leases"] -= {"coda-scheduler"}  # whose role the chart has
    assert removed == {resource: written[resource] for resource in removed}


def test_the_role_of_the_hook_names_what_it_removes() -> None:
    text = (chart() / "templates" / "uninstall.yaml").read_text()
    for names in (*RECORDS.values(), tuple(sorted((*MUTATING, *VALIDATING)))):
        assert f"resourceNames: [{', '.join(sorted(names))}]" in text


def test_what_stays_is_said() -> None:
    kept = [
        item["metadata"]["name"]
        for item in yaml.safe_load_all((manifests() / "user.yaml").read_text())
        if (item["metadata"].get("annotations") or {}).get("helm.sh/resource-policy") == "keep"
    ]
    assert kept == ["coda-edit", "coda-view"]
