"""What the chart makes of the agent's values: the DaemonSet, and the pod that restores in its place."""

from __future__ import annotations

import pytest

from coda_agent.modes import ThrottleMode, TuneMode
from coda_agent.settings import Settings
from coda_operator.throttle_recovery import restoring_pod
from tests.deploy.charts import Helm, Json, find

pytestmark = pytest.mark.e2e


KERNEL = {"hardware": "/sys", "kernel": "/sys/fs"}


def agents(helm: Helm, *values: str) -> Json:
    """The DaemonSet."""
    return find(helm.render(*values), "DaemonSet", "coda-agent")


def pod_spec(helm: Helm, *values: str) -> Json:
    """What its pods are."""
    spec: Json = agents(helm, *values)["spec"]["template"]["spec"]
    return spec


def environ(helm: Helm, *values: str) -> dict[str, str]:
    """The agent's environment, as far as it is values."""
    (container,) = pod_spec(helm, *values)["containers"]
    return {entry["name"]: entry["value"] for entry in container["env"] if "value" in entry}


def kernel_paths(spec: Json) -> dict[str, str]:
    """Folders of the host's kernel that the pod needs, by volume."""
    paths = {volume["name"]: volume["hostPath"]["path"] for volume in spec["volumes"] if "hostPath" in volume}
    return {name: path for name, path in paths.items() if path.split("/")[1] in ("sys", "proc", "dev")}


def test_it_starts_on_a_kernel_without_resctrl(helm: Helm) -> None:
    """A runtime makes a missing folder before it binds it, and in /sys nobody can: the container is never made."""
    spec = pod_spec(helm)
    assert kernel_paths(spec) == KERNEL  # every kernel has both
    (container,) = spec["containers"]
    (mount,) = (mount for mount in container["volumeMounts"] if mount["name"] == "kernel")
    assert mount["mountPropagation"] == "HostToContainer"  # resctrl may be mounted later
    paths = environ(helm)
    assert paths["CODA_CGROUP"] == f"{mount['mountPath']}/cgroup"
    assert paths["CODA_RESCTRL"] == f"{mount['mountPath']}/resctrl"


def test_it_is_not_privileged_and_writes_to_cgroups_resctrl_and_its_journal_alone(helm: Helm) -> None:
    (container,) = pod_spec(helm)["containers"]
    context = container["securityContext"]
    assert (context["privileged"], context["readOnlyRootFilesystem"]) == (False, True)
    assert context["capabilities"] == {"drop": ["ALL"], "add": ["SYS_ADMIN"]}  # NVIDIA's runtime asks for it
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}
    mounts = container["volumeMounts"]
    assert {mount["name"] for mount in mounts if not mount.get("readOnly")} == {"kernel", "state"}
    (hardware,) = (mount for mount in mounts if mount["name"] == "hardware")
    assert hardware["recursiveReadOnly"] == "IfPossible"  # debugfs and the like are mounted below it
    assert environ(helm)["CODA_SYS"] == hardware["mountPath"]


def test_it_sees_volumes_of_pods_only_to_read_their_progress_and_only_if_that_is_switched_on(helm: Helm) -> None:
    assert "CODA_PODS_DIR" not in environ(helm)
    assert "pods" not in {volume["name"] for volume in pod_spec(helm)["volumes"]}
    spec = pod_spec(helm, "agent.progress=true")
    (mount,) = (mount for mount in spec["containers"][0]["volumeMounts"] if mount["name"] == "pods")
    assert mount == {"name": "pods", "mountPath": "/host/pods", "readOnly": True, "recursiveReadOnly": "IfPossible"}
    assert {"name": "pods", "hostPath": {"path": "/var/lib/kubelet/pods"}} in spec["volumes"]
    assert {"name": "CODA_PODS_DIR", "value": "/host/pods"} in spec["containers"][0]["env"]


def test_it_writes_to_the_kubelets_device_plugins_only_where_gpus_are_shared(helm: Helm) -> None:
    assert "CODA_SHARING" not in environ(helm)
    assert {"device-plugins", "jobs"}.isdisjoint(volume["name"] for volume in pod_spec(helm)["volumes"])
    values = ("agent.sharing=true", "agent.gpuAccess=cdi-cri", "agent.devicePluginsPath=/data/kubelet/device-plugins")
    given, spec = environ(helm, *values), pod_spec(helm, *values)
    fields = {"sharing": given["CODA_SHARING"], "sharing_gpu_access": given["CODA_SHARING_GPU_ACCESS"]}
    settings = Settings.model_validate(fields)
    assert (settings.sharing, settings.sharing_gpu_access) == (True, "cdi-cri")
    mounts = {mount["name"]: mount["mountPath"] for mount in spec["containers"][0]["volumeMounts"]}
    paths = {volume["name"]: volume["hostPath"]["path"] for volume in spec["volumes"]}
    assert mounts["device-plugins"] == str(settings.device_plugins)
    assert paths["device-plugins"] == "/data/kubelet/device-plugins"
    # The kubelet mounts these into other containers, so the node calls them as the agent does.
    assert mounts["jobs"] == paths["jobs"] == str(settings.sharing_socket.parent)
    assert mounts["state"] == paths["state"]
    assert settings.sharing_framework.is_relative_to(paths["state"])


def test_it_may_write_into_volumes_of_pods_only_where_it_is_to_tell_jobs_that_they_stop(helm: Helm) -> None:
    spec = pod_spec(helm, "agent.progress=true", "agent.stopNotices=true")
    (mount,) = (mount for mount in spec["containers"][0]["volumeMounts"] if mount["name"] == "pods")
    assert mount == {"name": "pods", "mountPath": "/host/pods"}
    assert {"name": "CODA_STOP_NOTICES", "value": "true"} in spec["containers"][0]["env"]
    assert "pods" not in {volume["name"] for volume in pod_spec(helm, "agent.stopNotices=true")["volumes"]}


def test_where_no_runtime_brings_nvml_it_comes_from_the_nodes_folder(helm: Helm) -> None:
    assert "LD_LIBRARY_PATH" not in environ(helm)
    assert "driver" not in {volume["name"] for volume in pod_spec(helm)["volumes"]}
    spec = pod_spec(helm, "agent.driverPath=/home/kubernetes/bin/nvidia")
    (container,) = spec["containers"]
    (mount,) = (mount for mount in container["volumeMounts"] if mount["name"] == "driver")
    assert (mount["readOnly"], mount["mountPropagation"]) == (True, "HostToContainer")
    assert {"name": "LD_LIBRARY_PATH", "value": f"{mount['mountPath']}/lib64"} in container["env"]
    volume = {"name": "driver", "hostPath": {"path": "/home/kubernetes/bin/nvidia", "type": "DirectoryOrCreate"}}
    assert volume in spec["volumes"]  # also on nodes without GPUs, where an agent runs too
    assert "/agent/driverPath" in helm.refusal("agent.driverPath=bin")


def test_privileges_are_a_value(helm: Helm) -> None:
    (container,) = pod_spec(helm, "agent.securityContext.privileged=true")["containers"]
    assert container["securityContext"]["privileged"] is True
    more = ["--set-json", "agent.securityContext.capabilities.add=[]"]
    daemon_set = find(helm.render(more=more), "DaemonSet", "coda-agent")
    (container,) = daemon_set["spec"]["template"]["spec"]["containers"]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": []}


def test_the_pod_that_restores_needs_no_gpu_and_no_more_of_the_kernel_than_the_agent(helm: Helm) -> None:
    """It must start where the GPU runtime is broken, and on a node that the agents' pods have left."""
    daemon_set = agents(helm, "agent.runtimeClassName=nvidia", "agent.nodeSelector.gpu=yes", "agent.progress=true")
    daemon_set["metadata"]["uid"] = "0"
    spec = restoring_pod(daemon_set, "n1")["spec"]
    assert kernel_paths(spec) == KERNEL
    assert "pods" not in {one["name"] for one in (*spec["volumes"], *spec["containers"][0]["volumeMounts"])}
    assert not {"runtimeClassName", "nodeSelector", "affinity"} & spec.keys()
    (container,) = spec["containers"]
    visible = [entry["value"] for entry in container["env"] if entry["name"] == "NVIDIA_VISIBLE_DEVICES"]
    assert visible == ["void"]


CLIENT = "nvidia.com/gpu.deploy.client"


@pytest.mark.parametrize(
    ("labels", "runs"),
    [
        pytest.param({}, True, id="no GPU operator, or an older one"),
        pytest.param({CLIENT: "true"}, True, id="GPU operator"),
        pytest.param({CLIENT: "paused-for-driver-upgrade"}, False, id="the driver is upgraded"),
        pytest.param({CLIENT: "paused-for-mig-change"}, False, id="MIG is changed"),
        pytest.param({CLIENT: "false"}, False, id="told to stay away"),
        pytest.param({"type": "virtual-kubelet"}, False, id="a node without a kernel of its own"),
        pytest.param({"type": "virtual-kubelet", CLIENT: "true"}, False, id="such a node with a label of the operator"),
        pytest.param({"eks.amazonaws.com/compute-type": "fargate"}, False, id="Fargate, which runs no DaemonSets"),
        pytest.param({"type": "gpu", "eks.amazonaws.com/compute-type": "ec2"}, True, id="a label that means no harm"),
    ],
)
def test_it_leaves_a_node_whose_driver_must_be_free_and_one_without_a_kernel(
    helm: Helm, labels: dict[str, str], runs: bool
) -> None:
    """The DaemonSet's controller removes a pod whose required affinity its node does not meet any more."""
    affinity = pod_spec(helm)["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    holds = {
        "In": lambda rule: labels.get(rule["key"]) in rule["values"],
        "NotIn": lambda rule: labels.get(rule["key"]) not in rule["values"],
        "DoesNotExist": lambda rule: rule["key"] not in labels,
    }
    terms = affinity["nodeSelectorTerms"]
    assert any(all(holds[rule["operator"]](rule) for rule in term["matchExpressions"]) for term in terms) is runs


@pytest.mark.parametrize(
    ("value", "wanted"), [((), "10%"), (("agent.maxUnavailable=3",), 3)], ids=["default", "number"]
)
def test_an_update_replaces_a_share_of_all_agents_at_a_time(
    helm: Helm, value: tuple[str, ...], wanted: str | int
) -> None:
    """With one at a time a thousand nodes take hours, and a node that is not Ready stops it."""
    assert agents(helm, *value)["spec"]["updateStrategy"]["rollingUpdate"] == {"maxUnavailable": wanted}


@pytest.mark.parametrize("value", ["agent.maxUnavailable=0", "agent.maxUnavailable=0%", "agent.maxUnavailable=all"])
def test_an_update_that_could_never_move_is_refused(helm: Helm, value: str) -> None:
    assert "/agent/maxUnavailable" in helm.refusal(value)


@pytest.mark.parametrize(
    ("tune", "throttle", "wanted"),
    [
        pytest.param('"on"', '"on"', ("on", "on"), id="on"),
        pytest.param('"advise"', '"observe"', ("advise", "observe"), id="careful"),
        pytest.param("false", "true", ("off", "on"), id="as YAML reads off and on"),
    ],
)
def test_modes_become_settings(helm: Helm, tune: str, throttle: str, wanted: tuple[str, str]) -> None:
    found = find(
        helm.render(more=["--set-json", f"agent.tune={tune},agent.throttle={throttle}"]),
        "DaemonSet",
        "coda-agent",
    )
    (container,) = found["spec"]["template"]["spec"]["containers"]
    variables = {entry["name"]: entry.get("value") for entry in container["env"]}
    assert (variables["CODA_TUNE"], variables["CODA_THROTTLE"]) == wanted
    assert {TuneMode(variables["CODA_TUNE"]), ThrottleMode(variables["CODA_THROTTLE"])}


def test_a_mode_that_there_is_not_is_refused(helm: Helm) -> None:
    assert "/agent/tune" in helm.refusal("agent.tune=observe")


def test_named_peers_alone_reach_its_metrics(helm: Helm) -> None:
    """They name every pod of the node."""
    peer = ["networkPolicy.metricsFrom[0].namespaceSelector.matchLabels.team=sre"]
    policy = find(helm.render(*peer), "NetworkPolicy", "coda-agent")["spec"]
    labels = agents(helm)["spec"]["template"]["metadata"]["labels"]
    assert policy["podSelector"]["matchLabels"].items() <= labels.items()
    (rule,) = policy["ingress"]
    assert rule["ports"] == [{"port": 9092}]
    assert rule["from"] == [{"namespaceSelector": {"matchLabels": {"team": "sre"}}}]
    without = helm.render("agent.enabled=false", *peer)
    off = {item["metadata"]["name"] for item in without if item["kind"] == "NetworkPolicy"}
    assert "coda-agent" not in off
