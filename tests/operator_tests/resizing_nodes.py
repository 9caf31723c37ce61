"""Kubelets that resize running pods, and a planner that grants: what the operator's half of the tuning chain meets."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from coda_kube.objects.json_types import Json
from coda_kube.objects.names import LABEL_RANK
from coda_kube.objects.quantities import time_from_seconds
from tests.operator_tests.fake_cluster import PODS, FakeCluster, clock

TAKES_S = 1.0  # from a change to the kubelet's answer

Answer = Callable[[Json, int], None]
"""Changes the pod as its kubelet would, now that rank wants other cores."""


def wanted(pod: Json) -> str:
    return str(pod["spec"]["containers"][0]["resources"]["requests"]["cpu"])


def _say(pod: Json, *conditions: Json) -> None:
    generation = pod["metadata"].get("generation", 1)
    pod["status"]["observedGeneration"] = generation
    pod["status"]["conditions"] = [each | {"status": "True", "observedGeneration": generation} for each in conditions]


def applies(pod: Json, rank: int) -> None:
    main = pod["status"]["containerStatuses"][0]
    main["allocatedResources"] = {"cpu": wanted(pod)}
    main["resources"] = {"requests": {"cpu": wanted(pod)}, "limits": {"cpu": wanted(pod)}}
    _say(pod)


def defers(pod: Json, rank: int) -> None:
    """What is wanted; but going back to what it has is no growth."""
    if wanted(pod) == pod["status"]["containerStatuses"][0]["allocatedResources"]["cpu"]:
        _say(pod)
    else:
        _say(
            pod, {"type": "PodResizePending", "reason": "Deferred", "message": "Node didn't have enough resource: cpu"}
        )


def never(pod: Json, rank: int) -> None:
    defers(pod, rank)
    for condition in pod["status"]["conditions"]:
        condition |= {"reason": "Infeasible", "message": 'alongside CPU Manager policy "static"'}


def except_rank(number: int, answer: Answer) -> Answer:
    """All others apply it."""
    return lambda pod, rank: answer(pod, rank) if rank == number else applies(pod, rank)


@dataclass(slots=True, kw_only=True)
class ResizingNodes:
    """`answer` may be changed on the way. `applied`: rank and cores of all that was ever applied, in order."""

    api: FakeCluster
    answer: Answer = applies
    applied: list[tuple[int, str]] = field(default_factory=list)
    _begun: set[tuple[str, int]] = field(default_factory=set)

    async def run(self) -> None:
        """React to every change, until cancelled."""
        while True:
            seen = self.api.version
            for pod in self.api.all("pods"):
                self._look(pod)
            if self.api.version == seen:
                await self.api.until(lambda seen=seen: self.api.version > seen, timeout_s=1e9)  # type: ignore[misc]

    def look_again(self) -> None:
        """Try again what was put off, as kubelets do from time to time."""
        self._begun.clear()
        for pod in self.api.all("pods"):
            self._look(pod)

    def _look(self, pod: Json) -> None:
        statuses = pod["status"].get("containerStatuses") or [{}]
        if "running" not in statuses[0].get("state", {}):
            return
        path, generation = f"{PODS}/{pod['metadata']['name']}", pod["metadata"].get("generation", 1)
        if "resources" not in statuses[0]:
            self.api.change(path, lambda item: applies(item, 0))
            return
        change = (pod["metadata"]["uid"], generation)
        is_open = pod["status"].get("observedGeneration") != generation or pod["status"]["conditions"]
        if is_open and change not in self._begun:
            self._begun.add(change)
            asyncio.get_running_loop().call_later(TAKES_S, self._react, path, pod["metadata"]["uid"])

    def _react(self, path: str, uid: str) -> None:
        if not self.api.exists(path) or self.api.item(path)["metadata"]["uid"] != uid:
            return
        rank = int(self.api.item(path)["metadata"]["labels"][LABEL_RANK])
        before = self.api.item(path)["status"]["containerStatuses"][0]
        after = self.api.change(path, lambda pod: self.answer(pod, rank))["status"]["containerStatuses"][0]
        if before.get("resources") != after.get("resources"):
            self.applied.append((rank, after["resources"]["limits"]["cpu"]))


@asynccontextmanager
async def resizing_nodes(api: FakeCluster, answer: Answer = applies) -> AsyncIterator[ResizingNodes]:
    """Kubelets at work until the block ends."""
    nodes = ResizingNodes(api=api, answer=answer)
    running = asyncio.create_task(nodes.run())
    try:
        yield nodes
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running


def grant(api: FakeCluster, job: str, cores: int, *, sequence: int = 1, within_s: float = 30.0) -> None:
    """What the planner writes for a wish of so many cores per rank."""
    answer = {
        "sequence": sequence,
        "state": "Granted",
        "coresPerReplica": cores,
        "time": time_from_seconds(clock()),
        "deadline": time_from_seconds(clock() + within_s),
    }
    api.change(job, lambda item: item["status"]["placement"].update(grant=answer))


def cores_of(api: FakeCluster) -> dict[str, tuple[str, str]]:
    """By pod: cores wanted by its spec, and those it has by its status."""
    return {
        name: (wanted(pod), pod["status"]["containerStatuses"][0]["resources"]["limits"]["cpu"])
        for name, pod in api.pods().items()
    }
