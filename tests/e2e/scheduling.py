"""The control plane's parts: which one leads, and how often kube-scheduler tried."""

from __future__ import annotations

import asyncio

import aiohttp
import yaml
from prometheus_client.parser import text_string_to_metric_families

from coda_kube.api.client import Client
from coda_lab.local.cluster import LocalCluster

QUICK_LEASE = {"CODA_LEASE_DURATION_S": "3", "CODA_LEASE_RENEW_DEADLINE_S": "2", "CODA_LEASE_RETRY_S": "0.3"}
"""For tests in which the next leader takes over, and how soon is no question."""
LEADER_S = 30.0  # until somebody leads


async def leader_of(admin: Client) -> str:
    """The extender replica that leads: its pod has the leader label. On a busy machine nobody may for some seconds."""
    selector = "app.kubernetes.io/component=extender,coda.scheduler/leader=true"
    async with asyncio.timeout(LEADER_S):
        while True:
            listing = await admin.list_pages("/api/v1/namespaces/coda-system/pods", {"labelSelector": selector})
            names = [str(pod["metadata"]["name"]).removeprefix("coda-") for pod in listing["items"]]
            if len(names) == 1:
                return names[0]
            await asyncio.sleep(0.2)


async def schedule_attempts(cluster: LocalCluster) -> float:
    """The number of kube-scheduler's scheduling attempts."""
    port = cluster.ports["kube-scheduler"]
    token = yaml.safe_load(cluster.kubeconfig("admin").read_text())["users"][0]["user"]["token"]
    async with (
        aiohttp.ClientSession(headers={"Authorization": f"Bearer {token}"}) as session,
        session.get(f"https://127.0.0.1:{port}/metrics", ssl=False) as response,
    ):
        text = await response.text()
    return sum(
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "scheduler_schedule_attempts_total"
    )
