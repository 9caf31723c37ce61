"""Runs kopf as the feeder of jobs, from when the API server knows TrainingJobs until cancelled. Handles no job."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import kopf

from coda.errors import CodaError, Outage
from coda_kube.client import Client
from coda_kube.naming import API_VERSION, GROUP
from coda_operator.cluster import Cluster
from coda_operator.handlers import registry_for

log = logging.getLogger(__name__)

LOOK_EVERY_S = 2.0


async def feed(cluster: Cluster, client: Client, listen_to_signals: Callable[[], None]) -> None:
    """Feed `cluster` with jobs until cancelled. Raises Outage when kopf gives up.

    kopf takes the signals of the process for itself; `listen_to_signals` takes them back."""
    await _served(client)
    others = asyncio.all_tasks()
    try:
        tasks = await kopf.spawn_tasks(registry=registry_for(cluster, client), clusterwide=True, standalone=True)
        listen_to_signals()
        await kopf.run_tasks(tasks, ignored=others)
    except Exception as error:  # kopf dies of anything it does not know; a fresh process starts anew
        raise Outage(f"kopf gave up: {error or type(error).__name__}") from error
    raise Outage("kopf ended")


async def _served(client: Client) -> None:
    """Wait until TrainingJobs are served: kopf looks once, and without them it would idle for ever."""
    said = ""
    while (why := await _why_not_served(client)) is not None:
        if why != said:
            log.warning("TrainingJobs are not served: %s; waiting", why)
        said = why
        await asyncio.sleep(LOOK_EVERY_S)


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
