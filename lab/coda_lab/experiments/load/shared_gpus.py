"""The agents of all nodes, as far as GPUs are shared: what they tell the planner, and what they order on each node.

Simulated nodes have no agent. In its place this follows the pods of each node, gives whole GPUs as the kubelet would,
runs `gpu_model` every second, and writes the NodeProfiles with the identity of the node's agent. Now and then one of
these agents is killed.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from coda.errors import CodaError
from coda.model.seats import SEAT, SHARING
from coda_kube.api.client import Client, NotFound
from coda_kube.objects.json_types import Json
from coda_kube.objects.names import AGENT, API_VERSION, GPU, LABEL_JOB_UID
from coda_kube.objects.quantities import time_from_seconds
from coda_lab.experiments.load.gpu_model import OnGpus, SharedNode, Slowed
from coda_lab.kubelets.nodes import NodeSpec

ALONE_S: Final = 2.0  # the agent takes a minute; these jobs live for seconds
WRITE_EVERY_S: Final = 2.0
CRASH_EVERY_S: Final = 15.0
AWAY_S: Final = (3.0, 12.0)

_PROFILES: Final = f"/apis/{API_VERSION}/nodeprofiles"


@dataclass(slots=True, kw_only=True)
class _Node:
    model: SharedNode
    gpus: int
    pods: dict[str, OnGpus] = field(default_factory=dict)  # by uid
    rows: list[dict[str, object]] = field(default_factory=list)  # as written last
    is_written: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """What came of it. `owners`: guaranteed jobs that had a neighbour; `shared_s`: their seconds beside one."""

    owners: int
    shared_s: float
    lost_share: float
    guest_share: float
    crashes: int
    longest_unwatched_s: float
    slowed: tuple[Slowed, ...]

    def problems(self) -> tuple[str, ...]:
        """A sentence for each guaranteed job that was slowed for too long."""
        return tuple(each.sentence() for each in self.slowed)

    def as_json(self) -> dict[str, Any]:
        """For the report."""
        return {
            "guaranteed_jobs_beside_others": self.owners,
            "shared_s": round(self.shared_s),
            "guaranteed_lost": round(self.lost_share, 4),
            "opportunistic_share": round(self.guest_share, 3),
            "agents_killed": self.crashes,
            "longest_slow_without_an_agent_s": self.longest_unwatched_s,
        }


class SharedGpus:
    """All nodes of a run. `on_pod` is a listener for `WatchCache`."""

    def __init__(self, nodes: tuple[NodeSpec, ...], *, seed: int, now: Callable[[], float] = time.monotonic) -> None:
        self._nodes = {
            node.name: _Node(model=SharedNode(node.name, node.gpus, seed=seed), gpus=node.gpus) for node in nodes
        }
        self._rng = random.Random(f"gpus {seed}")
        self._now = now
        self._crashes = 0

    def on_pod(self, old: Json | None, new: Json | None) -> None:
        """Follow which pods run on which GPUs."""
        item = new if new is not None else old
        assert item is not None
        uid, node = str(item["metadata"]["uid"]), self._nodes.get(str(item["spec"].get("nodeName") or ""))
        if node is None:
            return
        phase = (item.get("status") or {}).get("phase")
        if new is None or phase in ("Succeeded", "Failed"):
            node.pods.pop(uid, None)
        elif phase == "Running" and uid not in node.pods and (pod := self._granted(node, new)) is not None:
            node.pods[uid] = pod

    async def run(self, clients: Mapping[str, Client]) -> None:
        """Let the time pass on all nodes until cancelled. `clients`: of the nodes' agents."""
        writing = asyncio.create_task(self._write_all(clients))
        try:
            await self._tick_all()
        finally:
            writing.cancel()

    def outcome(self) -> Shared:
        """What was seen so far."""
        totals = [node.model.totals for node in self._nodes.values()]
        shared_s, guest_s = sum(one.shared_s for one in totals), sum(one.guest_s for one in totals)
        return Shared(
            owners=sum(len(one.owners) for one in totals),
            shared_s=shared_s,
            lost_share=sum(one.lost_s for one in totals) / max(1.0, shared_s),
            guest_share=sum(one.guest_share_s for one in totals) / max(1.0, guest_s),
            crashes=self._crashes,
            longest_unwatched_s=max((one.longest_unwatched_s for one in totals), default=0.0),
            slowed=tuple(each for node in self._nodes.values() for each in node.model.slowed),
        )

    def _granted(self, node: _Node, pod: Json) -> OnGpus | None:
        """Its seats, or whole GPUs that nobody else has whole: any of them, as the kubelet chooses."""
        limits: dict[str, int] = defaultdict(int)
        for container in pod["spec"]["containers"]:
            for name, amount in ((container.get("resources") or {}).get("limits") or {}).items():
                if name in (GPU, SHARING) or name.startswith(SEAT):
                    limits[name] += int(amount)
        labels = pod["metadata"].get("labels") or {}
        job = str(labels.get(LABEL_JOB_UID) or pod["metadata"]["uid"])
        seats = sorted(int(name.removeprefix(SEAT)) for name in limits if name.startswith(SEAT))
        uid = str(pod["metadata"]["uid"])
        if seats:
            return OnGpus(uid=uid, job=job, gpus=tuple(seats), owns=False)
        if not limits[GPU]:
            return None
        taken = {gpu for other in node.pods.values() if other.owns for gpu in other.gpus}
        free = [gpu for gpu in range(node.gpus) if gpu not in taken]
        gpus = tuple(sorted(self._rng.sample(free, min(limits[GPU], len(free)))))
        return OnGpus(uid=uid, job=job, gpus=gpus, owns=True, controls=bool(limits[SHARING]))

    async def _tick_all(self) -> None:
        next_s, crash_s = self._now(), self._now() + CRASH_EVERY_S
        while True:
            now_s = self._now()
            for node in self._nodes.values():
                node.model.see(node.pods.values(), now_s)
                node.model.tick(now_s)
            if now_s >= crash_s:
                crash_s = now_s + CRASH_EVERY_S
                self._crash(now_s)
            next_s = max(next_s + 1.0, self._now() - 1.0)
            await asyncio.sleep(max(0.0, next_s - self._now()))

    def _crash(self, now_s: float) -> None:
        """Kill an agent, if possible one that protects somebody."""
        shared = [node for node in self._nodes.values() if node.model.is_shared] or list(self._nodes.values())
        self._rng.choice(shared).model.crash(now_s, self._rng.uniform(*AWAY_S))
        self._crashes += 1

    async def _write_all(self, clients: Mapping[str, Client]) -> None:
        while True:
            for name, node in self._nodes.items():
                rows = [node.model.row_of(gpu, self._now(), alone_s=ALONE_S) for gpu in range(node.gpus)]
                if rows != node.rows:
                    with suppress(CodaError):  # the next turn writes it
                        await _write(clients[name], name, rows, is_written=node.is_written)
                        node.rows, node.is_written = rows, True
            await asyncio.sleep(WRITE_EVERY_S)


async def _write(client: Client, node: str, rows: list[dict[str, object]], *, is_written: bool) -> None:
    item: Json = {"apiVersion": API_VERSION, "kind": "NodeProfile", "metadata": {"name": node}}
    status = {"gpus": rows, "gpuCount": len(rows), "time": time_from_seconds(time.time())}
    path = f"{_PROFILES}/{node}"
    if is_written:
        with suppress(NotFound):  # a restore took it back
            await client.apply(f"{path}/status", item | {"status": status}, manager=AGENT)
            return
    await client.apply(path, item, manager=AGENT)
    await client.apply(f"{path}/status", item | {"status": status}, manager=AGENT)
