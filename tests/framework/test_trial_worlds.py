"""A script of DistributedDataParallel runs unmodified in the world of one that a trial gives it, and in its gang's."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from coda.lifecycle import Progress
from coda.model import Placement, PlacementState
from coda.model.trial_run import TrialRun
from coda_kube.objects.json_types import Json
from coda_lab.emulators.cuda import GpuFile, TorchRig
from coda_lab.host.ports import free_ports
from coda_operator.reconcile.pod_spec import rank_pod
from coda_operator.trials.trial_pods import job_for
from tests.framework.shared_node import SCRIPTS
from tests.framework.torch_race import once_more_after_the_race
from tests.lengths import LONG

SCRIPT = str(SCRIPTS / "data_parallel.py")
PYTHON = [sys.executable, SCRIPT]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", SCRIPT]


def job_json(command: Sequence[str], *, replicas: int, gpus: int) -> Json:
    """A gang whose ranks meet at a port of their own: other tests may use torchrun's."""
    ports = free_ports(2, random.Random())
    names = ("MASTER_PORT", "PET_MASTER_PORT")
    env = [{"name": name, "value": str(port)} for name, port in zip(names, ports, strict=True)]
    container = {"name": "main", "image": "torch", "command": list(command), "env": env}
    return {
        "apiVersion": "coda.scheduler/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": "ddp", "namespace": "nlp", "uid": "u1", "generation": 1},
        "spec": {
            "replicas": replicas,
            "gpusPerReplica": gpus,
            "cpusPerReplica": 4 * gpus,
            "trial": {},
            "template": {"spec": {"containers": [container]}},
        },
    }


def pods_of(job: Json, attempt: int) -> list[Json]:
    """The pods that the operator makes of this attempt. The first one is the trial."""
    now = job_for(job, Progress(attempt=attempt, trial=TrialRun(attempt=1)), {})
    placement = Placement(
        attempt=attempt,
        plan_id="p",
        epoch=1,
        generation=1,
        state=PlacementState.RELEASED,
        nodes=("n1",) * now["spec"]["replicas"],
        cpus_per_replica=4,
        committed_s=0.0,
        bind_deadline_s=60.0,
    )
    return [rank_pod(now, placement, rank) for rank in range(now["spec"]["replicas"])]


def trained(pods: Sequence[Json], rig: TorchRig, gpus: GpuFile) -> Json:
    """Run the pods beside each other, all on this machine. What rank 0 printed; every one ends well."""
    processes = []
    for pod in pods:
        (main,) = pod["spec"]["containers"]
        variables = {each["name"]: each["value"] for each in main["env"]}
        here = dict.fromkeys(("MASTER_ADDR", "PET_MASTER_ADDR"), "127.0.0.1")  # what the gang's Service resolves
        environ = rig.environment(gpus, os.environ) | variables | here
        processes.append(
            subprocess.Popen(main["command"], env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        )
    try:
        ended = [process.communicate(timeout=180) for process in processes]
    finally:
        for process in processes:
            process.kill()
    for process, (_, errors) in zip(processes, ended, strict=True):
        assert process.returncode == 0, errors
    said: Json = json.loads("".join(output for output, _ in ended).splitlines()[-1])
    return said


LIKE_THE_FIRST = pytest.mark.skipif(not LONG, reason="ten processes more import torch: make verify")


@pytest.mark.parametrize(
    ("command", "replicas", "gpus"),
    [
        pytest.param(TORCHRUN, 1, 4, id="one pod of four processes"),
        pytest.param(TORCHRUN, 2, 2, id="two pods of two", marks=LIKE_THE_FIRST),
        pytest.param(PYTHON, 4, 1, id="four pods of one process", marks=LIKE_THE_FIRST),
    ],
)
@once_more_after_the_race
def test_a_trial_and_its_gang_run_the_same_script(
    torch_rig: TorchRig, tmp_path: Path, command: list[str], replicas: int, gpus: int
) -> None:
    node = GpuFile(path=tmp_path / "gpu", gpus=4)
    job = job_json(command, replicas=replicas, gpus=gpus)
    trial, gang = pods_of(job, 1), pods_of(job, 2)
    assert (len(trial), len(gang)) == (1, replicas)

    alone = trained(trial, torch_rig, node)
    assert (alone["ranks"], alone["rows"]) == (1, 256)
    assert alone["losses"][-1] < 0.1 * alone["losses"][0]

    together = trained(gang, torch_rig, node)
    assert (together["ranks"], together["rows"]) == (4, 64)
    assert together["losses"][-1] < together["losses"][0]
