"""What a job's claims, their volumes and StorageClasses mean for it, from its acceptance to its start."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from coda.cycle import decide
from coda.policy import PolicyConfig
from coda_kube.api.client import Rejected
from coda_kube.objects.json_types import Json
from coda_kube.objects.read import job_from_json
from tests.builders import node, world
from tests.extender.fake_api import Call
from tests.operator_tests.fake_cluster import PODS, FakeCluster
from tests.operator_tests.operators import operator
from tests.operator_tests.rest_of_cluster import pin_of, rest_of_cluster, start
from tests.operator_tests.test_accidents import never
from tests.operator_tests.test_lost_ranks import reaches

CLAIMS = "/api/v1/namespaces/default/persistentvolumeclaims"
VOLUMES = "/api/v1/persistentvolumes"
CLASSES = "/apis/storage.k8s.io/v1/storageclasses"


def mounts(*claims: str) -> Json:
    """A template whose pods mount these claims."""
    volumes = [{"name": claim, "persistentVolumeClaim": {"claimName": claim}} for claim in claims]
    return {"spec": {"containers": [{"name": "main", "image": "train:1"}], "volumes": volumes}}


def unbound(name: str, annotations: dict[str, str] | None = None, **spec: Any) -> Json:
    return {"metadata": {"name": name, "annotations": annotations or {}}, "spec": spec, "status": {"phase": "Pending"}}


def bound(name: str, volume: str, **spec: Any) -> Json:
    return {"metadata": {"name": name}, "spec": {"volumeName": volume} | spec, "status": {"phase": "Bound"}}


def in_zone(*zones: str, key: str = "zone") -> Json:
    """A node selector."""
    return {"nodeSelectorTerms": [{"matchExpressions": [{"key": key, "operator": "In", "values": [*zones]}]}]}


def class_of_first_use(**more: Any) -> Json:
    return {"metadata": {"name": "gp2"}, "volumeBindingMode": "WaitForFirstConsumer"} | more


async def test_the_old_annotation_names_the_class_of_a_claim() -> None:
    api = FakeCluster()
    async with rest_of_cluster(api, exit_code=never), operator(api):
        api.set(CLASSES, class_of_first_use())
        api.set(CLAIMS, unbound("data", {"volume.beta.kubernetes.io/storage-class": "gp2"}))
        await reaches(api, api.submit(template=mounts("data")), "Running")


def brings(kind: str) -> Json:
    """A template whose pods bring a volume of this class each."""
    scratch = {"name": "scratch", "ephemeral": {"volumeClaimTemplate": {"spec": {"storageClassName": kind}}}}
    return {"spec": {"containers": [{"name": "main", "image": "train:1"}], "volumes": [scratch]}}


async def test_a_job_waits_for_the_class_of_its_ephemeral_volume_and_holds_no_gpu() -> None:
    api = FakeCluster()
    async with rest_of_cluster(api, exit_code=never), operator(api):
        job = api.submit(template=brings("gp2"))
        await api.until(lambda: api.status(job).get("reason") == "StorageClassMissing")
        said = "StorageClass gp2 of its ephemeral volume scratch does not exist"
        assert said in api.status(job)["message"]
        assert not api.all("pods")
        api.set(CLASSES, class_of_first_use())
        await reaches(api, job, "Running")


async def test_of_classes_that_may_not_be_read_nothing_is_said() -> None:
    def deny(call: Call) -> None:
        if "storageclasses" in call.path:
            raise Rejected(403, "Forbidden", f"{call.path} is forbidden")

    api = FakeCluster()
    api.before = deny
    async with rest_of_cluster(api, exit_code=never), operator(api):
        await reaches(api, api.submit(template=brings("gp2")), "Running")


@pytest.mark.parametrize("hidden", ["storageclasses", "persistentvolumes/pv-2", "persistentvolumeclaims/b"])
async def test_what_may_not_be_read_hides_nothing_of_the_other_claims(hidden: str) -> None:
    """A role of one's own may lack a rule. `c` is missing, and `a` is bound to a volume of one zone."""

    def deny(call: Call) -> None:
        if hidden in call.path:
            raise Rejected(403, "Forbidden", f"{call.path} is forbidden")

    api = FakeCluster()
    api.before = deny
    async with rest_of_cluster(api, exit_code=never), operator(api):
        api.set(VOLUMES, {"metadata": {"name": "pv-1"}, "spec": {"nodeAffinity": {"required": in_zone("a")}}})
        api.set(CLAIMS, bound("a", "pv-1"))
        api.set(CLAIMS, bound("b", "pv-2") if "pv-2" in hidden else unbound("b", storageClassName="gp2"))
        job = api.submit(template=mounts("a", "b", "c"))
        await api.until(lambda: api.status(job).get("reason") == "VolumeClaimMissing")
        api.set(CLAIMS, bound("c", "pv-3"))
        accepted = await reaches(api, job, "Running")
        assert accepted["request"]["nodeSelectorTerms"] == in_zone("a")["nodeSelectorTerms"]


async def test_a_volume_that_is_still_to_be_made_goes_where_its_class_allows() -> None:
    api = FakeCluster()
    allowed = {"matchLabelExpressions": [{"key": "zone", "values": ["a", "b"]}]}
    async with rest_of_cluster(api, exit_code=never), operator(api):
        api.set(CLASSES, class_of_first_use(provisioner="ebs.csi.aws.com", allowedTopologies=[allowed]))
        api.set(CLAIMS, unbound("data", storageClassName="gp2"))
        accepted = await reaches(api, api.submit(template=mounts("data")), "Running")
        assert accepted["request"]["nodeSelectorTerms"] == in_zone("a", "b")["nodeSelectorTerms"]


@pytest.mark.parametrize(
    ("terms", "zoned", "told_of"),
    [
        pytest.param(None, ["z-1"], " of the volume of PersistentVolumeClaim z-1", id="the template has no affinity"),
        pytest.param("c", ["b-1", "z-1"], " of the volumes of PersistentVolumeClaims b-1 and z-1", id="nor with one"),
        pytest.param("c", [], "", id="an affinity alone, of the template or of a webhook"),
    ],
)
async def test_the_planner_names_the_claims_whose_volumes_keep_a_job_from_nodes_and_no_others(
    terms: str | None, zoned: list[str], told_of: str
) -> None:
    """Of the other claims, volumes may be on any node, as those of NFS."""
    api, nodes = FakeCluster(), [node(f"n{number}", labels={"zone": "b"}) for number in range(3)]
    names = ["a-1", "a-2", "a-3", "b-1", "z-1"]
    template = mounts(*names)
    if terms is not None:
        required = {"requiredDuringSchedulingIgnoredDuringExecution": in_zone(terms)}
        template["spec"]["affinity"] = {"nodeAffinity": required}
    async with rest_of_cluster(api, plans=False), operator(api):
        for name in names:
            where = {"nodeAffinity": {"required": in_zone("a")}} if name in zoned else {"nfs": {}}
            api.set(VOLUMES, {"metadata": {"name": f"pv-{name}"}, "spec": where})
            api.set(CLAIMS, bound(name, f"pv-{name}"))
        path = api.submit(template=template)
        await api.until(lambda: "request" in api.status(path))
        planned = job_from_json(api.item(path), {})
    assert planned is not None
    (told,) = decide(world(nodes, [planned]), PolicyConfig(), now_s=0).refusals
    said = "none of 3 nodes accepts its pods: 3 outside its required node affinity"
    assert told.reason.message == said + (f"; its node affinity includes that{told_of}" if told_of else "")


async def starts_on_two_nodes(api: FakeCluster, *claims: Json) -> str:
    """A gang with these claims. Rank 0 runs on its node, and rank 1 is not created on another."""
    for claim in claims:
        api.set(CLAIMS, claim)
    job = api.submit(template=mounts(*[claim["metadata"]["name"] for claim in claims]))
    await api.until(lambda: len(api.all("pods")) == 2)
    for pod in api.all("pods"):
        api.change(f"{PODS}/{pod['metadata']['name']}", lambda item: item["spec"].update(nodeName=pin_of(item)))
    api.change(f"{PODS}/job-1-0", start)
    waiting = {"name": "main", "state": {"waiting": {"reason": "ContainerCreating"}}}
    api.change(f"{PODS}/job-1-1", lambda item: item["status"].update(containerStatuses=[waiting]))
    await asyncio.sleep(61)
    return job


async def test_a_claim_for_one_node_is_named_while_a_rank_on_another_is_not_created() -> None:
    api = FakeCluster()
    async with rest_of_cluster(api, moves_pods=False), operator(api):
        modes = {"a": ["ReadWriteOnce"], "b": ["ReadWriteMany"], "c": ["ReadWriteOnce", "ReadOnlyMany"]}
        claims = [bound(name, f"pv-{name}", accessModes=each) for name, each in modes.items()]
        wider = bound("d", "pv-d", accessModes=["ReadWriteOnce"])
        wider["status"]["accessModes"] = ["ReadWriteOnce", "ReadWriteMany"]  # as its volume has it
        job = await starts_on_two_nodes(api, *claims, wider)
        said = "PersistentVolumeClaim a is ReadWriteOnce: most volumes of that kind are mounted on one node only"
        assert said in api.status(job)["message"]
        assert "Claims" not in api.status(job)["message"]
        reads = len([call for call in api.calls if call.path.endswith("/persistentvolumeclaims/a")])
        await asyncio.sleep(600)
        assert len([call for call in api.calls if call.path.endswith("/persistentvolumeclaims/a")]) == reads
        api.change(f"{PODS}/job-1-1", start)
        assert (await reaches(api, job, "Running"))["reason"] == "Running"


async def test_of_claims_that_cannot_be_read_nothing_is_said() -> None:
    def deny(call: Call) -> None:
        if "persistentvolumeclaims" in call.path:
            raise Rejected(403, "Forbidden", f"{call.path} is forbidden")

    api = FakeCluster()
    api.before = deny
    async with rest_of_cluster(api, moves_pods=False), operator(api):
        job = await starts_on_two_nodes(api, bound("a", "pv-a", accessModes=["ReadWriteOnce"]))
        assert api.status(job)["reason"] == "ContainerCreating"
        assert "PersistentVolumeClaim" not in api.status(job)["message"]
