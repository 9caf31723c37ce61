"""What the node's programs are told, and when the node counts as usable."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path, PurePosixPath

import pytest
import yaml

from coda_lab.local.credentials import write_credentials
from coda_lab.realnode.configuration import (
    GPUS,
    NVML_LIBRARY,
    NVML_STATE,
    gpu_ids,
    kubelet_yaml,
    nvidia_spec,
    portable_kubeconfig,
)
from coda_lab.realnode.host_process import is_usable
from coda_lab.spec import KUBELETS, REAL_NODE, ClusterSpec


def test_gpus_have_ids_of_nvmls_form_the_same_in_every_run() -> None:
    assert len(set(gpu_ids())) == GPUS
    assert gpu_ids() == gpu_ids()
    assert set(gpu_ids()).isdisjoint(gpu_ids("another-node"))
    assert all(re.fullmatch(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", each) for each in gpu_ids())


def test_a_test_may_change_single_fields_of_the_kubelets_configuration() -> None:
    first, changed = (yaml.safe_load(kubelet_yaml(changes)) for changes in ({}, {"cpuManagerPolicy": "static"}))
    assert changed == first | {"cpuManagerPolicy": "static"}


def test_under_nvidias_runtime_a_container_has_the_library_its_state_and_all_else_as_before() -> None:
    plain = {"process": {"env": ["A=b"], "cwd": "/"}, "mounts": [{"destination": "/proc"}], "hostname": "x"}
    spec = json.loads(nvidia_spec(plain))
    assert spec["process"] == {"env": ["A=b", f"CODA_NVML_STATE={NVML_STATE}"], "cwd": "/"}
    assert (spec["mounts"][0], spec["hostname"]) == ({"destination": "/proc"}, "x")
    added = {mount["destination"]: mount for mount in spec["mounts"][1:]}
    assert str(PurePosixPath(NVML_STATE).parent) in added
    assert added["/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"]["source"] == NVML_LIBRARY
    assert all("ro" in mount["options"] for mount in added.values())


def test_a_kubeconfig_for_the_machine_carries_the_certificate_instead_of_its_path(tmp_path: Path) -> None:
    write_credentials(tmp_path, server="https://127.0.0.1:20000", authority=Path("/nowhere/ca.crt"))
    original = (tmp_path / "agent.yaml").read_text()
    config = yaml.safe_load(portable_kubeconfig(original, b"certificate"))
    (cluster,) = config["clusters"]
    assert cluster["cluster"] == {
        "server": "https://127.0.0.1:20000",
        "certificate-authority-data": base64.b64encode(b"certificate").decode(),
    }
    assert config["users"] == yaml.safe_load(original)["users"]


@pytest.mark.parametrize(
    ("ready", "gpus", "expected"),
    [
        pytest.param("True", "8", True, id="ready with its GPUs"),
        pytest.param("True", "0", False, id="the device plug-in has not registered"),
        pytest.param("True", None, False, id="nor ever did"),
        pytest.param("False", "8", False, id="the network is not there"),
    ],
)
def test_the_node_is_usable_when(ready: str, gpus: str | None, expected: bool) -> None:
    allocatable = {"cpu": "4"} | ({} if gpus is None else {"nvidia.com/gpu": gpus})
    conditions = [{"type": "MemoryPressure", "status": "False"}, {"type": "Ready", "status": ready}]
    assert is_usable({"real-0": {"status": {"allocatable": allocatable, "conditions": conditions}}}) is expected


def test_a_node_that_has_just_registered_or_is_not_there_is_not_usable() -> None:
    assert not is_usable({})
    assert not is_usable({"real-0": {"status": {}}})


def test_the_real_node_is_a_part_only_where_it_is_asked_for() -> None:
    assert REAL_NODE not in ClusterSpec().names
    assert {REAL_NODE, KUBELETS} < set(ClusterSpec(real_node_cores=4).names)
    assert KUBELETS not in ClusterSpec(nodes="", real_node_cores=4).names
