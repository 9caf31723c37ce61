"""What `coda doctor` says of a cluster, from what it read."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import yaml

from coda_cli.doctor.finding import Level
from coda_cli.doctor.findings import findings
from coda_cli.doctor.seen import Lead, Seen
from coda_cli.version.parts import Part
from coda_kube.certificates import new_authority, new_leaf
from coda_kube.objects.json_types import Json
from coda_kube.objects.quantities import time_from_seconds
from coda_kube.served_schema import WRITTEN

TAINT = {"key": "coda.scheduler/pool", "effect": "NoSchedule"}


def schema(*, without: str = "") -> Json:
    """An OpenAPI document with every field that Coda writes, but one."""
    schemas: dict[str, Json] = {}
    for kind, paths in WRITTEN.items():
        root: Json = {"x-kubernetes-group-version-kind": [{"kind": kind}]}
        for path in paths:
            at = root
            for name in path.split("."):
                at = at.setdefault("properties", {}).setdefault(name, {"type": "object"})
            if path == without:
                root["properties"]["status"]["properties"].pop(path.split(".")[1])
        schemas[kind] = root
    return {"components": {"schemas": schemas}}


def sliced(name: str, replicas: str, *, gpus: int = 8) -> Json:
    found = node(name, gpus=gpus)
    found["metadata"]["labels"] |= {"nvidia.com/gpu.replicas": replicas}
    return found


def node(name: str, *, gpus: int = 8, taints: tuple[Json, ...] = (TAINT,)) -> Json:
    allocatable = {"nvidia.com/gpu": str(gpus)} if gpus else {}
    labels = {"kubernetes.io/hostname": name, "topology.coda.scheduler/rack": "r1"}
    return {
        "metadata": {"name": name, "labels": labels},
        "spec": {"taints": list(taints)},
        "status": {"allocatable": allocatable},
    }


def binding(name: str, *actions: str) -> Json:
    return {"metadata": {"name": name}, "spec": {"validationActions": list(actions)}}


def daemon_set(name: str, *tolerations: Json, **spec: Any) -> Json:
    pod = {"tolerations": list(tolerations)} | spec
    by_hand = [{"manager": "helm", "fieldsV1": {"f:spec": {"f:template": {"f:spec": {}}}}}]
    metadata = {"name": name, "namespace": "gpu", "managedFields": by_hand}
    return {"metadata": metadata, "spec": {"template": {"spec": pod}}}


NOW_S = 1_795_000_000.0


def profile(name: str, *, written_s: float = NOW_S, **status: Any) -> Json:
    return {"metadata": {"name": name}, "status": {"time": time_from_seconds(written_s), "lacks": []} | status}


PRESENT = "nvidia.com/gpu.present"
NVIDIA: Json = {
    "affinity": {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [
                    {
                        "matchExpressions": [
                            {"key": "feature.node.kubernetes.io/pci-10de.present", "operator": "Exists"}
                        ]
                    },
                    {"matchExpressions": [{"key": PRESENT, "operator": "In", "values": ["true"]}]},
                ]
            }
        }
    }
}
"""As NVIDIA's chart of its device plugin has it."""


def labelled(name: str, *, gpus: int = 8) -> Json:
    found = node(name, gpus=gpus)
    found["metadata"]["labels"] |= {PRESENT: "true"}
    return found


LEAF = new_leaf(new_authority(NOW_S), serves=True, now_s=NOW_S).certificate
SCHEDULER: Json = {
    "profiles": [{"schedulerName": "coda", "plugins": {"postFilter": {"disabled": [{"name": "DefaultPreemption"}]}}}],
    "extenders": [
        {
            "urlPrefix": "https://coda-extender.coda-system.svc:8888",
            "filterVerb": "filter",
            "prioritizeVerb": "prioritize",
            "preemptVerb": "preempt",
            "ignorable": True,
        }
    ],
}
PARTS = [
    Part("coda", "1.2.0"),
    Part("operator", "1.2.0"),
    Part("planner", "1.2.0"),
    Part("agent", "1.2.0"),
    Part("kube-scheduler", "v1.36.3"),
    Part("Kubernetes", "v1.36.3"),
]


def configured(**changes: Any) -> Json:
    """The scheduler's ConfigMap with other entries in its extender."""
    content = SCHEDULER | {"extenders": [SCHEDULER["extenders"][0] | changes]}
    return {"data": {"scheduler.yaml": yaml.safe_dump(content)}}


LEAD = {"coda-planner": Lead.RENEWED, "coda-operator": Lead.RENEWED}
WELL = Seen(
    server="https://10.0.0.1:6443",
    version="v1.36.3",
    schema=schema(),
    leads=LEAD,
    nodes=[node("n1"), node("n2"), node("cpu", gpus=0, taints=())],
    daemon_sets=[daemon_set("plugin", {"key": "coda.scheduler/pool", "operator": "Exists"})],
    profiles=[profile("n1"), profile("n2")],
    namespaces=[{"metadata": {"name": "batch", "labels": {"coda.scheduler/opt-in": "true"}}}],
    refusing=[binding("coda-reserved-keys", "Deny")],
    mutating=[binding("coda-cpu-jobs")],
    clock_ahead_s=0.4,
    now_s=NOW_S,
    node_clocks_s={"n1": 0.0, "n2": -1.0},
    parts=PARTS,
    scheduler={"data": {"scheduler.yaml": yaml.safe_dump(SCHEDULER)}},
    certificates={"coda-extender-tls": LEAF},
)


def volume(key: str, *values: str) -> Json:
    """A PersistentVolume with a rule about its nodes."""
    rule = {"key": key, "operator": "In", "values": list(values)}
    return {"spec": {"nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [rule]}]}}}}


@pytest.mark.parametrize("found", [volume("topology.kubernetes.io/zone", "a"), {"spec": {"nfs": {}}}])
def test_a_volume_that_follows_its_pod_is_good(found: Json) -> None:
    (one,) = [one for one in findings(replace(WELL, history_volume=found)) if one.about == "history"]
    assert (one.level, one.says) == (Level.GOOD, "its volume can follow the operator to another node")


def told(seen: Seen) -> list[tuple[Level, str, str]]:
    return [(one.level, one.about, one.says) for one in findings(seen) if one.level is not Level.GOOD]


def test_a_cluster_that_is_well_has_nothing_but_good_lines() -> None:
    found = [*findings(WELL)]
    assert {one.level for one in found} == {Level.GOOD}
    assert [one.about for one in found] == [
        *("cluster", "Kubernetes", "definitions", "versions", "planner", "operator", "scheduler", "certificates"),
        *("policies", "CPU jobs", "DaemonSets", "GPU nodes", "agents", "clock", "node clocks"),
    ]
    assert "https://10.0.0.1:6443 answers" in [one.says for one in found]
    assert "2 with 16 GPUs, all with the pool's taint" in [one.says for one in found]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        pytest.param({"version": "v1.32.1"}, (Level.BAD, "Kubernetes", "v1.32.1 is too old"), id="old"),
        pytest.param({"version": "v1.35+"}, (Level.NOTE, "Kubernetes", "v1.35+: CPU jobs need 1.36"), id="1.35"),
        pytest.param(
            {"schema": None}, (Level.BAD, "definitions", "the API server does not know TrainingJobs"), id="nothing"
        ),
        pytest.param(
            {"schema": schema(without="status.array")},
            (Level.BAD, "definitions", "older than this version: no status.array"),
            id="older definitions",
        ),
        pytest.param(
            {"leads": LEAD | {"coda-planner": Lead.NOBODY}},
            (Level.BAD, "planner", "no replica leads"),
            id="no planner",
        ),
        pytest.param(
            {"leads": LEAD | {"coda-operator": Lead.LEFT}},
            (Level.BAD, "operator", "its leader does not renew the Lease"),
            id="a stuck operator",
        ),
        pytest.param(
            {"history_volume": volume("kubernetes.io/hostname", "gpu-07")},
            (
                Level.NOTE,
                "history",
                "its volume exists on gpu-07 only: while that is away, no operator runs and nothing is started",
            ),
            id="a volume of one node",
        ),
        pytest.param({"history_volume": None}, (Level.UNKNOWN, "history", "you may not look"), id="a hidden volume"),
        pytest.param(
            {"leads": LEAD | {"coda-planner": None}},
            (Level.UNKNOWN, "planner", "you may not look"),
            id="a hidden Lease",
        ),
        pytest.param({"refusing": []}, (Level.BAD, "policies", "none: users may forge what Coda writes"), id="open"),
        pytest.param(
            {"refusing": [binding("coda-a", "Warn", "Audit"), binding("coda-b", "Deny"), binding("other", "Warn")]},
            (Level.NOTE, "policies", "1 of 2 only warn"),
            id="warnings",
        ),
        pytest.param(
            {"mutating": [binding("coda-cpu-job-users")]},
            (Level.BAD, "CPU jobs", "1 namespace opted in, but nothing makes CPU jobs of their pods"),
            id="no mutating policy",
        ),
        pytest.param({"namespaces": []}, (Level.NOTE, "CPU jobs", "no namespace takes part"), id="nobody opted in"),
        pytest.param(
            {"nodes": [node("n1", gpus=0)]}, (Level.BAD, "GPU nodes", "no node shows nvidia.com/gpu"), id="no plugin"
        ),
        pytest.param(
            {"nodes": [node("n1"), node("n2", taints=())]},
            (Level.NOTE, "GPU nodes", "n2 of 2 lack the pool's taint: others may take their GPUs"),
            id="half a pool",
        ),
        pytest.param(
            {
                "nodes": [
                    node("n1"),
                    sliced("n2", "4"),
                    sliced("n3", "1"),
                    sliced("n4", "many"),
                    sliced("n5", "2", gpus=0),
                ]
            },
            (
                Level.NOTE,
                "GPU nodes",
                "n2 offers each GPU several times (time-slicing or MPS): ranks share them unseen",
            ),
            id="time slices",
        ),
        pytest.param(
            {"daemon_sets": [daemon_set("plugin"), daemon_set("here", nodeSelector={"a": "b"})]},
            (Level.NOTE, "DaemonSets", "gpu/plugin not on nodes of the pool"),
            id="a DaemonSet that is kept out",
        ),
        pytest.param(
            {"nodes": [labelled("n1", gpus=0)], "daemon_sets": [daemon_set("plugin", **NVIDIA)]},
            (Level.NOTE, "DaemonSets", "gpu/plugin not on nodes of the pool"),
            id="NVIDIA's device plugin is kept out, so no node shows a GPU",
        ),
        pytest.param(
            {"nodes": [labelled("n1")], "daemon_sets": [daemon_set("plugin", nodeSelector={PRESENT: "true"})]},
            (Level.NOTE, "DaemonSets", "gpu/plugin not on nodes of the pool"),
            id="a DaemonSet for nodes with GPUs alone is kept out",
        ),
        pytest.param(
            {"daemon_sets": [daemon_set("plugin", {"key": "coda.scheduler/pool", "value": "other"})]},
            (Level.NOTE, "DaemonSets", "gpu/plugin not on nodes of the pool"),
            id="a toleration of another value",
        ),
        pytest.param(
            {"daemon_sets": [daemon_set("plugin", {"operator": "Exists", "effect": "NoExecute"})]},
            (Level.NOTE, "DaemonSets", "gpu/plugin not on nodes of the pool"),
            id="a toleration of another effect",
        ),
        pytest.param(
            {"profiles": []}, (Level.NOTE, "agents", "none: no job is tuned, no pod is throttled"), id="no agents"
        ),
        pytest.param(
            {"profiles": [profile("n1", lacks=["no resctrl"])]},
            (Level.BAD, "agents", "no NodeProfile of n2"),
            id="a node without an agent",
        ),
        pytest.param(
            {"profiles": [profile(name, lacks=["no resctrl"]) for name in ("n1", "n2")]},
            (Level.NOTE, "agents", "2 nodes: no resctrl"),
            id="what nodes lack",
        ),
        pytest.param(
            {"clock_ahead_s": -61.0}, (Level.NOTE, "clock", "this machine is -61 s off the API server"), id="clock"
        ),
        pytest.param(
            {"parts": [Part("coda", "1.2.0"), Part("planner", "1.1.0"), Part("operator", "")]},
            (Level.NOTE, "versions", "planner is 1.1.0, and this command 1.2.0: use the version that the cluster has"),
            id="skew",
        ),
        pytest.param({"scheduler": None}, (Level.UNKNOWN, "scheduler", "you may not look"), id="a hidden scheduler"),
        pytest.param(
            {"scheduler": {"data": {"scheduler.yaml": "profiles: 3"}}},
            (Level.BAD, "scheduler", "no profile is called coda: nothing places Coda's pods"),
            id="no profile",
        ),
        pytest.param(
            {"scheduler": {"data": {"scheduler.yaml": "{"}}},
            (Level.BAD, "scheduler", "scheduler.yaml of the ConfigMap coda-scheduler cannot be read"),
            id="no YAML",
        ),
        pytest.param(
            {"scheduler": {"data": {"scheduler.yaml": "profiles: [{schedulerName: coda, plugins: 3}]"}}},
            (Level.BAD, "scheduler", "DefaultPreemption is not disabled: single ranks of a gang may be preempted"),
            id="plugins that are none",
        ),
        pytest.param(
            {"scheduler": configured(urlPrefix="https://other")},
            (Level.BAD, "scheduler", "no extender is coda-extender: foreign pods may take what Coda has promised"),
            id="no extender",
        ),
        pytest.param(
            {"scheduler": configured(filterVerb="")},
            (Level.BAD, "scheduler", "the extender is not asked: filterVerb is missing"),
            id="no filter",
        ),
        pytest.param(
            {"certificates": {}},
            (Level.BAD, "certificates", "none: kube-scheduler cannot reach the extender"),
            id="no certificates",
        ),
        pytest.param(
            {"now_s": NOW_S + 31 * 86400, "certificates": {"a": LEAF, "b": b"no PEM"}},
            (Level.BAD, "certificates", "a and b over or unreadable"),
            id="old certificates",
        ),
        pytest.param(
            {"now_s": NOW_S + 17 * 86400},
            (Level.NOTE, "certificates", "coda-extender-tls over in less than 14 days"),
            id="nobody renews",
        ),
        pytest.param(
            {"node_clocks_s": {"n1": 0.0, "n2": 61.0, "n3": -6.0}},
            (Level.NOTE, "node clocks", "n2 (+61 s) and n3 (-6 s) off the API server"),
            id="node clocks",
        ),
        pytest.param({"nodes": None}, (Level.UNKNOWN, "GPU nodes", "you may not look"), id="no rights"),
    ],
)
def test_says_what_is_wrong(changes: dict[str, Any], expected: tuple[Level, str, str]) -> None:
    found = told(replace(WELL, **changes))
    assert expected in found
    assert found[0] == expected  # and what follows from it, at most


def test_everything_that_is_bad_says_what_to_do() -> None:
    ill = Seen(
        server="https://10.0.0.1:6443",
        version="v1.30.0",
        schema=None,
        leads=dict.fromkeys(LEAD, Lead.NOBODY),
        nodes=[],
        daemon_sets=None,
        profiles=None,
        namespaces=None,
        refusing=[],
        mutating=None,
        clock_ahead_s=0.0,
        now_s=NOW_S,
        node_clocks_s=None,
        parts=PARTS,
        scheduler={"data": {}},
        certificates={},
    )
    assert all(one.fix for one in findings(ill) if one.level is Level.BAD)


@pytest.mark.parametrize(
    ("by_cert_manager", "asked"), [(False, "logs deploy/coda-operator"), (True, "describe certificates")]
)
def test_who_issues_the_certificates_is_asked_when_they_end(by_cert_manager: bool, asked: str) -> None:
    late = replace(WELL, now_s=NOW_S + 31 * 86400, by_cert_manager=by_cert_manager)
    (found,) = [one for one in findings(late) if one.about == "certificates"]
    assert found.fix == f"kubectl -n coda-system {asked}"


@pytest.mark.parametrize(
    "harmless",
    [
        daemon_set("elsewhere", nodeSelector={"a": "b"}),
        daemon_set("everywhere", {"operator": "Exists"}),
        daemon_set("by value", {"key": "coda.scheduler/pool", "operator": "Equal", "effect": "NoSchedule"}),
        daemon_set("of others", **NVIDIA),
    ],
    ids=lambda item: item["metadata"]["name"],
)
def test_a_daemon_set_that_the_taint_does_not_keep_out_is_not_named(harmless: Json) -> None:
    found = told(replace(WELL, daemon_sets=[harmless]))
    assert [one for one in found if one[1] == "DaemonSets"] == []
