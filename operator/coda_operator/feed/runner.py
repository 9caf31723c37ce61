"""Runs kopf, which feeds jobs, while the API server knows TrainingJobs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import NoReturn

from coda.errors import CodaError
from coda_kube.api.client import Client
from coda_kube.objects.names import API_VERSION, GROUP
from coda_operator.feed.handlers import registry_for
from coda_operator.feed.lean_kopf import EphemeralMemories, kopf
from coda_operator.feed.session import Connections
from coda_operator.view import ClusterView

log = logging.getLogger(__name__)

CHECK_EVERY_S = 2.0
RESTART_DELAY_S = 1.0  # after kopf gave up


async def feed(cluster: ClusterView, client: Client, listen_to_signals: Callable[[], None]) -> NoReturn:
    """Feed `cluster` with jobs until cancelled. kopf ends on errors it does not know; then it is started again.

    It is also started again when the API server's data come from a backup: kopf would wait for versions to come.
    kopf handles the signals of the process itself; `listen_to_signals` makes them ours again."""
    while True:
        await _served(client)
        try:
            await _run_kopf(cluster, client, listen_to_signals)
        except Exception as error:
            log.warning("kopf gave up: %s; starting it again", error or type(error).__name__)
        await asyncio.sleep(RESTART_DELAY_S)


async def _run_kopf(cluster: ClusterView, client: Client, listen_to_signals: Callable[[], None]) -> None:
    """Run kopf until it ends or is cancelled, and wait for all of its tasks.

    `kopf.run` is not used: at its end it cancels every task that is younger than itself, ours too."""
    connections = Connections(client)
    tasks = await kopf.spawn_tasks(
        registry=registry_for(cluster, connections), memories=EphemeralMemories(), clusterwide=True, standalone=True
    )
    listen_to_signals()
    restored = asyncio.create_task(cluster.restored.wait(), name="restored")
    try:
        ended, _ = await asyncio.wait({*tasks, restored}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (*tasks, restored):
            task.cancel()
        await asyncio.wait({*tasks, restored})
        await connections.close()
    if cluster.restored.is_set():
        cluster.restored.clear()
        cluster.forget_jobs()
        return
    for task in ended:
        task.result()


async def _served(client: Client) -> None:
    """Wait until TrainingJobs are served: kopf looks only once, and without them it does nothing."""
    logged = ""
    while (why := await _why_not_served(client)) is not None:
        if why != logged:
            log.warning("TrainingJobs are not served: %s; waiting", why)
        logged = why
        await asyncio.sleep(CHECK_EVERY_S)


async def _why_not_served(client: Client) -> str | None:
    try:
        groups = await client.get("/apis")
        if GROUP in (group["name"] for group in groups["groups"]):
            kinds = await client.get(f"/apis/{API_VERSION}")
            if "trainingjobs" in (kind["name"] for kind in kinds["resources"]):
                return None
    except CodaError as error:
        return str(error)
    return "apply crds/trainingjobs.yaml"
