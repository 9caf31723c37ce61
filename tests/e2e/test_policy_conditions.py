"""The conditions of the policies save the API server work. What they leave out, no rule would have refused.

Copies of the policies without these conditions warn, where the policies refuse. Both must say the same of every write.
"""

from __future__ import annotations

import asyncio
import copy
import random
import re
from collections import Counter
from collections.abc import AsyncIterator
from typing import Final

import pytest
import pytest_asyncio

from coda_kube.api.client import Client
from coda_kube.objects.json_types import Json
from coda_lab import install
from coda_lab.host.paths import manifests
from coda_lab.local.cluster import LocalCluster
from coda_lab.spec import ClusterSpec
from tests.e2e.accounts import Account, Asker, asking
from tests.e2e.cpu_jobs import BATCH, opt_in, pod_json
from tests.e2e.jobs import job_json, pods_of, submit, wait_for_phase
from tests.e2e.policy_cases import (
    BATCH_JOBS,
    COLLECTOR,
    DAEMON_SETS,
    EXTENDER,
    KUBE_SCHEDULER,
    OPERATOR,
    REPLICA_SETS,
    SEAT,
    WIDE_USER,
    entries,
    key,
    kubelet,
    owner,
    repelling,
)
from tests.lengths import LONG

pytestmark = pytest.mark.e2e

SPEC = ClusterSpec(nodes="4x8x48", racks=2)
CASES = 20_000 if LONG else 1500
SEED = 20
SAVING: Final = {
    "coda-reserved-keys": {
        "not-the-operator-without-a-gate",
        "by-the-extender-or-speaks-of-coda",
        "by-the-extender-or-changes-what-is-judged",
    },
    "coda-pool-taint": {"tolerates-a-taint-or-repels-others"},
    "coda-sizes": {"is-long-or-waits-for-its-release"},
    "coda-users": {"is-stamped"},
    "coda-seats": {"asks-for-a-seat-or-a-folder"},
}
NAMED = re.compile(r"ValidatingAdmissionPolicy '(coda-[a-z-]+)'")
WHOLE = "-whole"

ACCOUNTS: Final = (
    *[WIDE_USER] * 4,
    EXTENDER,
    OPERATOR,
    KUBE_SCHEDULER,
    REPLICA_SETS,
    BATCH_JOBS,
    DAEMON_SETS,
    COLLECTOR,
    kubelet("node-0001"),
)
KEYS: Final = ("mine", key("throttling"), key("plan"), key("rank"), key("user"), key("waits"), key("leader"))
OWNERS: Final = (
    owner("TrainingJob", "coda.scheduler/v1alpha1"),
    owner("ReplicaSet", "apps/v1"),
    owner("Job", "batch/v1"),
    owner("Job", "example.com/v1"),
)
LISTS: Final = ("labels", "annotations", "finalizers", "ownerReferences")
GATES: Final = (key("admission"), key("mine"), "example.com/gate")
TOLERATIONS: Final = (
    {"key": key("pool"), "operator": "Exists"},
    {"key": key("pool"), "effect": "PreferNoSchedule", "operator": "Exists"},
    {"key": key("trials"), "operator": "Exists"},
    {"operator": "Exists"},
    {"key": "other", "operator": "Exists"},
)
REPELS: Final = (
    repelling({"labelSelector": {}, "namespaceSelector": {}}),
    repelling({"labelSelector": {}, "namespaces": ["default"]}),
    repelling({"labelSelector": {}}),
)
FOLDERS: Final = ("/run/coda", "//var/lib/./coda/x", "/run", "/data")
RESOURCES: Final[tuple[Json, ...]] = ({}, {"cpu": "1"}, {"cpu": "1", "nvidia.com/gpu": "1"}, {SEAT: "1"})


def whole(documents: tuple[Json, ...]) -> list[Json]:
    """Copies of the policies without the conditions that only save work, bound to warn."""
    found: list[Json] = []
    for policy in documents:
        name = policy["metadata"]["name"]
        if policy["kind"] != "ValidatingAdmissionPolicy" or name not in SAVING:
            continue
        copied = copy.deepcopy(policy)
        conditions = copied["spec"]["matchConditions"]
        copied["spec"]["matchConditions"] = [each for each in conditions if each["name"] not in SAVING[name]]
        assert len(conditions) == len(copied["spec"]["matchConditions"]) + len(SAVING[name])
        copied["metadata"]["name"] = name + WHOLE
        binding = {"policyName": name + WHOLE, "validationActions": ["Warn"]}
        kind = "ValidatingAdmissionPolicyBinding"
        found += [copied, {**policy, "kind": kind, "metadata": copied["metadata"], "spec": binding}]
    return found


class Writes:
    """Random writes, as often wrong as right."""

    def __init__(self, rng: random.Random, existing: tuple[str, ...], bindable: str) -> None:
        self.rng = rng
        self.existing = existing
        self.bindable = bindable

    def one(self, number: int) -> tuple[Account, str, str, Json]:
        """Who, how, where and what."""
        rng = self.rng
        account = rng.choice(ACCOUNTS)
        kind = rng.choice((*["pod"] * 4, *["change"] * 4, "binding", "service", "deployment", "job"))
        name = {"name": f"new-{number}"}
        namespace = rng.choice(("default", BATCH, "coda-system"))
        if kind == "change":
            path = rng.choice(self.existing[:3] if rng.random() < 0.6 else self.existing)
            is_pod = "/pods/" in path
            of = rng.choice(("", "", "/status", "/resize")) if is_pod else ""
            changed = {each: rng.choice((None, value)) for each, value in self.metadata().items()}
            gates: Json = {"spec": {"schedulingGates": []}} if is_pod and not of and rng.random() < 0.5 else {}
            return account, "PATCH", path + of, {"metadata": changed} | gates
        metadata = name | self.metadata()
        if kind == "pod":
            return account, "POST", f"/api/v1/namespaces/{namespace}/pods", {"metadata": metadata, "spec": self.pod()}
        if kind == "binding":
            notes = {each: metadata[each] for each in ("labels", "annotations") if each in metadata}
            body: Json = {"metadata": {"name": self.bindable} | notes, "target": {"kind": "Node", "name": "elsewhere"}}
            return account, "POST", f"/api/v1/namespaces/default/pods/{self.bindable}/binding", body
        if kind == "service":
            ports = {"ports": [{"port": 80}]}
            return account, "POST", f"/api/v1/namespaces/{namespace}/services", {"metadata": metadata, "spec": ports}
        template = {"metadata": {"labels": {"app": "x"}} | self.stamp(), "spec": self.pod()}
        if kind == "deployment":
            spec = {"selector": {"matchLabels": {"app": "x"}}, "template": template}
            path = f"/apis/apps/v1/namespaces/{namespace}/deployments"
            return account, "POST", path, {"metadata": name | self.stamp(), "spec": spec}
        job = {"gpusPerReplica": 1, "template": {"metadata": self.metadata(), "spec": self.pod()}}
        path = f"/apis/coda.scheduler/v1alpha1/namespaces/{namespace}/trainingjobs"
        return account, "POST", path, {"metadata": metadata, "spec": job}

    def metadata(self) -> Json:
        """Some of what metadata may have."""
        rng = self.rng
        found: Json = {}
        for kept in rng.sample(LISTS, rng.choice((0, 1, 1, 2))):
            if rng.random() < 0.15:
                found |= entries(kept, rng.choice((32, 33, 129)))
            elif kept in ("labels", "annotations"):
                found[kept] = {each: rng.choice(("", "1", "somebody")) for each in rng.sample(KEYS, rng.randint(0, 2))}
            elif kept == "finalizers":
                found[kept] = rng.choice((["example.com/x"], [key("operator")], []))
            else:
                found |= rng.choice(OWNERS)
        return found

    def stamp(self) -> Json:
        """Annotations that may say who asked."""
        return self.rng.choice(({}, {"annotations": {key("user"): self.rng.choice(("", "somebody", "other"))}}))

    def pod(self) -> Json:
        """A pod's specification."""
        rng = self.rng
        container = {"name": "main", "image": "work:1", "resources": {"limits": rng.choice(RESOURCES)}}
        spec: Json = {"containers": [container]}
        if rng.random() < 0.3:
            spec["schedulingGates"] = [{"name": each} for each in rng.sample(GATES, rng.randint(1, 2))]
        if rng.random() < 0.4:
            spec["tolerations"] = [rng.choice(TOLERATIONS)]
        if rng.random() < 0.2:
            spec["volumes"] = [{"name": "v", "hostPath": {"path": rng.choice(FOLDERS)}}]
        if rng.random() < 0.3:
            spec["schedulerName"] = "coda"
        if rng.random() < 0.1:
            spec["affinity"] = rng.choice(REPELS)
        return spec


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def existing(cluster: LocalCluster) -> tuple[str, ...]:
    """The paths of a rank, a CPU job that waits, another pod, a leader's pod and more, once the copies are in force."""
    async with cluster.client("admin") as admin, cluster.client("user") as user:
        await opt_in(admin)
        await install.apply_all(admin, whole(install.objects_in(manifests())))
        job = await submit(user, job_json("victim", gpus=1, run_s=None))
        await wait_for_phase(user, job, "Running")
        rank = (await pods_of(user, job))[0]["metadata"]["name"]
        await admin.create(f"/api/v1/namespaces/{BATCH}/pods", pod_json("waits", cpu="1000"))
        other = pod_json("other", cpu="1000", tolerations=[{"operator": "Exists"}])
        other["metadata"] |= {"namespace": "default", "labels": {"mine": "1"}}
        await admin.create("/api/v1/namespaces/default/pods", other)
        async with asking(cluster) as asker:
            await in_force(asker)
    pods = f"/api/v1/namespaces/default/pods/{rank}", f"/api/v1/namespaces/{BATCH}/pods/waits"
    more = "/api/v1/namespaces/default/pods/other", "/api/v1/namespaces/coda-system/pods/coda-extender-0"
    job_path = "/apis/coda.scheduler/v1alpha1/namespaces/default/trainingjobs/victim"
    return *pods, *more, job_path, "/api/v1/nodes/node-0001", f"/api/v1/namespaces/{BATCH}"


async def in_force(asker: Asker) -> None:
    """Until every copy warns. The API server reads policies once a second."""
    metadata = {"name": "probe", "labels": entries("labels", 129)["labels"] | {key("rank"): "1"}}
    container = {"name": "main", "image": "work:1", "resources": {"limits": {SEAT: "1"}}}
    spec = {"containers": [container], "tolerations": [{"operator": "Exists"}]}
    body = {"metadata": metadata | {"annotations": {key("user"): "other"}}, "spec": spec}
    while True:
        answer = await asker.ask(WIDE_USER, "POST", "/api/v1/namespaces/default/pods", body)
        if {each + WHOLE for each in SAVING} <= named(answer.warnings):
            return
        await asyncio.sleep(0.1)


def named(sentences: tuple[str, ...]) -> set[str]:
    """The policies that these sentences name."""
    return {name for each in sentences for name in NAMED.findall(each)}


@pytest.fixture
async def asker(cluster: LocalCluster) -> AsyncIterator[Asker]:
    async with asking(cluster) as one:
        yield one


async def test_what_the_conditions_leave_out_no_rule_refuses(
    asker: Asker, admin: Client, existing: tuple[str, ...]
) -> None:
    writes = Writes(random.Random(SEED), existing, "other")
    refusals, accepted = Counter[str](), 0
    for number in range(CASES):
        account, method, path, body = writes.one(number)
        answer = await asker.ask(account, method, path, body)
        wrote = f"{number}: {account.user} {method} {path} {body}: {answer.status} {answer.message} {answer.warnings}"
        refused = named((answer.message,)) & SAVING.keys()
        warned = {name.removesuffix(WHOLE) for name in named(answer.warnings)}
        assert refused <= warned, wrote
        if warned:
            assert answer.refused_by_policy, wrote
        accepted += answer.status < 300
        refusals.update(warned)
    assert refusals.keys() == SAVING.keys()
    assert min(refusals.values()) >= 5, refusals
    assert accepted >= CASES / 5
