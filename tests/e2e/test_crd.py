"""Bad input at a real API server: refused at apply time with the field's path, or handled; never a stuck object."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from coda_kube.api.client import Client, Rejected
from coda_kube.objects.write import job_path
from coda_lab.local.cluster import LocalCluster
from coda_lab.pod_schema import pod_spec_schema
from tests.e2e.accounts import Account, asking
from tests.e2e.jobs import job_json, jobs_path, submit, wait_for, wait_for_phase, wait_gone
from tests.e2e.policy_cases import COLLECTOR, MASTER, OPERATOR, USER

pytestmark = pytest.mark.e2e

MANIFEST = yaml.load(Path("crds/trainingjobs.yaml").read_text(), yaml.CSafeLoader)
CONTAINER = {"name": "main", "image": "train:1"}
EXPRESSION = {"key": "zone", "operator": "Exists"}
GPU = {"resources": {"limits": {"nvidia.com/gpu": 1}}}


def template(**spec: Any) -> dict[str, Any]:
    return {"template": {"spec": {"containers": [CONTAINER]} | spec}}


def asks(**requests: Any) -> dict[str, Any]:
    return template(containers=[CONTAINER | {"resources": {"requests": requests}}])


def wants(*terms: dict[str, Any]) -> dict[str, Any]:
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}
    return template(affinity={"nodeAffinity": required})


def deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = {"a": value}
    return value


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        pytest.param({"replicas": 0}, "spec.replicas", id="zero replicas"),
        pytest.param({"replicas": -1}, "spec.replicas", id="negative replicas"),
        pytest.param({"replicas": 1.5}, "spec.replicas", id="fractional replicas"),
        pytest.param({"replicas": 10_000}, "spec.replicas", id="10 000 replicas"),
        pytest.param({"replicas": 2**40}, "spec.replicas", id="huge replicas"),
        pytest.param({"replicas": "2"}, "spec.replicas", id="replicas as text"),
        pytest.param({"gpusPerReplica": 0}, "spec.gpusPerReplica", id="zero GPUs"),
        pytest.param({"gpusPerReplica": -8}, "spec.gpusPerReplica", id="negative GPUs"),
        pytest.param({"gpusPerReplica": 0.5}, "spec.gpusPerReplica", id="half a GPU"),
        pytest.param({"gpusPerReplica": 10**9}, "spec.gpusPerReplica", id="huge GPUs"),
        pytest.param({"cpusPerReplica": 0}, "spec.cpusPerReplica", id="zero cores"),
        pytest.param({"cpusPerReplica": -4}, "spec.cpusPerReplica", id="negative cores"),
        pytest.param({"cpusPerReplica": 1.5}, "spec.cpusPerReplica", id="fractional cores"),
        pytest.param({"cpusPerReplica": "500m"}, "spec.cpusPerReplica", id="millicores"),
        pytest.param({"cpusPerReplica": 10**6}, "spec.cpusPerReplica", id="huge cores"),
        pytest.param({"gpus": 3}, "spec.gpus", id="unknown field"),
        pytest.param({"category": "Vision"}, "spec.category", id="unknown category"),
        pytest.param({"retries": -1}, "spec.retries", id="negative retries"),
        pytest.param({"activeDeadlineSeconds": 0}, "spec.activeDeadlineSeconds", id="no time at all"),
        pytest.param({"successPolicy": "AnyRank"}, "spec.successPolicy", id="unknown success policy"),
        pytest.param(template(nodeName="node-0000"), "spec.template.spec.nodeName", id="own nodeName"),
        pytest.param(
            template(schedulingGates=[{"name": "example.com/mine"}]),
            "spec.template.spec.schedulingGates",
            id="own gates",
        ),
        pytest.param(template(restartPolicy="Always"), "spec.template.spec.restartPolicy", id="restartPolicy"),
        pytest.param(template(schedulerName="volcano"), "spec.template.spec.schedulerName", id="own scheduler"),
        pytest.param(template(hostname="me"), "spec.template.spec.hostname", id="own hostname"),
        pytest.param(
            template(affinity={"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": []}}),
            "spec.template.spec.affinity",
            id="required pod affinity",
        ),
        pytest.param(
            template(containers=[CONTAINER | {"resources": {"limits": {"nvidia.com/gpu": 1}}}]),
            "spec.template.spec.containers",
            id="GPUs in the template",
        ),
        pytest.param(
            template(containers=[CONTAINER | {"resources": {"requests": {"cpu": "4"}}}]),
            "spec.template.spec.containers",
            id="cores in the template",
        ),
        pytest.param(template(containers=[]), "spec.template.spec.containers", id="no containers"),
        pytest.param({"template": {}}, "spec.template.spec", id="no pod spec"),
        pytest.param(template(contaners=[]), "spec.template.spec.contaners", id="a typo in the pod spec"),
        pytest.param(template(zzz=deep(100)), "spec.template.spec.zzz", id="nested without end"),
        pytest.param(
            template(volumes=[{"name": "v", "csi": {"driver": "d", "volumeAttributes": deep(90)}}]),
            "spec.template.spec.volumes[0].csi.volumeAttributes",
            id="nested without end where anything seems to go",
        ),
        pytest.param(asks(memory="1e999"), "requests.memory", id="memory beyond all numbers"),
        pytest.param(asks(memory="-1Gi"), "requests.memory", id="negative memory"),
        pytest.param(asks(**{"example.com/x": "9" * 200}), "requests.example.com/x", id="a number of 200 digits"),
        pytest.param(asks(memory="lots"), "requests.memory", id="no quantity"),
        pytest.param(wants(*[{"matchExpressions": [EXPRESSION]}] * 65), "nodeSelectorTerms", id="65 terms"),
        pytest.param(wants({"matchExpressions": [EXPRESSION] * 65}), "matchExpressions", id="65 expressions"),
        pytest.param(
            wants({"matchExpressions": [EXPRESSION | {"values": [str(number) for number in range(257)]}]}),
            "values",
            id="257 values",
        ),
        pytest.param(
            wants(*[{"matchExpressions": [EXPRESSION | {"values": [str(number) for number in range(250)]}]}] * 20),
            "spec.template.spec.affinity",
            id="5000 values in all",
        ),
        pytest.param(template(tolerations=[{"operator": "Exists"}] * 65), "tolerations", id="65 tolerations"),
        pytest.param(
            template(initContainers=[CONTAINER | GPU]), "spec.template.spec.initContainers", id="GPUs at init"
        ),
        pytest.param(template(**GPU), "spec.template.spec.resources", id="GPUs of the whole pod"),
        pytest.param(
            template(containers=[CONTAINER | {"restartPolicy": "Always"}]),
            "containers",
            id="a rank that restarts alone",
        ),
        pytest.param(
            template(containers=[CONTAINER | {"env": [{"name": f"E{n}", "value": "x" * 30_000} for n in range(4)]}]),
            "spec.template.spec.containers",
            id="too much text",
        ),
        pytest.param(template(terminationGracePeriodSeconds=10**9), "terminationGracePeriodSeconds", id="never ends"),
        pytest.param({"ttlSecondsAfterFinished": 2**62}, "spec.ttlSecondsAfterFinished", id="kept beyond all times"),
        pytest.param({"activeDeadlineSeconds": 2**62}, "spec.activeDeadlineSeconds", id="runs beyond all times"),
    ],
)
async def test_refused_at_apply_time_with_the_fields_path(user: Client, spec: dict[str, Any], path: str) -> None:
    with pytest.raises(Rejected) as refused:
        await user.create(jobs_path(), job_json("bad", spec=spec), {"fieldValidation": "Strict"})
    assert path in str(refused.value)


async def test_the_template_has_every_field_of_a_pod(admin: Client) -> None:
    """Else a field of a pod would be cut off in silence: see `coda_lab.pod_schema`."""
    known = pod_spec_schema((await admin.get("/openapi/v3/api/v1"))["components"]["schemas"])
    spec = MANIFEST["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    assert spec["properties"]["template"]["properties"]["spec"]["properties"] == known["properties"]


@pytest.mark.parametrize("name", ["9lives", "With-Capitals", "dots.in.name", "x" * 64])
async def test_a_name_that_cannot_be_a_label_is_refused(user: Client, name: str) -> None:
    with pytest.raises(Rejected, match=r"metadata\.name|Invalid value"):
        await user.create(jobs_path(), job_json(name))


async def test_a_name_of_63_characters_runs(user: Client) -> None:
    job = await submit(user, job_json("n" * 63, replicas=2, run_s=0.2))
    await wait_for_phase(user, job, "Succeeded")


async def test_an_own_node_affinity_is_kept_beside_the_pin(user: Client) -> None:
    where = {"key": "kubernetes.io/hostname", "operator": "In", "values": ["node-0001", "node-0002"]}
    affinity = {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": [where]}]}
        }
    }
    choosy = job_json("choosy", run_s=0.2)
    choosy["spec"]["template"]["spec"]["affinity"] = affinity
    job = await submit(user, choosy)
    done = await wait_for_phase(user, job, "Succeeded")
    assert done["status"]["placement"]["nodes"][0] in ("node-0001", "node-0002")


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        pytest.param(template(containers=[{"name": "Bad_Name", "image": "x"}]), "containers[0].name", id="bad name"),
        pytest.param(template(containers=[{"name": "main"}]), "image", id="no image"),
        pytest.param(template(hostAliases=[{"ip": "nowhere"}]), "hostAliases[0].ip", id="no address"),
    ],
)
async def test_a_template_the_api_server_refuses_fails_the_job_and_an_edit_mends_it(
    user: Client, spec: dict[str, Any], says: str
) -> None:
    job = await submit(user, job_json("refused", spec=spec))
    refused = await wait_for_phase(user, job, "Failed")
    assert refused["status"]["reason"] == "TemplateRefused"
    assert says in refused["status"]["message"]
    fixed = await user.get(job_path(job)) | {"spec": job_json("refused", run_s=0.2)["spec"]}
    await user.replace(job_path(job), fixed)
    await wait_for_phase(user, job, "Succeeded")
    await user.delete(job_path(job))
    await wait_gone(user, job_path(job))


async def test_a_job_waits_for_a_priority_class_that_is_applied_after_it(cluster: LocalCluster, user: Client) -> None:
    job = await submit(user, job_json("early", spec=template(priorityClassName="later")))
    waits = await wait_for(
        user, job_path(job), lambda item: (item.get("status") or {}).get("reason") == "PriorityClassMissing"
    )
    assert "no PriorityClass with name later was found" in waits["status"]["message"]
    async with cluster.client("admin") as admin:
        body = {"metadata": {"name": "later"}, "value": 7, "description": "applied after the job"}
        await admin.create("/apis/scheduling.k8s.io/v1/priorityclasses", body)
    await wait_for_phase(user, job, "Running", within_s=60)
    await user.delete(job_path(job))


async def test_a_job_that_has_ended_refuses_edits_aloud_but_none_of_those_who_keep_house(
    cluster: LocalCluster, user: Client
) -> None:
    """Nothing would come of an edit, and its user would wait for it."""
    spec = {"retries": 0, "hints": {"pipelined": True}}
    job = await submit(user, job_json("ended", run_s=0.1, simulated={"exit-code.rank-0": "7"}, spec=spec))
    path, template = job_path(job), (await wait_for_phase(user, job, "Failed"))["spec"]["template"]
    other = template | {"spec": template["spec"] | {"containers": [CONTAINER | {"image": "train:2"}]}}
    edits: list[dict[str, Any]] = [{"template": other}, {"retries": 5}, {"hints": None}, {"suspend": True}]
    edits += [{"activeDeadlineSeconds": 9}, {"stopNoticeSeconds": 9, "ttlSecondsAfterFinished": 900}]
    unharmed: list[tuple[Account, dict[str, Any]]] = [
        (USER, {"spec": {"ttlSecondsAfterFinished": 900}}),
        (USER, {"spec": {"template": template, "retries": 0}, "metadata": {"labels": {"mine": "1"}}}),
        (OPERATOR, {"metadata": {"finalizers": []}}),
        (COLLECTOR, {"metadata": {"ownerReferences": []}}),
    ]
    async with asking(cluster) as asker:
        for account in (USER, MASTER):
            for edit in edits:
                answer = await asker.ask(account, "PATCH", path, {"spec": edit})
                assert answer.refused_by_policy, (edit, answer)
                assert "the job has ended: delete it and submit it again" in answer.message
            larger = await asker.ask(account, "PATCH", path, {"spec": {"replicas": 2}})
            assert "if it has ended, delete it and submit it again" in larger.message
        for account, change in unharmed:
            answer = await asker.ask(account, "PATCH", path, change)
            assert answer.status == 200, (change, answer)
        written = await asker.ask(OPERATOR, "PATCH", f"{path}/status", {"status": {"message": "said anew"}})
        assert written.status == 200, written
    await user.delete(path)
    await wait_gone(user, path)


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        pytest.param({}, "spec.namespaces", id="no namespaces"),
        pytest.param({"namespaces": None}, "spec.namespaces", id="null"),
        pytest.param({"namespaces": [], "parent": "bad"}, "spec.parent", id="its own parent"),
        pytest.param({"namespaces": [], "parent": ""}, "spec.parent", id="an empty parent"),
        pytest.param({"namespaces": [], "parent": "A b"}, "spec.parent", id="no name of a virtual cluster"),
        pytest.param({"namespaces": [], "parent": ["a"]}, "spec.parent", id="several parents"),
        pytest.param({"namespaces": ["a", "a"]}, "spec.namespaces", id="the same twice"),
        pytest.param({"namespaces": ["A_b"]}, "spec.namespaces", id="no name of a namespace"),
        pytest.param({"namespaces": ["a"], "quota": {"gpus": -1}}, "spec.quota.gpus", id="negative GPUs"),
        pytest.param({"namespaces": ["a"], "quota": {"gpus": 0.5}}, "spec.quota.gpus", id="half a GPU"),
        pytest.param({"namespaces": ["a"], "quota": {"cpus": "4"}}, "spec.quota.cpus", id="cores as text"),
        pytest.param({"namespaces": ["a"], "quota": {"gpus": 2**40}}, "spec.quota.gpus", id="huge"),
        pytest.param({"namespaces": ["a"], "quota": {"memory": 1}}, "spec.quota.memory", id="an unknown resource"),
        pytest.param({"namespaces": ["a"], "weight": 0}, "spec.weight", id="a weight of zero"),
        pytest.param({"namespaces": ["a"], "mayBorrow": "no"}, "spec.mayBorrow", id="a word for a boolean"),
    ],
)
async def test_a_virtual_cluster_is_refused_with_the_fields_path(
    admin: Client, spec: dict[str, Any], path: str
) -> None:
    kind = {"apiVersion": "coda.scheduler/v1alpha1", "kind": "VirtualCluster"}
    item = kind | {"metadata": {"name": "bad"}, "spec": spec}
    with pytest.raises(Rejected) as refused:
        await admin.create("/apis/coda.scheduler/v1alpha1/virtualclusters", item, {"fieldValidation": "Strict"})
    assert path in str(refused.value)


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        pytest.param({"nodeSelector": {"gpu": "a b"}}, "spec.nodeSelector", id="no label"),
        pytest.param({"nodeSelector": {"gpu": 1}}, "spec.nodeSelector", id="a number for a label"),
        pytest.param({"gpuArray": {"coresPerGPU": -1}}, "spec.gpuArray.coresPerGPU", id="negative cores"),
        pytest.param({"gpuArray": {"coresPerGPU": 2.5}}, "spec.gpuArray.coresPerGPU", id="half a core"),
        pytest.param({"gpuArray": {"coresPerGPU": 2**40}}, "spec.gpuArray.coresPerGPU", id="huge"),
        pytest.param({"gpuArray": {"largeGPUs": -1}}, "spec.gpuArray.largeGPUs", id="negative GPUs"),
        pytest.param({"gpuArray": {"largeGPUs": "101%"}}, "spec.gpuArray.largeGPUs", id="more than all"),
        pytest.param({"gpuArray": {"largeGPUs": "12"}}, "spec.gpuArray.largeGPUs", id="a number as text"),
        pytest.param({"gpuArray": {"largeGPUs": 2**31}}, "spec.gpuArray.largeGPUs", id="huge GPUs"),
        pytest.param({"cpuArray": {}}, "spec.cpuArray", id="an unknown field"),
    ],
)
async def test_an_array_quota_is_refused_with_the_fields_path(admin: Client, spec: dict[str, Any], path: str) -> None:
    kind = {"apiVersion": "coda.scheduler/v1alpha1", "kind": "ArrayQuota"}
    item = kind | {"metadata": {"name": "bad"}, "spec": spec}
    with pytest.raises(Rejected) as refused:
        await admin.create("/apis/coda.scheduler/v1alpha1/arrayquotas", item, {"fieldValidation": "Strict"})
    assert path in str(refused.value)
