"""What the node's programs are told, and when the node counts as usable."""

from __future__ import annotations

import base64
import re
from pathlib import Path

import pytest
import yaml

from coda_lab.local.credentials import write_credentials
from coda_lab.realnode.configuration import GPUS, gpu_ids, kubelet_yaml, portable_kubeconfig
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
