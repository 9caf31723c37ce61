"""A real Prometheus scrapes the running parts: every expression of dashboards and alerts finds what it asks for."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Final

import pytest

from coda_kube.api.client import Client
from coda_lab.local.cluster import LocalCluster
from coda_lab.spec import ClusterSpec
from deploy.dashboards.__main__ import BOARDS
from tests.e2e.agents import training, wait_until
from tests.e2e.jobs import job_json, submit, wait_for_pending, wait_for_phase
from tests.monitoring.expressions import alerts, metrics_in, plain
from tests.monitoring.prometheus import Prometheus, parts, prometheus_beside

pytestmark = pytest.mark.e2e

log = logging.getLogger(__name__)

SPEC = ClusterSpec(nodes="4x8x32", racks=1, extenders=2, agents=2, agent_window_s=5.0)
VIRTUAL_CLUSTERS = "/apis/coda.scheduler/v1alpha1/virtualclusters"

ACCIDENTS: Final[Mapping[str, str]] = {
    "coda_agent_actions_total": "no pod disturbs another",
    "coda_agent_observed_actions_total": "no pod disturbs another",
    "coda_agent_throttle_delay_seconds": "no pod disturbs another",
    "coda_extender_preempt_duration_seconds": "no pod is worth evicting another",
    "coda_extender_refused_requests_total": "only kube-scheduler calls",
    "coda_job_failed_attempts": "no attempt fails",
    "coda_operator_stops_total": "no job makes way for another",
    "coda_operator_trials_total": "no job has a trial",
    "coda_operator_trial_gpu_seconds_total": "no job has a trial",
    "coda_operator_trial_saved_gpu_seconds_total": "no trial fails",
    "coda_operator_resizes_total": "no search for cores has come so far",
    "coda_tuning_gpu_utilization_ratio": "no search for cores has come so far",
    "coda_planner_answered_wishes_total": "no search for cores has come so far",
    "coda_planner_dropped_plans_total": "every gang that is placed starts",
    "coda_planner_processes_lost_total": "no process is lost",
    "coda_planner_refused_writes_total": "nobody else writes",
    "coda_planner_takeover_duration_seconds": "the first leader leads on",
}
"""Metrics that may have no sample, or none but zeros, while nothing happens, and why. `make dashboard-pictures` makes
all of it happen, and fails if an expression finds nothing."""


@pytest.fixture
async def prometheus(cluster: LocalCluster, tmp_path: Path) -> AsyncIterator[Prometheus]:
    async with prometheus_beside(cluster, tmp_path) as found:
        yield found


async def test_every_expression_finds_what_it_asks_for(
    cluster: LocalCluster, user: Client, admin: Client, prometheus: Prometheus
) -> None:
    tenant = {"metadata": {"name": "lab"}, "spec": {"namespaces": ["default"], "quota": {"gpus": 4, "cpus": 8}}}
    kind = {"apiVersion": "coda.scheduler/v1alpha1", "kind": "VirtualCluster"}
    await admin.create(VIRTUAL_CLUSTERS, kind | tenant)
    try:
        await every_part_is_scraped(cluster, prometheus)
        await work(user, admin)
        await everything_is_shown(prometheus)
        await idle_gpus_belong_to_nobody(prometheus)
        await nothing_is_wrong(prometheus)
        await the_loss_of_the_planner_is_seen(cluster, prometheus)
    finally:
        await admin.delete(f"{VIRTUAL_CLUSTERS}/lab")


async def every_part_is_scraped(cluster: LocalCluster, prometheus: Prometheus) -> None:
    """Before anything happens: of what it sees at first, Prometheus takes nothing for an increase."""

    async def are_up() -> bool:
        found = (await prometheus.ask("query", query="up == 1"))["result"]
        return len(found) == len(parts(cluster))

    await wait_until(are_up)


async def work(user: Client, admin: Client) -> None:
    """Jobs that run under an agent, jobs that end, one that waits, and a pod of somebody else."""
    running = [await submit(user, training(f"runs-{node}", cores_needed=4, node=f"node-000{node}")) for node in (0, 1)]
    ending = [await submit(user, job_json(f"ends-{number}", gpus=2, replicas=2, run_s=1.0)) for number in range(3)]
    waiting = await submit(user, job_json("waits", gpus=8, replicas=4, run_s=None))
    container = {"name": "main", "image": "any:1", "resources": {"requests": {"cpu": "1"}}}
    spec = {"schedulerName": "coda", "terminationGracePeriodSeconds": 0, "containers": [container]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "foreign"}, "spec": spec}
    await admin.create("/api/v1/namespaces/default/pods", pod)
    for job in running:
        await wait_for_phase(user, job, "Running")
    for job in ending:
        await wait_for_phase(user, job, "Succeeded")
    await wait_for_pending(user, waiting, "InsufficientGPUs")


async def everything_is_shown(prometheus: Prometheus) -> None:
    """Until every expression of a dashboard has had samples, but for those that only an accident gives any."""
    left = dict.fromkeys(plain(expr) for board in BOARDS for expr in board.expressions)
    found: dict[str, int] = {}

    def missing() -> list[str]:
        return [expr for expr in left if not metrics_in(expr) & ACCIDENTS.keys()]

    async def all_found() -> bool:
        for expr in tuple(left):
            if count := await prometheus.samples(expr):
                found[expr] = count
                del left[expr]
        return not missing()

    try:
        await wait_until(all_found, within_s=150, otherwise=lambda: f"no sample of {missing()}")
    finally:
        lines = [f"{found.get(expr, 0):4}  {expr}" for expr in (*found, *left)]
        log.info("samples of each expression:\n%s", "\n".join(lines))


async def idle_gpus_belong_to_nobody(prometheus: Prometheus) -> None:
    """An empty label stays empty, instead of becoming that of the agent's own pod."""

    async def are_named() -> bool:
        """Once each agent has the kubelet's list of devices, and has been scraped since."""
        found = (await prometheus.ask("query", query="count by (pod) (coda_gpu_memory_used_bytes)"))["result"]
        return {one["metric"].get("pod", "") for one in found} == {"", "runs-0-1-0", "runs-1-1-0"}

    await wait_until(are_named)


async def nothing_is_wrong(prometheus: Prometheus) -> None:
    """Every rule can be evaluated, and none fires."""
    rules = await prometheus.rules()
    assert rules.keys() == {rule["alert"] for rule in alerts()}
    assert {name: rule["health"] for name, rule in rules.items()} == dict.fromkeys(rules, "ok")
    assert [name for name, rule in rules.items() if rule["state"] == "firing"] == []


async def the_loss_of_the_planner_is_seen(cluster: LocalCluster, prometheus: Prometheus) -> None:
    """It is about to fire: it waits two minutes for the next leader."""

    async def absent() -> bool:
        return bool((await prometheus.rules())["CodaPlannerAbsent"]["state"] == "pending")

    async def present() -> bool:
        return not await absent()

    extenders = [name for name in parts(cluster) if name.startswith("extender-")]
    await wait_until(present)
    for name in extenders:
        await cluster.kill(name)
    await wait_until(absent)
    for name in extenders:
        await cluster.start(name)
    await wait_until(present)
