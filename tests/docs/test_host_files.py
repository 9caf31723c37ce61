"""What the user guide makes of Coda's variables: a host file, and TensorFlow's, name every rank as Kubernetes does."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from coda.model import Placement, PlacementState
from coda_kube.objects.pods.trial_spec import tried_spec
from coda_operator.reconcile.pod_spec import rank_pod

GUIDE = Path(__file__).parents[2] / "docs/user-guide.md"
JOB: dict[str, Any] = {
    "metadata": {"name": "a-rank-0", "namespace": "vision", "uid": "u"},
    "spec": {
        "replicas": 3,
        "gpusPerReplica": 8,
        "template": {"spec": {"containers": [{"name": "main", "image": "train:1"}]}},
    },
}
PLAN = Placement(
    attempt=12,
    plan_id="p",
    epoch=1,
    generation=1,
    state=PlacementState.RELEASED,
    nodes=("n1", "n2", "n3"),
    cpus_per_replica=8,
    committed_s=0.0,
    bind_deadline_s=60.0,
)


def host_file_of(pod: Any, folder: Path) -> list[str]:
    """The lines that the guide's script writes in a container of this pod."""
    (script,) = re.findall(r"```sh\n(for rank in .*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    env = {entry["name"]: entry["value"] for entry in pod["spec"]["containers"][0]["env"]}
    subprocess.run(["sh", "-euc", script], cwd=folder, env={"PATH": "/usr/bin:/bin"} | env, check=True)
    return (folder / "hostfile").read_text().splitlines()


def tf_config_of(pod: Any, folder: Path) -> Any:
    """What the guide's program sets in a container of this pod."""
    (program,) = re.findall(r"```python\n(import json.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    env = {entry["name"]: entry["value"] for entry in pod["spec"]["containers"][0]["env"]}
    said = f"{program}\nprint(os.environ['TF_CONFIG'])"
    made = subprocess.run([sys.executable, "-c", said], cwd=folder, env=env, check=True, capture_output=True)
    return json.loads(made.stdout)


def test_tensorflow_is_told_of_every_rank(tmp_path: Path) -> None:
    pods = [rank_pod(JOB, PLAN, rank) for rank in range(3)]
    names = [f"{pod['spec']['hostname']}.{pod['spec']['subdomain']}.{pod['metadata']['namespace']}.svc" for pod in pods]
    cluster = {"worker": [f"{name}:29500" for name in names]}
    for rank, pod in enumerate(pods):
        assert tf_config_of(pod, tmp_path) == {"cluster": cluster, "task": {"type": "worker", "index": rank}}
    single = rank_pod({**JOB, "spec": JOB["spec"] | {"replicas": 1}}, replace(PLAN, nodes=("n1",)), 0)
    assert tf_config_of(single, tmp_path)["cluster"] == {"worker": ["localhost:29500"]}


def test_every_variable_that_the_guide_names_for_a_framework_is_set() -> None:
    """Those of each line of the table; `LOCAL_RANK` and what `mpirun` sets are the launchers'."""
    text = GUIDE.read_text(encoding="utf-8")
    (table,) = re.findall(r"\| framework \|.*?\n\n", text, re.DOTALL)
    named = set(re.findall(r"\b(?:PET_[A-Z_]+|MASTER_[A-Z]+|WORLD_SIZE|(?:NODE_)?RANK)\b", table))
    env = {entry["name"] for entry in rank_pod(JOB, PLAN, 1)["spec"]["containers"][0]["env"]}
    assert named >= {"MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK", "NODE_RANK", "PET_NNODES"}
    assert named <= env


def test_the_host_file_names_every_rank(tmp_path: Path) -> None:
    pods = [rank_pod(JOB, PLAN, rank) for rank in range(3)]
    names = [f"{pod['spec']['hostname']}.{pod['spec']['subdomain']}.{pod['metadata']['namespace']}.svc" for pod in pods]
    assert host_file_of(pods[2], tmp_path) == [f"{name} slots=8" for name in names]


@pytest.mark.parametrize(("spec", "slots"), [(JOB["spec"] | {"replicas": 1}, 8), (tried_spec(JOB["spec"]), 1)])
def test_the_host_file_of_a_single_rank_or_a_trial_names_its_own_host(spec: Any, slots: int, tmp_path: Path) -> None:
    pod = rank_pod({**JOB, "spec": spec}, replace(PLAN, nodes=("n1",)), 0)
    assert host_file_of(pod, tmp_path) == [f"localhost slots={slots}"]
