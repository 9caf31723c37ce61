"""Extender replicas on a fake API server: caches, planner and guard, without HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from coda.errors import Outage
from coda.placements.lingering_use import SETTLE_S
from coda.policy import PolicyConfig
from coda_extender.cluster.cluster import ExtenderCluster
from coda_extender.metrics import Metrics
from coda_extender.planner.cycle import StartProcess
from coda_extender.planner.leader_label import LeaderLabel
from coda_extender.planner.planner import Planner, PlannerConfig
from coda_extender.protocol import Answer, Question
from coda_kube.api.client import Client
from coda_kube.api.lease import Elector, LeaseTimes
from coda_kube.api.watch_cache import version_of
from coda_kube.objects.json_types import Json
from coda_kube.objects.read import pod_from_json
from tests.extender.deciders import InProcess
from tests.extender.fake_api import FakeApi
from tests.extender.objects import JOBS

FAST = LeaseTimes(duration_s=0.6, renew_deadline_s=0.3, retry_s=0.05)
STEADY = LeaseTimes(duration_s=120.0, renew_deadline_s=90.0, retry_s=0.05)
"""A busy machine lets no leader of this lapse: it loads what is recorded again then, and its writes end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """One running extender replica."""

    cluster: ExtenderCluster
    planner: Planner
    elector: Elector
    metrics: Metrics
    api: FakeApi

    def ask(self, pod: dict[str, Any], names: list[str]) -> Answer:
        """Filter a pod as kube-scheduler would."""
        question = Question(pod=pod_from_json(pod), pod_version=version_of(pod), names=names)
        return self.cluster.guard.filter(question)

    def count(self, metric: str, **labels: str) -> float:
        """The value of a metric."""
        return self.metrics.registry.get_sample_value(metric, labels) or 0.0


class Wire(Client):
    """One replica's way to the Lease, which can be cut while everything else goes on."""

    def __init__(self, api: FakeApi) -> None:
        self._to = api
        self.clock = api.clock
        self.is_cut = False

    async def get(self, path: str, query: Mapping[str, str] | None = None) -> Json:
        return await self._unless_cut().get(path, query)

    async def create(self, path: str, body: Json, query: Mapping[str, str] | None = None) -> Json:
        return await self._unless_cut().create(path, body, query)

    async def replace(self, path: str, body: Json) -> Json:
        return await self._unless_cut().replace(path, body)

    def _unless_cut(self) -> FakeApi:
        if self.is_cut:
            raise Outage("no route to the API server")
        return self._to


@asynccontextmanager
async def replica(
    api: FakeApi,
    name: str = "one",
    *,
    pod: str | None = None,
    wire: Wire | None = None,
    policy: PolicyConfig | None = None,
    settle_s: float = SETTLE_S,
    start: StartProcess | None = None,
    lease: LeaseTimes = STEADY,
    clock: Callable[[], float] = time.monotonic,
    **config: Any,
) -> AsyncIterator[Replica]:
    """A replica that runs until the block ends. Without `start` it decides without a process of its own."""

    async def in_process() -> InProcess:
        return InProcess(settings.policy)

    metrics = Metrics()
    shares_gpus = policy is not None and policy.shares_gpus
    cluster = ExtenderCluster(api, in_flight_limit_s=30.0, settle_s=settle_s, clock=clock, shares_gpus=shares_gpus)
    elector = Elector(wire or api, "coda-system", "coda-planner", name, lease)
    label = LeaderLabel(api, "coda-system" if pod else None, pod)
    settings = PlannerConfig(policy=policy or PolicyConfig(), scheduler_names=("coda",), **config)
    planner = Planner(api, cluster, elector, label, metrics, settings, start or in_process)
    tasks = [asyncio.create_task(cluster.run()), asyncio.create_task(planner.run())]
    try:
        yield Replica(cluster=cluster, planner=planner, elector=elector, metrics=metrics, api=api)
    finally:
        for task in tasks:
            task.cancel()
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task


def status(api: FakeApi, job: str) -> Json:
    """A job's status now."""
    found: Json = api.item(f"{JOBS}/{job}")["status"]
    return found


def placement_of(api: FakeApi, job: str) -> Json:
    """A job's placement now; empty without one."""
    return status(api, job).get("placement") or {}


def state_of(api: FakeApi, job: str) -> str | None:
    """Committed, Released or None."""
    return placement_of(api, job).get("state")
