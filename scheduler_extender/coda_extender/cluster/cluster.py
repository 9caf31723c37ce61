"""What one replica knows of the cluster: four caches that feed the state and the guard, and wake the planner.

Every replica keeps all of it at all times, so that a new leader answers at once. Decides nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Final

from coda.model.job import JobId
from coda.model.live_placement import is_waiting, open_wish
from coda.model.world import World
from coda.placements.review import awaits_decision
from coda.placements.wait_limits import SETTLE_S
from coda_extender.cluster.ending_gangs import EndingGangs
from coda_extender.guard.guard import Guard
from coda_kube.api.client import Client
from coda_kube.api.watch_cache import WatchCache, key_of
from coda_kube.cluster_state import ClusterState
from coda_kube.objects.json_types import Json
from coda_kube.objects.names import API_VERSION
from coda_kube.objects.read import id_of

GATHER_S: Final = 0.04  # our choice: a job that waits for room notices less, and most changes are pods of others


class ExtenderCluster:
    """Caches, state and guard of one replica. `changed` is set by whatever a decision may depend on; `pressing` with it
    where somebody waits for just that decision: a job came into the queue, wants other cores, or shows why it waited
    though it left."""

    def __init__(
        self,
        client: Client,
        *,
        in_flight_limit_s: float,
        settle_s: float = SETTLE_S,
        gather_s: float = GATHER_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.state = ClusterState()
        self.changed = asyncio.Event()
        self.pressing = asyncio.Event()
        self.guard = Guard(
            self.state,
            in_flight_limit_s=in_flight_limit_s,
            clock=clock,
            in_touch=self.is_in_touch,
            on_settled=self.changed.set,
        )
        self._endings = EndingGangs(self.state, clock, settle_s=settle_s)
        self._gather_s = gather_s
        self.stale_pending: set[JobId] = set()  # jobs that left the queue and still show why they waited
        self.jobs = WatchCache(client, f"/apis/{API_VERSION}/trainingjobs", listener=self._on_job)
        self._caches = (
            WatchCache(client, "/api/v1/nodes", listener=self._on_node),
            WatchCache(client, "/api/v1/pods", listener=self._on_pod, on_break=self.guard.outage),
            WatchCache(client, "/api/v1/resourcequotas", listener=self._on_quota),
            self.jobs,
        )
        self._version = self.state.version

    async def run(self) -> None:
        """Keep the caches until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for cache in self._caches:
                tasks.create_task(cache.run())

    async def synced(self) -> None:
        """Wait until all of the cluster was seen once."""
        for cache in self._caches:
            await cache.synced.wait()

    def is_synced(self) -> bool:
        """True once all of the cluster was seen."""
        return all(cache.synced.is_set() for cache in self._caches)

    def is_in_touch(self) -> bool:
        """True while what happens in the cluster is seen as it happens."""
        return all(cache.in_touch.is_set() for cache in self._caches)

    async def in_touch(self) -> None:
        """Wait until it is seen again."""
        while not self.is_in_touch():
            for cache in self._caches:
                await cache.in_touch.wait()

    def awaits_decision(self, *, epoch: int) -> bool:
        """True while there is anything to decide; else no change of pods, nodes or quotas is worth a round."""
        return bool(self.stale_pending) or any(awaits_decision(job, epoch=epoch) for job in self.state.starting())

    def world(self, *, now_s: float) -> World:
        """The world now, with what is kept of ending attempts in flight, and without the pods that are."""
        return self.state.snapshot(self._endings.held_by_node(), now_s=now_s)

    def next_expiry_in_s(self) -> float | None:
        """How long until something is in flight no more by time alone; None where nothing is."""
        expiries_s = (self.guard.in_flight.next_expiry_in_s(), self._endings.next_expiry_in_s())
        return min((expiry_s for expiry_s in expiries_s if expiry_s is not None), default=None)

    async def gathered(self) -> None:
        """Let changes that nobody waits for gather, if that is all that changed."""
        if self.changed.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._gather_s):
                    await self.pressing.wait()

    def _on_node(self, old: Json | None, new: Json | None) -> None:
        self.state.on_node(old, new)
        if self._moved():
            self.guard.node_changed(key_of(new or old or {}))

    def _on_pod(self, old: Json | None, new: Json | None) -> None:
        key = key_of(new or old or {})
        before = self.state.pod_by_id.get(key)
        self.state.on_pod(old, new)
        after = self.state.pod_by_id.get(key)
        self._endings.observe(before, after)
        self.guard.pod_changed(before, after, old, new)
        self._moved()

    def _on_job(self, old: Json | None, new: Json | None) -> None:
        self.state.on_job(old, new)
        job = id_of(new or old or {})
        self.guard.job_changed(job)
        if new is not None and _shows_stale_pending(new):
            self.stale_pending.add(job)
            self._press()
        else:
            self.stale_pending.discard(job)
        known = self.state.job(job)
        if self._moved() and known is not None and (is_waiting(known) or open_wish(known) is not None):
            self._press()

    def _on_quota(self, old: Json | None, new: Json | None) -> None:
        self.state.on_quota(old, new)
        self._moved()

    def _press(self) -> None:
        self.pressing.set()
        self.changed.set()

    def _moved(self) -> bool:
        moved = self.state.version != self._version
        if moved:
            self._version = self.state.version
            self.changed.set()
        return moved


def _shows_stale_pending(job: Json) -> bool:
    """True for a job that shows a reason for waiting though it waits no more: suspended, launched or finished."""
    status, metadata = job.get("status") or {}, job["metadata"]
    return bool(status.get("pending")) and status.get("phase") != "Queued" and "deletionTimestamp" not in metadata
