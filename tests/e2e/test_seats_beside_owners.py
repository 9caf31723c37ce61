"""An opportunistic job beside a guaranteed one, by what the real agent of an emulated machine tells of its GPUs."""

from __future__ import annotations

import pytest

from coda_kube.api.client import Client
from coda_kube.objects.write import job_path
from coda_lab.local.cluster import LocalCluster
from coda_lab.spec import ClusterSpec
from tests.e2e.agents import loads, speaking
from tests.e2e.jobs import job_json, pods_of, submit, wait_for, wait_for_pending, wait_for_phase
from tests.e2e.test_seats import SHARED, asks, opportunistic

pytestmark = pytest.mark.e2e

SPEC = ClusterSpec(
    nodes="1x2x16",
    racks=1,
    seats=4,
    agents=1,
    extenders=1,
    environ_by_part={"extender-0": SHARED},
)
PROFILE = "/apis/coda.scheduler/v1alpha1/nodeprofiles/node-0000"
TOLD_WITHIN_S = 400.0  # a minute alone on its GPU, and up to a minute until the next profile


async def test_it_joins_the_gpu_of_the_job_that_leaves_it_idle(admin: Client, cluster: LocalCluster) -> None:
    """Of two guaranteed jobs one is busy. The GPU of the other one has its owner's pod, and seats for others, once the
    agent hears how fast it is."""
    names = {"busy": 0.9, "idle": 0.3}
    for name, utilization in names.items():
        job = job_json(name, run_s=None, spec={"cpusPerReplica": 2, "reportProgress": False})
        job["spec"]["template"]["metadata"]["annotations"] |= loads(
            cores_needed=1, noise=0.002, best_utilization=utilization, gb_per_second=1
        )
        running = await wait_for_phase(admin, await submit(admin, job), "Running")
        assert running["status"]["sharing"] == {"class": "Guaranteed"}
        (pod,) = await pods_of(admin, f"default/{name}")
        limits = pod["spec"]["containers"][0]["resources"]["limits"]
        assert (limits["nvidia.com/gpu"], limits["coda.scheduler/sharing"]) == ("1", "1")
    guest = await submit(admin, opportunistic("guest", run_s=5.0))
    await wait_for_pending(admin, guest, "GPUsNotKnown")
    await wait_for_pending(admin, guest, "GPUsTooBusy", within_s=TOLD_WITHIN_S)
    (owner,) = await pods_of(admin, "default/idle")
    with speaking(cluster.layout.machines / "node-0000", owner["metadata"]["uid"]):
        placed = await wait_for(
            admin, job_path(guest), lambda item: bool(item["status"].get("placement")), within_s=TOLD_WITHIN_S
        )
    assert placed["status"]["sharing"] == {
        "class": "Opportunistic",
        "expectedSpeed": pytest.approx(0.28),  # 0.4 of the 70 % that are left
        "beside": ["default/idle"],
    }
    (gpu,) = placed["status"]["placement"]["gpus"]
    told = {one["index"]: one for one in (await admin.get(PROFILE))["status"]["gpus"]}
    assert told[gpu]["podUIDs"] == [owner["metadata"]["uid"]]
    assert told[gpu]["utilization"] == pytest.approx(0.3)
    await wait_for_phase(admin, guest, "Running")
    (pod,) = await pods_of(admin, guest)
    assert asks(pod) == {f"coda.scheduler/gpu-{gpu}": "1"}
    await wait_for_phase(admin, guest, "Succeeded")
