"""The host file of the user guide names every rank as Kubernetes does."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

from coda.model import Placement, PlacementState
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


def test_the_host_file_names_every_rank(tmp_path: Path) -> None:
    pods = [rank_pod(JOB, PLAN, rank) for rank in range(3)]
    names = [f"{pod['spec']['hostname']}.{pod['spec']['subdomain']}.{pod['metadata']['namespace']}.svc" for pod in pods]
    (script,) = re.findall(r"```sh\n(for rank in .*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    env = {entry["name"]: entry["value"] for entry in pods[2]["spec"]["containers"][0]["env"]}
    subprocess.run(["sh", "-euc", script], cwd=tmp_path, env={"PATH": "/usr/bin:/bin"} | env, check=True)
    assert (tmp_path / "hostfile").read_text().splitlines() == [f"{name} slots=8" for name in names]
