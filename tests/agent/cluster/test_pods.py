"""Which pods of a node the agent protects, and which it may throttle."""

from __future__ import annotations

from typing import Any

import pytest

from coda.contention import Protection
from coda_agent.cluster import local_pod_from_json
from tests.extender.objects import pod_json, rank_json


def test_a_label_alone_makes_no_pod_a_training_pod() -> None:
    """Finding L10: with it, a pod that takes the memory bandwidth was never throttled."""
    rank = rank_json("gang", 0, "n1", gpus=0)
    assert local_pod_from_json(rank, {"default"}).trains
    forged = rank | {"metadata": rank["metadata"] | {"ownerReferences": []}}
    other = pod_json("aggressor", metadata={"labels": {"coda.scheduler/job-uid": "any"}})
    other["metadata"] |= {"name": "aggressor", "namespace": "default", "uid": "a"}
    for item in (forged, other):
        pod = local_pod_from_json(item, {"default"})
        assert not pod.trains
        assert Protection.TRAINING not in pod.protections


@pytest.mark.parametrize(("text", "size"), [("24Gi", 24 << 30), ("7", 7), ("", 0), ("much", 0), ("-5Gi", 0)])
def test_what_a_job_declares_to_need_of_a_gpu_is_read_of_ranks_only(text: str, size: int) -> None:
    rank = rank_json("gang", 0, "n1", gpus=0)
    rank["metadata"]["annotations"] = {"coda.scheduler/gpu-memory": text}
    assert local_pod_from_json(rank, {"default"}).gpu_bytes == size
    forged = rank | {"metadata": rank["metadata"] | {"ownerReferences": []}}
    assert local_pod_from_json(forged, {"default"}).gpu_bytes == 0


RUNNING = {"phase": "Running"}
RANK = rank_json("gang", 0, "n1") | {"status": RUNNING}
NOTEBOOK = pod_json("notebook", gpus=1, metadata={"namespace": "default", "uid": "n"}) | {"status": RUNNING}


def labelled(pod: dict[str, Any], value: str) -> dict[str, Any]:
    return pod | {"metadata": pod["metadata"] | {"labels": {"coda.scheduler/throttling": value}}}


def ending(pod: dict[str, Any]) -> dict[str, Any]:
    return pod | {"metadata": pod["metadata"] | {"deletionTimestamp": "2026-01-01T00:00:00Z"}}


@pytest.mark.parametrize(
    ("pod", "protected"),
    [
        pytest.param(RANK, True, id="a rank of a TrainingJob"),
        pytest.param(RANK | {"status": {"phase": "Pending"}}, False, id="a rank that does not run yet"),
        pytest.param(ending(RANK), False, id="a rank that is told to end"),
        pytest.param(rank_json("gang", 0, "n1", gpus=0) | {"status": RUNNING}, False, id="a rank without GPUs"),
        pytest.param(NOTEBOOK, False, id="a pod with GPUs"),
        pytest.param(labelled(NOTEBOOK, "protect"), True, id="a pod with GPUs that asks for it"),
        pytest.param(labelled(NOTEBOOK, "true"), False, id="the namespaces' word says nothing on a pod"),
        pytest.param(ending(labelled(NOTEBOOK, "protect")), False, id="and is told to end"),
    ],
)
def test_others_are_throttled_for_training_jobs_and_for_who_asks(pod: dict[str, Any], protected: bool) -> None:
    """Finding H4: notebooks, inference and terminating pods made the agent throttle CPU pods for nothing."""
    local = local_pod_from_json(pod, {"default"})
    assert local.is_protected is protected
    assert Protection.TRAINING in local.protections


DEVICES: dict[str, dict[str, Any]] = {
    "a MIG slice": {"limits": {"nvidia.com/mig-3g.40gb": "1"}},
    "a renamed time slice": {"limits": {"nvidia.com/gpu.shared": "1"}},
    "a GPU under the name of its model": {"limits": {"nvidia.com/GA102GL_A10": "1"}},
    "a claim": {"claims": [{"name": "gpu"}]},
    "a part of AMD's": {"limits": {"amd.com/cpx_nps4": "1"}},
    "another vendor's GPU": {"limits": {"amd.com/gpu": "1"}},
    "Intel's": {"limits": {"gpu.intel.com/i915": "1"}},
    "Gaudi": {"limits": {"habana.ai/gaudi": "1"}},
    "a TPU": {"limits": {"google.com/tpu": "4"}},
    "Neuron": {"limits": {"aws.amazon.com/neuroncore": "2"}},
    "Ascend": {"limits": {"huawei.com/Ascend910": "1"}},
}


def with_device(resources: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    pod = pod_json("triton", metadata={"namespace": "default", "uid": "t", **metadata}) | {"status": RUNNING}
    pod["spec"]["containers"][0]["resources"] = resources
    if "claims" in resources:
        pod["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimName": "my-gpu"}]
    return pod


@pytest.mark.parametrize("resources", DEVICES.values(), ids=DEVICES)
def test_pods_with_other_accelerators_are_no_cpu_pods(resources: dict[str, Any]) -> None:
    """They were throttled, also where they asked for protection, and their node was loaded fully as an idle one."""
    pod = with_device(resources)
    plain, asking_for_it = (local_pod_from_json(one, {"default"}) for one in (pod, labelled(pod, "protect")))
    assert (plain.trains, asking_for_it.trains) == (True, True)
    assert (plain.is_protected, asking_for_it.is_protected) == (False, True)
    assert Protection.TRAINING in plain.protections
    assert plain.needs_quiet


def test_a_claim_that_kube_scheduler_made_for_a_resource_counts_as_one() -> None:
    """Of a DeviceClass with an `extendedResourceName`, which may be any."""
    pod = with_device({"limits": {"example.com/thing": "1"}})
    assert not local_pod_from_json(pod, {"default"}).trains
    mapping = {"containerName": "main", "resourceName": "example.com/thing", "requestName": "container-0-request-0"}
    made = {"resourceClaimName": "triton-extended", "requestMappings": [mapping]}
    assert local_pod_from_json(pod | {"status": RUNNING | {"extendedResourceClaimStatus": made}}, {"default"}).trains


@pytest.mark.parametrize(
    "limits",
    [
        {"cpu": "4", "hugepages-2Mi": "1Gi"},
        {"nvidia.com/mig-3g.40gb": "0"},
        {"coda.scheduler/thing": "1"},
        {"vpc.amazonaws.com/pod-eni": "1"},
        {"aliyun/eni": "1"},
        {"kubernetes.io/batch-cpu": "8000", "kubernetes.io/batch-memory": "8Gi"},
        {"devices.kubevirt.io/kvm": "1", "devices.kubevirt.io/tun": "1"},
        {"smarter-devices/fuse": "1"},
        {"rdma/hca": "1", "amd.com/nic": "1", "not-nvidia.com/gpu": "1"},
    ],
)
def test_a_pod_without_accelerators_is_a_cpu_pod(limits: dict[str, str]) -> None:
    """Webhooks give pods network cards, and anybody may ask for FUSE: it must not make a pod one that trains."""
    pod = labelled(with_device({"limits": limits}), "protect")
    pod["spec"]["containers"][0]["ports"] = [{"containerPort": 80, "hostPort": 80}]
    local = local_pod_from_json(pod, {"default"})
    assert (local.trains, local.is_protected, local.protections, local.needs_quiet) == (
        False,
        False,
        frozenset(),
        False,
    )


def test_only_what_watches_devices_on_each_node_does_not_keep_it_from_being_measured() -> None:
    """A DaemonSet's pod is there for ever: a monitor with a claim for admin access would prevent the calibration."""
    owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "uid": "u", "controller": True}
    monitor = with_device(DEVICES["a claim"], ownerReferences=[owner])
    assert not local_pod_from_json(monitor, {"default"}).needs_quiet
    assert local_pod_from_json(labelled(monitor, "protect"), {"default"}).needs_quiet
    assert not local_pod_from_json(monitor | {"status": {"phase": "Succeeded"}}, {"default"}).needs_quiet
    assert local_pod_from_json(NOTEBOOK, {"default"}).needs_quiet


@pytest.mark.parametrize(
    ("owner", "spared"),
    [
        ({"apiVersion": "apps/v1", "kind": "DaemonSet", "uid": "u", "controller": True}, True),
        ({"apiVersion": "apps/v1", "kind": "DaemonSet", "uid": "u"}, False),
        ({"apiVersion": "mine/v1", "kind": "DaemonSet", "uid": "u", "controller": True}, False),
    ],
)
def test_only_pods_of_a_daemon_set_s_controller_are_spared_as_such(owner: dict[str, Any], spared: bool) -> None:
    pod = pod_json("cpu", metadata={"namespace": "default", "uid": "c", "ownerReferences": [owner]})
    assert (Protection.DAEMON_SET in local_pod_from_json(pod, {"default"}).protections) is spared


@pytest.mark.parametrize(
    ("container", "quality", "obstacle"),
    [
        pytest.param({}, "Guaranteed", "", id="nothing is in the way"),
        pytest.param({}, "BestEffort", "BestEffort", id="there is nothing to set"),
        pytest.param({"resources": {}}, "Burstable", "BestEffort", id="the main container asks for no cores"),
        pytest.param(
            {"resizePolicy": [{"resourceName": "cpu", "restartPolicy": "RestartContainer"}]},
            "Guaranteed",
            "RestartContainer",
            id="a change would restart it",
        ),
        pytest.param(
            {"resizePolicy": [{"resourceName": "memory", "restartPolicy": "RestartContainer"}]},
            "Guaranteed",
            "",
            id="a change of memory would",
        ),
    ],
)
def test_a_pod_says_why_its_cores_can_never_be_changed(container: dict[str, Any], quality: str, obstacle: str) -> None:
    rank = rank_json("gang", 0, "n1", gpus=1)
    rank["spec"]["containers"][0] |= container
    rank["status"] = {**(rank.get("status") or {}), "qosClass": quality}
    assert local_pod_from_json(rank, {"default"}).resize_obstacle == obstacle


def asking(main: str, *, init: str = "", sidecar: str = "", other: str = "", whole: str = "") -> dict[str, Any]:
    """A rank by the cores of its main container, its init container, a sidecar before it, another, and as a whole."""
    rank = rank_json("gang", 0, "n1", gpus=1)
    spec, named = rank["spec"], {"init": init, "other": other, "sidecar": sidecar}
    spec["containers"][0]["resources"]["requests"]["cpu"] = main
    more = {name: {"name": name, "resources": {"requests": {"cpu": cpu}}} for name, cpu in named.items() if cpu}
    spec["initContainers"] = [{**more[name], **kind} for name, kind in ORDER.items() if name in more]
    spec["containers"] += [more["other"]] if other else []
    spec |= {"resources": {"requests": {"cpu": whole}}} if whole else {}
    return rank


ORDER: dict[str, dict[str, str]] = {"sidecar": {"restartPolicy": "Always"}, "init": {}}


@pytest.mark.parametrize(
    ("rank", "obstacle", "least"),
    [
        pytest.param(asking("4"), "", 0, id="its main container alone asks"),
        pytest.param(asking("4", init="16"), "AskedAnyway", 16, id="more than an init container leaves would be free"),
        pytest.param(asking("16", init="16"), "", 16, id="no fewer than these free any"),
        pytest.param(asking("8", init="3500m", other="500m"), "", 3, id="another container has part of them"),
        pytest.param(asking("8", init="3600m", other="500m"), "", 4, id="whole cores"),
        pytest.param(asking("8", init="4", sidecar="1"), "", 4, id="a sidecar runs beside both"),
        pytest.param(asking("8", init="100m"), "", 1, id="a small one"),
        pytest.param(asking("8", sidecar="16"), "", 0, id="sidecars run on"),
        pytest.param(asking("8", whole="24"), "AskedAnyway", 24, id="as a whole"),
    ],
)
def test_cores_that_a_pod_asks_for_anyway_are_neither_found_nor_given_up(
    rank: dict[str, Any], obstacle: str, least: int
) -> None:
    pod = local_pod_from_json(rank, {"default"})
    assert (pod.resize_obstacle, pod.asked_anyway) == (obstacle, least)


@pytest.mark.parametrize(
    ("says", "cores"),
    [
        pytest.param({"limits": {"cpu": "6"}}, 6, id="its kubelet says what is in force"),
        pytest.param({}, 4, id="a kubelet that says nothing: what it wants"),
    ],
)
def test_the_cores_of_a_rank_are_those_in_force(says: dict[str, Any], cores: int) -> None:
    rank = rank_json("gang", 0, "n1")
    (main,) = rank["spec"]["containers"]
    rank["spec"] = rank["spec"] | {
        "containers": [main | {"resources": {"limits": {"cpu": "4", "nvidia.com/gpu": "1"}}}]
    }
    rank["status"] = RUNNING | {"containerStatuses": [{"name": main["name"], "resources": says}]}
    assert local_pod_from_json(rank, {"default"}).cores == cores


def test_a_container_that_a_webhook_put_first_is_not_the_rank() -> None:
    rank = rank_json("gang", 0, "n1")
    (main,) = rank["spec"]["containers"]
    proxy = {"name": "proxy", "resources": {}}
    rank["metadata"]["annotations"]["coda.scheduler/main-container"] = main["name"]
    rank["spec"]["containers"] = [proxy, main | {"resources": {"requests": {"cpu": "4"}, "limits": {"cpu": "4"}}}]
    told = [{"name": "proxy", "containerID": "containerd://p"}, {"name": main["name"], "containerID": "containerd://m"}]
    rank["status"] = RUNNING | {"containerStatuses": told, "qosClass": "Burstable"}
    local = local_pod_from_json(rank, {"default"})
    assert (local.container, local.cores, local.resize_obstacle) == ("m", 4, "")


def test_a_rank_says_whether_its_cores_are_to_be_found_and_a_stranger_cannot() -> None:
    note = {"annotations": {"coda.scheduler/cores": "auto"}}
    told = [pod | {"metadata": pod["metadata"] | note} for pod in (rank_json("gang", 0, "n1"), NOTEBOOK)]
    assert [local_pod_from_json(pod, {"default"}).is_tuned for pod in told] == [True, False]
    assert not local_pod_from_json(rank_json("gang", 0, "n1"), {"default"}).is_tuned
