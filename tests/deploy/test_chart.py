"""What the chart makes of values: properties of the rendered objects, and sentences for values that make no sense."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from coda_kube.certificates import SERVER_NAME
from coda_lab.host.paths import chart, manifests
from coda_lab.install import objects_in
from coda_lab.local.parts import scheduler_config
from coda_lab.spec import ClusterSpec, Layout
from coda_operator.certificates import SERVES_BY_SECRET
from tests.deploy.charts import (
    NAMESPACE,
    PARTS,
    Helm,
    Json,
    container_of,
    environ_of,
    find,
    pod_of,
    scheduler_configuration,
)
from tests.deploy.test_history_chart import WITH_POSTGRESQL

pytestmark = pytest.mark.e2e

EVERYTHING = (
    "cpuJobs.enabled=true",
    *WITH_POSTGRESQL,
    "pool.mode=shared",
    "networkPolicy.enabled=true",
    "networkPolicy.metricsFrom[0].namespaceSelector.matchLabels.team=sre",
    "metrics.podMonitor.enabled=true",
    "metrics.podMonitor.labels.release=prometheus",
    "metrics.prometheusRule.enabled=true",
    "metrics.dashboards.enabled=true",
    "imagePullSecrets[0].name=registry",
    "nodeSelector.pool=system",
    "tolerations[0].operator=Exists",
    "scheduler.extraArgs[0]=-v=3",
    "operator.settings.CODA_NODE_LOSS_S=90",
    "extender.settings.CODA_BODY_LIMIT_BYTES=5000000",
)


def test_lints_without_a_complaint(helm: Helm) -> None:
    ended = helm.run("lint", str(chart()), "--strict", "--namespace", NAMESPACE)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_is_packaged_whole(helm: Helm, tmp_path: Path) -> None:
    ended = helm.run("package", str(chart()), "--destination", str(tmp_path))
    assert ended.returncode == 0, ended.stderr
    (package,) = tmp_path.glob("coda-*.tgz")
    rendered = helm.run(
        "template", "coda", str(package), "--namespace", NAMESPACE, "--kube-version", "v1.36.3", "--include-crds"
    )
    assert rendered.returncode == 0, rendered.stderr
    assert "kind: CustomResourceDefinition" in rendered.stdout
    assert "name: coda-edit" in rendered.stdout


def test_the_roles_are_those_of_the_local_control_plane(helm: Helm) -> None:
    items = helm.render("cpuJobs.enabled=true", "policies.action=Deny")
    rendered = {(item["kind"], item["metadata"]["name"]): item for item in items}
    for wanted in objects_in(manifests()):
        if wanted["kind"] == "Namespace":
            continue
        item = rendered[wanted["kind"], wanted["metadata"]["name"]]
        assert wanted["metadata"]["labels"].items() <= item["metadata"]["labels"].items()
        wanted["metadata"]["labels"] = item["metadata"]["labels"]
        assert item == wanted


@pytest.mark.parametrize("values", [(), EVERYTHING], ids=["defaults", "everything on"])
def test_everything_of_a_part_carries_its_labels_and_lies_in_the_namespace(helm: Helm, values: tuple[str, ...]) -> None:
    kinds = ("ValidatingAdmissionPolicy", "MutatingAdmissionPolicy")
    policies = {*kinds, *(f"{kind}Binding" for kind in kinds)}
    cluster_wide = {"ClusterRole", "ClusterRoleBinding", "FlowSchema", "PriorityClass"} | policies
    for item in helm.render(*values):
        labels = item["metadata"]["labels"]
        assert labels["app.kubernetes.io/name"] == "coda"
        assert labels["app.kubernetes.io/instance"] == "coda"
        assert labels["app.kubernetes.io/managed-by"] == "Helm"
        assert labels["helm.sh/chart"] == "coda-0.1.0"
        elsewhere = "kube-system" if item["metadata"]["name"].endswith("authentication-reader") else NAMESPACE
        assert item["metadata"].get("namespace") == (None if item["kind"] in cluster_wide else elsewhere)


@pytest.mark.parametrize("part", PARTS)
def test_a_pod_is_selected_by_what_is_meant_for_it(helm: Helm, part: str) -> None:
    items = helm.render(*EVERYTHING)
    labels = pod_of(items, part)["metadata"]["labels"].items()
    deployment = find(items, "Deployment", f"coda-{part}")["spec"]
    budget = find(items, "PodDisruptionBudget", f"coda-{part}")["spec"]
    policy = find(items, "NetworkPolicy", f"coda-{part}")["spec"]
    assert deployment["replicas"] == 2
    assert budget["maxUnavailable"] == 1
    for selector in (deployment["selector"], budget["selector"], policy["podSelector"]):
        assert selector["matchLabels"].items() <= labels
        assert selector["matchLabels"]["app.kubernetes.io/component"] == part


def test_one_replica_has_no_budget_that_would_block_a_drain(helm: Helm) -> None:
    items = helm.render("operator.replicas=1")
    budgets = {item["metadata"]["name"] for item in items if item["kind"] == "PodDisruptionBudget"}
    assert budgets == {"coda-extender", "coda-scheduler"}


@pytest.mark.parametrize("part", PARTS)
def test_a_pod_can_do_nothing_it_needs_not(helm: Helm, part: str) -> None:
    items = helm.render(*EVERYTHING)
    spec, container = pod_of(items, part)["spec"], container_of(items, part)
    assert spec["serviceAccountName"] == f"coda-{part}"
    assert spec["priorityClassName"] == "system-cluster-critical"
    assert spec["enableServiceLinks"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert set(container["resources"]) == {"requests", "limits"}
    assert spec["nodeSelector"] == {"kubernetes.io/os": "linux", "pool": "system"}
    assert spec["tolerations"] == [{"operator": "Exists"}]
    assert spec["imagePullSecrets"] == [{"name": "registry"}]


def test_only_the_leading_extender_is_behind_its_service(helm: Helm) -> None:
    items = helm.render("extender.port=9999")
    service = find(items, "Service", "coda-extender")["spec"]
    selector = dict(service["selector"])
    assert selector.pop("coda.scheduler/leader") == "true"
    pod = pod_of(items, "extender")["metadata"]["labels"]
    assert selector.items() <= pod.items()
    assert "coda.scheduler/leader" not in pod
    (port,) = service["ports"]
    assert port == {"name": "verbs", "port": 9999, "targetPort": "verbs"}
    ports = [{"name": "verbs", "containerPort": 9999}, {"name": "http", "containerPort": 9091}]
    assert container_of(items, "extender")["ports"] == ports
    assert environ_of(items, "extender")["CODA_PORT"] == "9999"
    (extender,) = scheduler_configuration(items)["extenders"]
    assert extender["urlPrefix"] == "https://coda-extender.coda-system.svc:9999"


def test_values_become_settings(helm: Helm) -> None:
    items = helm.render(
        "logLevel=DEBUG",
        "listenAddress=::",
        "extender.settings.CODA_BODY_LIMIT_BYTES=5000000",
        "topologyLevels[0].name=zone,topologyLevels[0].label=topology.kubernetes.io/zone",
        "topologyLevels[1].name=node,topologyLevels[1].label=kubernetes.io/hostname",
        more=["--set-json", "operator.settings.CODA_NODE_LOSS_S=90.5"],  # --set takes it for text
    )
    assert environ_of(items, "operator") == {
        "CODA_HOST": "::",
        "CODA_METRICS_PORT": "9090",
        "CODA_POOL_MODE": "tainted",
        "CODA_POOL_TAINTS": "nvidia.com/gpu",
        "CODA_CERTIFICATES": "own",
        "CODA_METRICS_ACCESS": "authorized",
        "CODA_LOG_LEVEL": "DEBUG",
        "CODA_HISTORY_FILE": "/var/lib/coda/history.sqlite",
        "CODA_NODE_LOSS_S": "90.5",
    }
    assert environ_of(items, "extender") == {
        "CODA_HOST": "::",
        "CODA_PORT": "8888",
        "CODA_METRICS_PORT": "9091",
        "CODA_TLS_DIR": "/etc/coda/tls",
        "CODA_METRICS_ACCESS": "authorized",
        "CODA_LOG_LEVEL": "DEBUG",
        "CODA_BODY_LIMIT_BYTES": "5000000",
        "CODA_TOPOLOGY_LEVELS": "zone=topology.kubernetes.io/zone,node=kubernetes.io/hostname",
    }


def test_an_extender_knows_its_own_pod(helm: Helm) -> None:
    from_pod = {
        entry["name"]: entry["valueFrom"]["fieldRef"]["fieldPath"]
        for entry in container_of(helm.render(), "extender")["env"]
        if "valueFrom" in entry
    }
    assert from_pod == {
        "CODA_POD_NAME": "metadata.name",
        "CODA_POD_NAMESPACE": "metadata.namespace",
        "CODA_IDENTITY": "metadata.name",
    }


def test_the_scheduler_is_set_up_as_the_one_that_all_tests_run(helm: Helm) -> None:
    ours = scheduler_configuration(helm.render("pool.mode=shared"))
    tested = json.loads(scheduler_config(ClusterSpec(), Layout(folder=Path("/x")), 1))
    assert ours.pop("leaderElection") == {
        "leaderElect": True,
        "resourceName": "coda-scheduler",
        "resourceNamespace": NAMESPACE,
    }
    for mine in ("leaderElection", "clientConnection"):
        tested.pop(mine)
    ours.pop("clientConnection")
    tested["profiles"] = [profile for profile in tested["profiles"] if profile["schedulerName"] == "coda"]
    tested["extenders"][0]["urlPrefix"] = ours["extenders"][0]["urlPrefix"]
    for file in ("certFile", "keyFile", "caFile"):
        tested["extenders"][0]["tlsConfig"][file] = ours["extenders"][0]["tlsConfig"][file]
    assert ours == tested


@pytest.mark.parametrize(("mode", "ignorable"), [("tainted", True), ("shared", False)])
def test_the_mode_of_the_pool_says_what_a_silent_extender_means(helm: Helm, mode: str, ignorable: bool) -> None:
    (extender,) = scheduler_configuration(helm.render(f"pool.mode={mode}"))["extenders"]
    assert extender["ignorable"] is ignorable


def test_a_changed_scheduler_configuration_restarts_the_scheduler_and_nothing_else(helm: Helm) -> None:
    before, after = helm.render(), helm.render("scheduler.extenderTimeout=2s")
    changed = {part for part in PARTS if pod_of(before, part) != pod_of(after, part)}
    assert changed == {"scheduler"}


@pytest.mark.parametrize(
    ("cluster", "tag"),
    [("v1.36.3", "v1.36.3"), ("v1.34.4-gke.1234000", "v1.34.4"), ("v1.33.5+k3s1", "v1.33.5"), ("1.36", "v1.36.0")],
)
def test_kube_scheduler_has_the_version_of_the_cluster(helm: Helm, cluster: str, tag: str) -> None:
    assert container_of(helm.render(kube=cluster), "scheduler")["image"].endswith(f"/kube-scheduler:{tag}")
    chosen = helm.render("scheduler.image.tag=v1.35.0", kube=cluster)
    assert container_of(chosen, "scheduler")["image"].endswith("/kube-scheduler:v1.35.0")


def test_images_are_where_the_values_say(helm: Helm) -> None:
    items = helm.render("operator.image.repository=images.example:5000/coda/operator", "extender.image.tag=abc")
    assert container_of(items, "operator")["image"] == "images.example:5000/coda/operator:0.1.0"
    assert container_of(items, "extender")["image"] == "coda-extender:abc"


def peers_of(items: list[Json], part: str) -> dict[int, list[Any]]:
    """Who may reach each port; an empty list: everybody."""
    rules = find(items, "NetworkPolicy", f"coda-{part}")["spec"]["ingress"]
    return {entry["port"]: rule.get("from", []) for rule in rules for entry in rule["ports"]}


def test_only_the_scheduler_reaches_the_extenders_calls(helm: Helm) -> None:
    items = helm.render()
    peers = peers_of(items, "extender")
    (peer,) = peers[8888]
    labels = pod_of(items, "scheduler")["metadata"]["labels"].items()
    assert peer["podSelector"]["matchLabels"].items() <= labels
    assert peers[9091] == []
    assert [item["metadata"]["name"] for item in items if item["kind"] == "NetworkPolicy"] == ["coda-extender"]


def test_named_peers_alone_reach_the_metrics(helm: Helm) -> None:
    opened = helm.render(*EVERYTHING)
    prometheus = [{"namespaceSelector": {"matchLabels": {"team": "sre"}}}]
    ports = {"operator": 9090, "extender": 9091, "scheduler": 10259}
    assert [peers_of(opened, part)[ports[part]] for part in PARTS] == [prometheus] * 3


def test_both_sides_have_the_secret_that_the_operator_makes_for_them(helm: Helm) -> None:
    items = helm.render()
    for part in ("extender", "scheduler"):
        (secret,) = (volume["secret"] for volume in pod_of(items, part)["spec"]["volumes"] if "secret" in volume)
        assert secret == {"secretName": f"coda-{part}-tls"}
        assert secret["secretName"] in SERVES_BY_SECRET
    config = scheduler_configuration(items)["extenders"][0]
    assert config["enableHTTPS"] is True
    assert config["tlsConfig"]["serverName"] == SERVER_NAME
    assert config["urlPrefix"] == f"https://{SERVER_NAME}:8888"


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        pytest.param(
            ["operator.replicas=2"], "operator.replicas is 2, and SQLite serves one operator", id="operators on SQLite"
        ),
        pytest.param(["history.database=postgresql"], "name the Secret that has its URL", id="PostgreSQL without URL"),
        pytest.param(["history.database=mysql"], "at '/history/database': value must be one of", id="database"),
        pytest.param(["pool.mode=both"], "at '/pool/mode': value must be one of 'tainted', 'shared'", id="mode"),
        pytest.param(["extender.replicas=0"], "at '/extender/replicas': minimum: got 0, want 1", id="no replica"),
        pytest.param(["extender.replica=2"], "at '/extender': additional properties 'replica' not allowed", id="typo"),
        pytest.param(["logLevel=LOUD"], "at '/logLevel': value must be one of", id="log level"),
        pytest.param(["operator.settings.CODA_NODE_LOSS=1"], "'CODA_NODE_LOSS' not allowed", id="unknown setting"),
        pytest.param(
            ["operator.settings.CODA_NODE_LOSS_S=0"], "/CODA_NODE_LOSS_S': exclusiveMinimum", id="bad setting"
        ),
        pytest.param(["operator.port=80"], "at '/operator/port': minimum", id="a port that needs root"),
        pytest.param(["scheduler.extenderTimeout=soon"], "at '/scheduler/extenderTimeout'", id="duration"),
        pytest.param(["topologyLevels[0].name=a=b"], "at '/topologyLevels/0/name'", id="a level's name"),
        pytest.param(
            [f"topologyLevels[{number}].{key}=rack" for number in (0, 1) for key in ("name", "label")],
            'two levels are called "rack"; give each a name of its own.',
            id="a level twice",
        ),
    ],
)
def test_values_that_make_no_sense_are_named(helm: Helm, values: list[str], sentence: str) -> None:
    assert sentence in helm.refusal(*values)


def test_another_namespace_is_refused_with_the_reason(helm: Helm) -> None:
    said = helm.refusal(namespace="team-a")
    assert 'install it there instead of into "team-a" (--namespace coda-system --create-namespace).' in said


def test_an_older_kubernetes_is_refused(helm: Helm) -> None:
    ended = helm.template(kube="v1.32.9")
    assert "chart requires kubeVersion: >=1.33.0-0 which is incompatible with Kubernetes v1.32.9" in ended.stderr


def test_a_value_says_whether_pods_become_cpu_jobs(helm: Helm) -> None:
    """Without a cluster nobody knows whether the API server can do it, so `auto` leaves pods alone."""

    def names(*values: str) -> set[str]:
        return {item["metadata"]["name"] for item in helm.render(*values) if item["kind"].startswith("Mutating")}

    assert names() == names("cpuJobs.enabled=false") == set()
    assert names("cpuJobs.enabled=true") == {
        "coda-cpu-jobs",
        "coda-returning-jobs",
        "coda-cpu-job-users",
        "coda-training-job-users",
    }


def test_named_accounts_may_use_the_pool(helm: Helm) -> None:
    values = ("policies.poolAccounts[0].kind=Group", "policies.poolAccounts[0].name=sre")
    binding = find(helm.render(*values), "ClusterRoleBinding", "coda-pool-user")
    assert binding["subjects"] == [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "sre"}]
    assert not [item for item in helm.render() if item["metadata"]["name"] == "coda-pool-user" and "subjects" in item]


def test_rules_for_failures_are_mounted_and_a_change_restarts_the_operator(helm: Helm) -> None:
    def rendered(rule: str) -> list[Json]:
        return helm.render(f"operator.failureRules.site\\.toml={rule}")

    items = rendered("one")
    assert find(items, "ConfigMap", "coda-failure-rules")["data"] == {"site.toml": "one"}
    assert environ_of(items, "operator")["CODA_FAILURE_RULES"] == "/etc/coda/failure-rules"
    mounts = {mount["name"]: mount["mountPath"] for mount in container_of(items, "operator")["volumeMounts"]}
    assert mounts == {"history": "/var/lib/coda", "failure-rules": "/etc/coda/failure-rules"}
    first, second = (
        find(rendered(rule), "Deployment", "coda-operator")["spec"]["template"]["metadata"]["annotations"]
        for rule in ("one", "two")
    )
    assert first != second


def test_priority_classes_are_for_users_and_preempt_nobody(helm: Helm) -> None:
    mine = helm.render("priorityClasses.coda-low=null", "priorityClasses.deadline.value=500")
    found = {item["metadata"]["name"]: item for item in mine if item["kind"] == "PriorityClass"}
    assert {name: item["value"] for name, item in found.items()} == {"coda-high": 10000, "deadline": 500}
    assert {item["preemptionPolicy"] for item in found.values()} == {"Never"}
    assert not any(item.get("globalDefault") for item in found.values())
    for wrong in ("system-x.value=1", "x.value=1000000001", "x.value=many", "x.description=none"):
        said = helm.refusal(f"priorityClasses.{wrong}")
        assert "priorityClasses" in said or "invalid propertyName" in said  # Helm names another path for a wrong name
