"""Undoes what a dead agent left on its node, by a pod there that only restores.

A throttle is in files of one node, so only a process on that node can undo it. The pod is made from the agents'
DaemonSet and writes the NodeProfile as the agent does, so the node's throttles are no longer stale. Which nodes have
stale throttles is decided in `coda.contention.throttles`.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Final

from coda.contention.throttles import ThrottleReport, nodes_with_stale_throttles
from coda.errors import CodaError
from coda_kube.api.client import AlreadyExists, Client, NotFound
from coda_kube.api.watch_cache import WatchCache
from coda_kube.objects.json_types import Json
from coda_kube.objects.names import SYSTEM_NAMESPACE
from coda_kube.objects.quantities import seconds_from_time

log = logging.getLogger(__name__)

AGENT: Final = "coda-agent"
AGENTS_PATH: Final = f"/apis/apps/v1/namespaces/{SYSTEM_NAMESPACE}/daemonsets/{AGENT}"
PODS_PATH: Final = f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/pods"
CHECK_EVERY_S: Final = 30.0
PODS_VOLUME: Final = "pods"  # of the chart: the folders of all pods of the node
VISIBLE: Final = "NVIDIA_VISIBLE_DEVICES"
"""Which GPUs NVIDIA's runtime puts into a container; with `void` it does nothing, also as the default runtime."""
ENDED: Final = ("Succeeded", "Failed")


class ThrottleRecovery:
    """Checks the NodeProfiles every `CHECK_EVERY_S`, and sends a restoring pod to each node with stale throttles."""

    def __init__(self, client: Client, profiles: WatchCache, *, clock: Callable[[], float] = time.time) -> None:
        """`profiles`: of the nodes; kept up to date while this runs."""
        self._client = client
        self._clock = clock
        self.profiles = profiles
        self._seen_by_node: dict[str, tuple[float, float]] = {}  # the last report by the agent's clock, and by ours

    async def run(self) -> None:
        """Run until cancelled. Costs no request while no throttles are stale."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.profiles.run())
            tasks.create_task(self._recover_regularly())

    async def _recover_regularly(self) -> None:
        """Wait first: after an outage all agents have been silent, and need time to report."""
        await self.profiles.synced.wait()
        while True:
            await self.profiles.in_touch.wait()
            await asyncio.sleep(CHECK_EVERY_S)
            if self.profiles.in_touch.is_set():
                await self.recover()

    async def recover(self) -> None:
        """Check once. A failure is logged and tried again next time."""
        found = [_report_from_json(item) for item in self.profiles.by_key.values()]
        nodes = [self._by_our_clock(report) for report in found if report is not None]
        self._seen_by_node = {node.node: self._seen_by_node[node.node] for node in nodes}
        for node in nodes_with_stale_throttles(nodes, self._clock()):
            try:
                await self._undo(node)
            except CodaError as error:
                log.warning("the throttles on node %s, whose agent is dead, are not undone yet: %s", node, error)

    def _by_our_clock(self, report: ThrottleReport) -> ThrottleReport:
        """Return the report with the time at which we first saw it: the agent's clock may differ."""
        seen = self._seen_by_node.get(report.node)
        if seen is None or seen[0] != report.renewed_s:
            seen = self._seen_by_node[report.node] = report.renewed_s, self._clock()
        return replace(report, renewed_s=seen[1])

    async def _undo(self, node: str) -> None:
        """Have one restoring pod on the node; one that ended and did not help is replaced at the next check."""
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
    """Return the pod that undoes what the agent left on `node`, made from the agents' DaemonSet, which owns it.

    It needs no GPU, so it starts where the GPU runtime is broken, and on nodes that the agents' pods have left. It
    reads no job's progress, so it sees no volume of other pods."""
    template = copy.deepcopy(agents["spec"]["template"])
    spec = template["spec"]
    for field in ("nodeSelector", "affinity", "runtimeClassName"):
        spec.pop(field, None)
    container = spec["containers"][0]
    environ = [entry for entry in container.get("env") or () if entry["name"] != VISIBLE]
    container["env"] = [*environ, {"name": VISIBLE, "value": "void"}]
    container["args"] = [*(container.get("args") or []), "--restore"]
    for probe in ("readinessProbe", "livenessProbe", "startupProbe"):
        container.pop(probe, None)
    container.pop("ports", None)
    container["volumeMounts"] = [mount for mount in container.get("volumeMounts") or () if mount["name"] != PODS_VOLUME]
    spec["volumes"] = [volume for volume in spec.get("volumes") or () if volume["name"] != PODS_VOLUME]
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


def _report_from_json(item: Json) -> ThrottleReport | None:
    """Return what a NodeProfile says of throttles; None if it cannot be read, so that one does not stop the others."""
    name, status = item["metadata"]["name"], item.get("status") or {}
    try:
        renewed_s = seconds_from_time(status["time"]) if status.get("time") else 0.0
        return ThrottleReport(node=name, throttles=int(status.get("throttleCount") or 0), renewed_s=renewed_s)
    except (CodaError, TypeError, ValueError) as error:
        log.warning("NodeProfile %s cannot be read: %s", name, error)
        return None
