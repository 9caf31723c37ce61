"""GPUs that fail on emulated machines of a local cluster: from the driver's event to the cordon, and to its end."""

from __future__ import annotations

import pytest

from coda_kube.api.client import MERGE, Client
from coda_kube.objects.json_types import Json
from coda_kube.objects.write import job_path
from coda_lab.local.cluster import LocalCluster
from coda_lab.spec import ClusterSpec
from coda_operator.cordon_writer import CHECK_EVERY_S
from tests.e2e.agents import wait_until
from tests.e2e.jobs import PATIENCE_S, job_json, submit, wait_for, wait_for_phase

pytestmark = pytest.mark.e2e

CORDON_S = 40  # longer than the failure takes on a full machine
OPERATORS = ("operator-0", "operator-1")
QUICK = {"CODA_FAILURE_BACKOFF_S": "0.2", "CODA_CORDON_S": str(CORDON_S)}
SPEC = ClusterSpec(
    nodes="3x8x32", racks=1, extenders=1, agents=3, operators=2, environ_by_part=dict.fromkeys(OPERATORS, QUICK)
)
PROFILES = "/apis/coda.scheduler/v1alpha1/nodeprofiles"


async def events_of(admin: Client, node: str) -> list[str]:
    found = (await admin.list_pages("/api/v1/namespaces/default/events"))["items"]
    own = [one for one in found if one.get("action") == "Cordon" and one["involvedObject"]["name"] == node]
    return [one["reason"] for one in sorted(own, key=lambda one: str(one["eventTime"]))]


def told_with_its_pod(profile: Json) -> bool:
    return any(one["podUIDs"] for one in profile["status"].get("xids") or ())


def hears_the_driver(profile: Json) -> bool:
    return (profile.get("status") or {}).get("watchesXids") is True  # a new profile has no status yet


async def test_a_gpu_that_falls_off_the_bus_cordons_its_node_until_a_run_there_succeeds(
    cluster: LocalCluster, user: Client, admin: Client
) -> None:
    # 1. Every agent hears its driver.
    for number in range(3):
        await wait_for(admin, f"{PROFILES}/node-{number:04}", hears_the_driver)

    # 2. A GPU fails beneath a job: its agent says so, and no log does.
    first = {"exit-code.attempt-1": "1", "run-seconds.attempt-1": "15"}
    job = await submit(user, job_json("meets", run_s=2.0, simulated=first))
    placed = await wait_for_phase(user, job, "Running")
    node = placed["status"]["placement"]["nodes"][0]
    pod = "/api/v1/namespaces/default/pods/meets-1-0"
    await admin.patch(pod, {"metadata": {"annotations": {"load.coda.scheduler/xid": "79"}}}, MERGE)
    await wait_for(admin, f"{PROFILES}/{node}", told_with_its_pod)
    status = (await wait_for_phase(user, job, "Succeeded"))["status"]
    failure = status["failure"]
    assert (failure["reason"], failure["xid"], failure["node"]) == ("CUDA failure", 79, node)
    assert (status["failures"], status["attempt"]) == (0, 2)
    assert status["placement"]["nodes"] != [node]
    (entry,) = (await admin.get(f"{PROFILES}/{node}"))["status"]["xids"]
    assert (entry["xid"], len(entry["podUIDs"])) == (79, 1)

    # 3. Nobody else meets it: what must run there waits, and says for which node.
    only_there: Json = {"kubernetes.io/hostname": node}
    tries = job_json("tries", run_s=2 * CHECK_EVERY_S)  # so that a check comes before its end
    tries["spec"]["template"]["spec"]["nodeSelector"] = only_there

    async def is_told(reason: str) -> bool:
        return reason in await events_of(admin, node)

    await wait_until(lambda: is_told("SuspectGPU"))
    waits = await submit(user, tries)
    await wait_for(
        user,
        job_path(waits),
        lambda item: [one["name"] for one in (item.get("status") or {}).get("avoidNodes") or ()] == [node],
    )

    # 4. Its hour is over: what waited runs there, and ends the probation.
    await wait_for_phase(user, waits, "Succeeded", within_s=CORDON_S + PATIENCE_S)
    await wait_until(lambda: is_told("Trusted"), within_s=PATIENCE_S)
    assert await events_of(admin, node) == ["SuspectGPU", "OnProbation", "Trusted"]
