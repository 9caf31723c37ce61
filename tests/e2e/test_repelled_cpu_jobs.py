"""CPU jobs that a running pod's anti-affinity repels, which kube-scheduler knows and the planner does not."""

from __future__ import annotations

import pytest

from coda_kube.api.client import Client
from coda_lab.spec import ClusterSpec
from tests.e2e.cpu_jobs import (
    DEPLOYMENTS,
    JOBS,
    PODS,
    all_pods,
    batch_job,
    deployment,
    event_messages,
    opt_in,
    pod_json,
)
from tests.e2e.jobs import wait_for
from tests.e2e.scheduling import QUICK_LEASE

pytestmark = pytest.mark.e2e

ARRAYS = {"CODA_SCHEDULING_POLICY": "coda", "CODA_ARRAY_LARGE_SHARE": "0.5"} | QUICK_LEASE
SPEC = ClusterSpec(nodes="2x8x48", racks=1, environ_by_part=dict.fromkeys(("extender-0", "extender-1"), ARRAYS))


async def test_the_next_pod_of_the_owner_runs_on_another_node(admin: Client) -> None:
    """The pod that repels makes its node the fuller one, so that the planner would choose it again and again."""
    await opt_in(admin)
    node = sorted(item["metadata"]["name"] for item in (await admin.list_pages("/api/v1/nodes"))["items"])[0]
    selector = {"matchExpressions": [{"key": "team", "operator": "In", "values": ["noisy"]}]}
    term = {"labelSelector": selector, "topologyKey": "kubernetes.io/hostname"}
    rule = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    quiet = pod_json("quiet", cpu="4", nodeName=node, affinity=rule, tolerations=[{"operator": "Exists"}])
    quiet["metadata"]["labels"] = {"coda.scheduler/opt-in": "false"}
    await admin.create(PODS, quiet)
    await wait_for(admin, f"{PODS}/quiet", lambda pod: pod["status"].get("phase") == "Running")
    await admin.create(DEPLOYMENTS, deployment("web", pods=1, cpu="1", labels={"team": "noisy"}))
    for name, policy in (("work", "Never"), ("counts", "OnFailure")):
        job = batch_job(name, pods=1, cpu="1", run_s=1)
        job["spec"]["template"]["metadata"]["labels"] = {"team": "noisy"}
        job["spec"]["template"]["spec"]["restartPolicy"] = policy
        await admin.create(JOBS, job)
    await wait_for(admin, f"{DEPLOYMENTS}/web", lambda one: one["status"].get("readyReplicas") == 1, within_s=90)
    for name in ("work", "counts"):
        await wait_for(admin, f"{JOBS}/{name}", lambda one: one["status"].get("succeeded") == 1, within_s=90)
    ran = [pod for pod in await all_pods(admin) if pod["metadata"]["name"] != "quiet" and pod["spec"].get("nodeName")]
    assert ran
    assert node not in {pod["spec"]["nodeName"] for pod in ran}
    failed = [(await admin.get(f"{JOBS}/{name}"))["status"].get("failed", 0) for name in ("work", "counts")]
    assert failed == [0, 1]  # one that has no rule for evicted pods counts each pod that is deleted, if never bound
    said = await event_messages(admin, "PlaceLost")
    assert any("anti-affinity" in message for message in said)
