"""The pods and the Service of a gang: what torchrun reads, where they may run, and what the user wrote stays."""

from __future__ import annotations

import copy
import re
from dataclasses import replace
from typing import Any

import pytest

from coda.model import Placement, PlacementState
from coda_operator.reconcile.pod_spec import headless_service, probe_pod, rank_pod

JOB: dict[str, Any] = {
    "metadata": {"name": "bert", "namespace": "nlp", "uid": "u1", "generation": 1},
    "spec": {
        "replicas": 2,
        "gpusPerReplica": 8,
        "template": {
            "metadata": {"labels": {"team": "nlp"}},
            "spec": {
                "containers": [
                    {"name": "main", "image": "bert:1", "resources": {"limits": {"memory": "64Gi"}}},
                    {"name": "logs", "image": "logs:1"},
                ]
            },
        },
    },
}
PLAN = Placement(
    attempt=3,
    plan_id="p3",
    epoch=1,
    generation=1,
    state=PlacementState.RELEASED,
    nodes=("n1", "n2"),
    cpus_per_replica=12,
    committed_s=0.0,
    bind_deadline_s=60.0,
)


def with_affinity(terms: list[dict[str, Any]]) -> dict[str, Any]:
    job = copy.deepcopy(JOB)
    job["spec"]["template"]["spec"]["affinity"] = {
        "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    }
    return job


def terms_of(pod: dict[str, Any]) -> list[dict[str, Any]]:
    node_affinity = pod["spec"]["affinity"]["nodeAffinity"]
    terms: list[dict[str, Any]] = node_affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    return terms


def test_a_rank_is_named_by_its_attempt_and_pinned_to_its_node() -> None:
    pod = rank_pod(JOB, PLAN, 1)
    assert pod["metadata"]["name"] == "bert-3-1"
    assert terms_of(pod) == [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n2"]}]}]
    assert pod["metadata"]["annotations"]["coda.scheduler/plan"] == "p3"
    assert "coda.scheduler/user" not in pod["metadata"]["annotations"]
    assert pod["metadata"]["labels"]["team"] == "nlp"


def test_a_pod_carries_the_stamp_of_its_job() -> None:
    job = copy.deepcopy(JOB)
    job["metadata"]["annotations"] = {"coda.scheduler/user": "ann", "other": "1"}
    job["spec"]["template"]["metadata"]["annotations"] = {"mine": "2"}
    notes = rank_pod(job, PLAN, 1)["metadata"]["annotations"]
    of_coda = {"coda.scheduler/user": "ann", "coda.scheduler/plan": "p3", "coda.scheduler/main-container": "main"}
    assert notes == {"mine": "2"} | KEEPS_ITS_NODE | of_coda


KEEPS_ITS_NODE = {"karpenter.sh/do-not-disrupt": "true", "cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}


def test_no_autoscaler_moves_a_rank_unless_its_template_says_so() -> None:
    """Its whole gang would be rolled back. Karpenter takes a pinned pod for one that fits elsewhere."""
    job = copy.deepcopy(JOB)
    pods = [rank_pod(job, PLAN, 1), probe_pod(job, attempt=1, cores=4)]
    assert [KEEPS_ITS_NODE.items() <= pod["metadata"]["annotations"].items() for pod in pods] == [True, True]
    job["spec"]["template"]["metadata"]["annotations"] = {"karpenter.sh/do-not-disrupt": "4h"}
    notes = rank_pod(job, PLAN, 1)["metadata"]["annotations"]
    assert notes["karpenter.sh/do-not-disrupt"] == "4h"
    assert notes["cluster-autoscaler.kubernetes.io/safe-to-evict"] == "false"


@pytest.mark.parametrize(("declared", "told"), [("24Gi", "24Gi"), (10**10, "10000000000"), (None, None)])
def test_a_pod_carries_the_memory_that_its_job_declares(declared: object, told: str | None) -> None:
    job = copy.deepcopy(JOB)
    job["spec"] |= {"gpuMemory": declared} if declared else {}
    assert rank_pod(job, PLAN, 1)["metadata"]["annotations"].get("coda.scheduler/gpu-memory") == told


def test_the_pin_is_added_to_every_term_the_user_wrote() -> None:
    zones = [{"matchExpressions": [{"key": "zone", "operator": "In", "values": [zone]}]} for zone in ("a", "b")]
    terms = terms_of(rank_pod(with_affinity(zones), PLAN, 0))
    assert [term["matchExpressions"] for term in terms] == [zone["matchExpressions"] for zone in zones]
    assert all(term["matchFields"][0]["values"] == ["n1"] for term in terms)


def test_torchrun_finds_its_gang_in_the_environment() -> None:
    env = {entry["name"]: entry["value"] for entry in rank_pod(JOB, PLAN, 1)["spec"]["containers"][0]["env"]}
    master = "attempt-3-rank-0.bert.nlp.svc"
    assert env == {
        "MASTER_ADDR": master,
        "MASTER_PORT": "29500",
        "WORLD_SIZE": "2",
        "RANK": "1",
        "NODE_RANK": "1",
        "PET_NNODES": "2",
        "PET_NODE_RANK": "1",
        "PET_NPROC_PER_NODE": "8",
        "PET_MASTER_ADDR": master,
        "PET_MASTER_PORT": "29500",
    }


def test_what_the_user_set_in_the_environment_stays() -> None:
    job = copy.deepcopy(JOB)
    job["spec"]["template"]["spec"]["containers"][0]["env"] = [{"name": "MASTER_PORT", "value": "1234"}]
    env = rank_pod(job, PLAN, 0)["spec"]["containers"][0]["env"]
    assert [entry["value"] for entry in env if entry["name"] == "MASTER_PORT"] == ["1234"]


def test_torchruns_port_is_the_one_that_the_user_set() -> None:
    """torchrun reads its own variable only. Kubernetes expands the name, wherever the value comes from."""
    job = copy.deepcopy(JOB)
    mine = {"name": "MASTER_PORT", "valueFrom": {"configMapKeyRef": {"name": "ports", "key": "master"}}}
    job["spec"]["template"]["spec"]["containers"][0]["env"] = [mine]
    env = rank_pod(job, PLAN, 0)["spec"]["containers"][0]["env"]
    follows = {"name": "PET_MASTER_PORT", "value": "$(MASTER_PORT)"}
    assert env.index(mine) < env.index(follows)  # Kubernetes expands what was defined before


def test_torchruns_address_is_the_one_that_the_user_set() -> None:
    env = expanded(rank_pod(with_env({"MASTER_ADDR": "10.0.0.1"}), PLAN, 1))
    assert (env["MASTER_ADDR"], env["PET_MASTER_ADDR"]) == ("10.0.0.1", "10.0.0.1")
    own = expanded(rank_pod(with_env({"MASTER_ADDR": "10.0.0.1", "PET_MASTER_ADDR": "10.0.0.2"}), PLAN, 1))
    assert (own["MASTER_ADDR"], own["PET_MASTER_ADDR"]) == ("10.0.0.1", "10.0.0.2")


def with_env(env: dict[str, str]) -> dict[str, Any]:
    job = copy.deepcopy(JOB)
    main = job["spec"]["template"]["spec"]["containers"][0]
    main["env"] = [{"name": name, "value": value} for name, value in env.items()]
    return job


def expanded(pod: dict[str, Any]) -> dict[str, str]:
    """The environment as the kubelet makes it: each `$(NAME)` is what was defined before, else it stays as it is."""
    made: dict[str, str] = {}
    for entry in pod["spec"]["containers"][0]["env"]:
        assert entry["name"] not in made  # the API server warns of a name that comes twice
        made[entry["name"]] = re.sub(r"\$\((\w+)\)", lambda found: made.get(found[1], found[0]), entry["value"])
    return made


def test_values_of_the_user_may_name_codas_variables() -> None:
    mine = {"NODE_RANK": "1$(RANK)", "COORDINATOR": "$(MASTER_ADDR):1234", "LOG": "$(CODA_JOB_DIR)/log"}
    env = expanded(rank_pod(with_env(mine), PLAN, 0))
    assert env["NODE_RANK"] == "10"
    assert env["COORDINATOR"] == "attempt-3-rank-0.bert.nlp.svc:1234"
    assert env["LOG"] == "/run/coda-job/log"


def test_every_value_of_the_user_wins_and_no_name_comes_twice() -> None:
    names = list(expanded(rank_pod(JOB, PLAN, 0)))
    assert len(names) == 11
    for name in names:
        assert expanded(rank_pod(with_env({name: "mine"}), PLAN, 0))[name] == "mine"


def on_the_host(uid: str = "u1", **of_pod: Any) -> dict[str, Any]:
    job = copy.deepcopy(JOB)
    job["metadata"]["uid"] = uid
    job["spec"]["template"]["spec"] |= {"hostNetwork": True} | of_pod
    return job


@pytest.mark.parametrize(
    ("of_pod", "policy"),
    [
        pytest.param({"hostNetwork": True}, "ClusterFirstWithHostNet", id="the node's resolver knows no rank 0"),
        pytest.param({"hostNetwork": True, "dnsPolicy": "Default"}, "Default", id="the user chose"),
        pytest.param({}, None, id="a network of its own"),
    ],
)
def test_a_gang_on_the_hosts_network_finds_rank_zero(of_pod: dict[str, Any], policy: str | None) -> None:
    job = copy.deepcopy(JOB)
    job["spec"]["template"]["spec"] |= of_pod
    assert rank_pod(job, PLAN, 1)["spec"].get("dnsPolicy") == policy
    alone = job | {"spec": job["spec"] | {"replicas": 1}}
    assert rank_pod(alone, PLAN, 0)["spec"].get("dnsPolicy") == of_pod.get("dnsPolicy")


def port_of(job: dict[str, Any], attempt: int = 3) -> int:
    plan = replace(PLAN, attempt=attempt)
    env = {entry["name"]: entry["value"] for entry in rank_pod(job, plan, 1)["spec"]["containers"][0]["env"]}
    assert env["MASTER_PORT"] == env["PET_MASTER_PORT"]
    assert headless_service(job)["spec"]["ports"] == [{"name": "rendezvous", "port": int(env["MASTER_PORT"])}]
    return int(env["MASTER_PORT"])


def test_jobs_on_the_hosts_network_have_ports_of_their_own() -> None:
    """Two of them may have their rank 0 on one node. No port is a NodePort or may be taken by a connection."""
    ports = [port_of(on_the_host(f"5a3c5c1e-0000-4000-8000-{number:012d}")) for number in range(100)]
    assert len(set(ports)) > 95
    assert all(20000 <= port < 30000 for port in ports)
    assert port_of(on_the_host(), attempt=1) == port_of(on_the_host(), attempt=2)
    assert port_of(JOB) == 29500


def test_rank_zero_has_a_directory_to_say_how_far_it_is() -> None:
    spec = rank_pod(JOB, PLAN, 0)["spec"]
    main, logs = spec["containers"]
    assert spec["volumes"] == [{"name": "coda-job", "emptyDir": {}}]
    assert main["volumeMounts"] == [{"name": "coda-job", "mountPath": "/run/coda-job"}]
    assert main["env"][0] == {"name": "CODA_JOB_DIR", "value": "/run/coda-job"}
    assert logs == JOB["spec"]["template"]["spec"]["containers"][1]


def plain(spec: dict[str, Any]) -> dict[str, Any]:
    return {name: spec.get(name) for name in ("volumes",)} | {
        "mounts": [one.get("volumeMounts") for one in spec["containers"]]
    }


@pytest.mark.parametrize(
    ("of_job", "of_pod", "of_main", "rank"),
    [
        pytest.param({}, {}, {}, 1, id="another rank"),
        pytest.param({"reportProgress": False}, {}, {}, 0, id="the job does not want it"),
        pytest.param(
            {}, {"volumes": [{"name": "coda-job", "hostPath": {"path": "/x"}}]}, {}, 0, id="a volume so named"
        ),
        pytest.param({}, {}, {"volumeMounts": [{"name": "x", "mountPath": "/run/coda-job/"}]}, 0, id="a mount there"),
        pytest.param({}, {}, {"env": [{"name": "CODA_JOB_DIR", "value": "/mine"}]}, 0, id="a directory of its own"),
    ],
)
def test_where_a_job_has_no_such_directory_its_pod_is_as_the_user_wrote_it(
    of_job: dict[str, Any], of_pod: dict[str, Any], of_main: dict[str, Any], rank: int
) -> None:
    job = copy.deepcopy(JOB)
    job["spec"] |= of_job
    template = job["spec"]["template"]["spec"]
    template |= of_pod
    template["containers"][0] |= of_main
    spec = rank_pod(job, PLAN, rank)["spec"]
    assert plain(spec) == plain(template)
    given = [entry["value"] for entry in spec["containers"][0]["env"] if entry["name"] == "CODA_JOB_DIR"]
    assert given == (["/mine"] if "env" in of_main else [])


def test_only_the_main_container_gets_gpus_and_cores_and_keeps_its_memory() -> None:
    main, logs = rank_pod(JOB, PLAN, 0)["spec"]["containers"]
    assert main["resources"] == {
        "requests": {"cpu": "12", "nvidia.com/gpu": "8"},
        "limits": {"cpu": "12", "nvidia.com/gpu": "8", "memory": "64Gi"},
    }
    assert "resources" not in logs


@pytest.mark.parametrize(
    ("spec", "marked"),
    [
        pytest.param({"cpusPerReplica": "auto"}, True, id="agents on all its nodes are to measure"),
        pytest.param({"cpusPerReplica": "auto", "replicas": 1}, False, id="one rank is measured anyway"),
        pytest.param({"cpusPerReplica": "4"}, False, id="its user chose its cores"),
        pytest.param({}, False, id="nobody said"),
    ],
)
def test_the_ranks_of_a_gang_that_is_tuned_say_so(spec: dict[str, Any], marked: bool) -> None:
    pod = rank_pod(JOB | {"spec": JOB["spec"] | spec}, PLAN, 0)
    assert (pod["metadata"]["annotations"].get("coda.scheduler/cores") == "auto") is marked


def test_building_pods_leaves_the_job_as_it_is() -> None:
    before = copy.deepcopy(JOB)
    rank_pod(JOB, PLAN, 0)
    probe_pod(JOB, attempt=1, cores=4)
    assert before == JOB


def test_the_probe_is_not_pinned_and_takes_no_name() -> None:
    pod = probe_pod(JOB, attempt=1, cores=4)
    assert "affinity" not in pod["spec"]
    assert "name" not in pod["metadata"]


def test_the_probe_of_an_opportunistic_job_asks_for_no_gpu() -> None:
    """Else a ResourceQuota without GPUs would keep it from being accepted."""

    def amounts(service_class: str) -> tuple[dict[str, str], dict[str, str]]:
        pod = probe_pod(JOB | {"spec": JOB["spec"] | {"serviceClass": service_class}}, attempt=1, cores=4)
        resources = pod["spec"]["containers"][0]["resources"]
        return resources["requests"], resources["limits"]

    whole, auto, seated = amounts("Guaranteed"), amounts("Auto"), amounts("Opportunistic")
    assert auto == whole
    gpus = {"nvidia.com/gpu": str(JOB["spec"]["gpusPerReplica"])}
    assert [amount | gpus for amount in seated] == list(whole)
    assert not any("nvidia.com/gpu" in amount for amount in seated)


def test_the_service_publishes_rank_zero_alone_before_it_is_ready() -> None:
    service = headless_service(JOB)
    selected = [
        rank
        for rank in (0, 1)
        if service["spec"]["selector"].items() <= rank_pod(JOB, PLAN, rank)["metadata"]["labels"].items()
    ]
    assert selected == [0]
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"] is True
    assert service["metadata"]["ownerReferences"][0]["uid"] == "u1"


def test_a_rank_with_a_seat_asks_for_that_and_for_no_gpu() -> None:
    plain, seated = rank_pod(JOB, PLAN, 1), rank_pod(JOB, replace(PLAN, gpus=(0, 3)), 1)
    asked = {"nvidia.com/gpu": str(JOB["spec"]["gpusPerReplica"])}
    for kind in ("requests", "limits"):
        whole = plain["spec"]["containers"][0]["resources"][kind]
        assert seated["spec"]["containers"][0]["resources"][kind] | asked == whole | {"coda.scheduler/gpu-3": "1"}
        assert "nvidia.com/gpu" not in seated["spec"]["containers"][0]["resources"][kind]
    plain["spec"]["containers"][0].pop("resources")
    seated["spec"]["containers"][0].pop("resources")
    assert seated == plain


def test_a_rank_without_a_gpu_of_its_own_tolerates_the_taints_of_gpu_nodes() -> None:
    """The API server adds these to what asks for a GPU; a seat is none."""
    theirs = [{"key": key, "operator": "Exists"} for key in ("nvidia.com/gpu", "sku")]
    opportunistic = JOB | {"spec": JOB["spec"] | {"serviceClass": "Opportunistic"}}
    taints = ("nvidia.com/gpu", "sku")
    plain = rank_pod(JOB, PLAN, 1, pool_taints=taints)
    without = (
        rank_pod(JOB, replace(PLAN, gpus=(0, 3)), 1, pool_taints=taints),
        probe_pod(opportunistic, attempt=1, cores=4, pool_taints=taints),
    )
    for pod in without:
        assert pod["spec"]["tolerations"] == plain["spec"]["tolerations"] + theirs
    for pod in (plain, probe_pod(JOB, attempt=1, cores=4, pool_taints=taints)):
        assert not [one for one in theirs if one in pod["spec"]["tolerations"]]


def test_nobody_tunes_the_cores_of_ranks_on_seats() -> None:
    job = copy.deepcopy(JOB)
    job["spec"] |= {"cpusPerReplica": "auto", "replicas": 2}
    assert "coda.scheduler/cores" in str(rank_pod(job, PLAN, 0)["metadata"]["annotations"])
    assert "coda.scheduler/cores" not in str(rank_pod(job, replace(PLAN, gpus=(0, 0)), 0)["metadata"]["annotations"])


def test_a_rank_that_may_be_joined_asks_for_the_files_too() -> None:
    plain, joinable = rank_pod(JOB, PLAN, 1), rank_pod(JOB, replace(PLAN, joinable=True), 1)
    for kind in ("requests", "limits"):
        before, after = (pod["spec"]["containers"][0]["resources"][kind] for pod in (plain, joinable))
        assert after == before | {"coda.scheduler/sharing": "1"}
    assert plain["spec"]["containers"][1:] == joinable["spec"]["containers"][1:]


LIBRARY = "/run/coda/lib/libcodagpu.so"


@pytest.mark.parametrize(
    ("set_by_the_user", "expected"),
    [
        ({"value": "/opt/libjemalloc.so"}, {"value": f"{LIBRARY}:/opt/libjemalloc.so"}),
        ({"value": ""}, {"value": LIBRARY}),
        ({"value": f"/opt/libjemalloc.so {LIBRARY}"}, {"value": f"/opt/libjemalloc.so {LIBRARY}"}),
        ({"valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},) * 2,
    ],
    ids=["another library", "none", "both", "nobody knows what"],
)
@pytest.mark.parametrize(
    "shared", [replace(PLAN, joinable=True), replace(PLAN, gpus=(0, 1))], ids=["whole GPUs", "a seat"]
)
def test_a_rank_that_shares_preloads_codas_library_before_its_own(
    shared: Placement, set_by_the_user: dict[str, object], expected: dict[str, object]
) -> None:
    """What a pod sets hides what the kubelet adds for a seat."""
    job = copy.deepcopy(JOB)
    main = job["spec"]["template"]["spec"]["containers"][0]
    main["env"] = [*main.get("env", ()), {"name": "LD_PRELOAD", **set_by_the_user}]
    alone, shares = rank_pod(job, PLAN, 1), rank_pod(job, shared, 1)
    assert preloaded(alone) == [{"name": "LD_PRELOAD", **set_by_the_user}]
    assert preloaded(shares) == [{"name": "LD_PRELOAD", **expected}]


def preloaded(pod: dict[str, Any]) -> list[dict[str, Any]]:
    return [entry for entry in pod["spec"]["containers"][0]["env"] if entry["name"] == "LD_PRELOAD"]
