"""Undoes what a dead agent left on its node: a pod there, made from the agent's own DaemonSet, that only restores.

A throttle is files of one node, so only a process on that node can undo it. The pod writes the NodeProfile as the agent
would, so the node is tended again. What must not live here: which nodes (`coda.contention.untended`).
"""

from __future__ import annotations

import asyncio
import copy
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from coda.contention.throttles import ThrottleReport, nodes_with_stale_throttles
from coda.errors import CodaError
from coda_kube.api.client import AlreadyExists, Client, NotFound
from coda_kube.api.watch_cache import WatchCache
from coda_kube.objects.json_types import Json
from coda_kube.objects.names import GROUP, SYSTEM_NAMESPACE, VERSION
from coda_kube.objects.quantities import seconds_from_time

log = logging.getLogger(__name__)

AGENT: Final = "coda-agent"
PROFILES_PATH: Final = f"/apis/{GROUP}/{VERSION}/nodeprofiles"
AGENTS_PATH: Final = f"/apis/apps/v1/namespaces/{SYSTEM_NAMESPACE}/daemonsets/{AGENT}"
PODS_PATH: Final = f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/pods"
LOOK_EVERY_S: Final = 30.0
ENDED: Final = ("Succeeded", "Failed")


class ThrottleRecovery:
    """Looks at the NodeProfiles now and then, and sends a restoring pod to each node that nobody tends."""

    def __init__(self, client: Client, *, clock: Callable[[], float] = time.time) -> None:
        self._client = client
        self._clock = clock
        self.profiles = WatchCache(client, PROFILES_PATH)

    async def run(self) -> None:
        """Until cancelled. Costs no request while every node is tended."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.profiles.run())
            tasks.create_task(self._look_now_and_then())

    async def _look_now_and_then(self) -> None:
        """Not before the agents had time to speak: after an outage all of them have been silent."""
        await self.profiles.synced.wait()
        while True:
            await self.profiles.in_touch.wait()
            await asyncio.sleep(LOOK_EVERY_S)
            if self.profiles.in_touch.is_set():
                await self.look()

    async def look(self) -> None:
        """Once. What fails is said, and tried again next time."""
        nodes = [found for item in self.profiles.by_key.values() if (found := _tended(item)) is not None]
        for node in nodes_with_stale_throttles(nodes, self._clock()):
            try:
                await self._undo(node)
            except CodaError as error:
                log.warning("the throttles on node %s, whose agent is dead, are not undone yet: %s", node, error)

    async def _undo(self, node: str) -> None:
        """Have one restoring pod on the node; one that has ended, with the profile as it was, did not help: again."""
        path = f"{PODS_PATH}/{_name(node)}"
        with suppress(NotFound):
            pod = await self._client.get(path)
            if (pod.get("status") or {}).get("phase") in ENDED:
                await self._client.delete(path, uid=pod["metadata"]["uid"])
            return
        agents = await self._client.get(AGENTS_PATH)
        with suppress(AlreadyExists):
            await self._client.create(PODS_PATH, restoring_pod(agents, node))
            log.info("node %s has throttles and no living agent: a pod there puts them back", node)


def restoring_pod(agents: Json, node: str) -> Json:
    """The pod that undoes what the agent left on `node`, from the agents' DaemonSet, which owns it."""
    template = copy.deepcopy(agents["spec"]["template"])
    spec = template["spec"]
    container = spec["containers"][0]
    container["args"] = [*(container.get("args") or []), "--restore"]
    for probe in ("readinessProbe", "livenessProbe", "startupProbe"):
        container.pop(probe, None)
    container.pop("ports", None)
    owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": AGENT, "uid": agents["metadata"]["uid"]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": _name(node),
            "namespace": SYSTEM_NAMESPACE,
            "labels": {"app.kubernetes.io/name": "coda", "app.kubernetes.io/component": "restore"},
            "ownerReferences": [owner],
        },
        "spec": {**spec, "nodeName": node, "restartPolicy": "Never"},
    }


def _name(node: str) -> str:
    return f"coda-restore-{node}"[:253]


def _tended(item: Json) -> ThrottleReport | None:
    """None for a profile that cannot be read: one of them must not stop the others."""
    name, status = item["metadata"]["name"], item.get("status") or {}
    try:
        renewed_s = seconds_from_time(status["time"]) if status.get("time") else 0.0
        return ThrottleReport(node=name, throttles=int(status.get("throttleCount") or 0), renewed_s=renewed_s)
    except (CodaError, TypeError, ValueError) as error:
        log.warning("NodeProfile %s cannot be read: %s", name, error)
        return None
