"""Jobs that say how far they are, through the whole of Coda: pod, file, agent, status, and the end of those that
converged."""

from __future__ import annotations

from typing import Any

import pytest

from coda_kube.api.client import Client
from coda_kube.objects.json_types import Json
from coda_kube.objects.write import job_path
from coda_lab.local.cluster import LocalCluster
from coda_lab.spec import ClusterSpec
from tests.e2e.jobs import job_json, pods_of, submit, wait_for, wait_for_phase

pytestmark = pytest.mark.e2e

SPEC = ClusterSpec(nodes="1x8x48", racks=1, extenders=1, agents=1)


def speaking(name: str, *, spec: dict[str, Any] | None = None, **numbers: float) -> Json:
    """A job of one rank that runs until it is stopped."""
    job = job_json(name, replicas=1, gpus=1, run_s=None, spec={"cpusPerReplica": 4, **(spec or {})})
    said = {f"progress.coda.scheduler/{key.replace('_', '-')}": str(number) for key, number in numbers.items()}
    job["spec"]["template"]["metadata"]["annotations"] |= said
    return job


async def test_a_job_shows_its_progress_and_ends_once_it_has_converged(
    cluster: LocalCluster, user: Client, admin: Client
) -> None:
    stop = {"noImprovementEpochs": 2, "action": "Stop"}
    learns = await submit(
        user, speaking("learns", spec={"cpusPerReplica": "auto"}, total_steps=1_000_000, step_seconds=0.01)
    )
    silent = await submit(user, speaking("silent", spec={"reportProgress": False}, step_seconds=0.01))
    stands = speaking("stands", spec={"stopWhen": stop}, step_seconds=0.01, steps_per_epoch=400, best_epoch=1)
    ends = await submit(user, stands)

    def has_both(item: Json) -> bool:
        """Progress and tuning, which the same agent writes: neither takes the other away."""
        status = item.get("status") or {}
        return "estimatedEnd" in (status.get("progress") or {}) and "tuning" in status

    status = (await wait_for(user, job_path(learns), has_both, within_s=60))["status"]
    progress = status["progress"]
    assert progress["step"] > 0
    assert progress["totalSteps"] == 1_000_000
    assert progress["estimatedEnd"] > progress["time"]
    assert status["phase"] == "Running"

    done = (await wait_for_phase(user, ends, "Succeeded", within_s=60))["status"]
    assert done["reason"] == "Converged"
    assert done["message"].startswith("the loss has not improved by 0.1 % for 2 epochs, since 0.5 in epoch 1")
    assert done["failures"] == 0

    await wait_for_phase(user, silent, "Running")
    (pod,) = await pods_of(user, silent)
    assert "coda-job" not in {volume["name"] for volume in pod["spec"].get("volumes") or ()}
    assert "progress" not in (await user.get(job_path(silent)))["status"]
