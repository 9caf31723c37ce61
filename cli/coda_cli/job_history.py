"""What TrainingJobs went through, from one watch: a history per job that each change of its object extends.

`history_after` is pure; `Follower` feeds it. Every moment is kept twice: as Coda reported it, and by this machine's
clock when the change was seen. Waits need one clock.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

from coda.model import FINISHED, Phase, WaitCode
from coda_kube.api.client import Client
from coda_kube.api.watch_cache import WatchCache
from coda_kube.objects.json_types import Json
from coda_kube.objects.names import GROUP, LABEL_JOB, VERSION
from coda_kube.objects.quantities import seconds_from_time

_PHASES = {phase.value: phase for phase in Phase}

HOPELESS = frozenset(code.value for code in (WaitCode.NEVER_FITS, WaitCode.NO_MATCHING_NODE, WaitCode.UNKNOWN_LEVEL))
"""Pending codes that waiting cannot mend: the job needs another cluster or another spec."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitRecord:
    """One reason why a job waited, as the planner wrote it."""

    code: str
    message: str
    seen_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Moments:
    """Seconds since 1970 by one clock; None: not yet. Each is the first time: later attempts change nothing."""

    queued_s: float | None = None
    placed_s: float | None = None
    started_s: float | None = None
    finished_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """Everything that was seen of one TrainingJob, or of one CPU job of a replay."""

    name: str
    gpus: int
    cores: int
    phase: Phase | None = None
    reason: str = ""
    message: str = ""
    attempt: int = 0
    failures: int = 0
    disruptions: int = 0
    stops: int = 0  # of a CPU job: how often it gave its cores back
    waited_again_s: float = 0.0  # of a CPU job: after its stops
    nodes: tuple[str, ...] = ()  # of the newest placement
    pending: WaitRecord | None = None  # the present one
    reasons: tuple[WaitRecord, ...] = ()  # each once, in the order seen
    reported: Moments = field(default_factory=Moments)
    seen: Moments = field(default_factory=Moments)
    deleted: bool = False
    freed_s: float | None = None  # when its last pod so far was seen ended: from then on others may use its capacity

    @property
    def is_over(self) -> bool:
        """True if it finished or was deleted."""
        return self.phase in FINISHED or self.deleted

    @property
    def is_hopeless(self) -> bool:
        """True if it waits for something that this cluster will never have."""
        return self.phase is Phase.QUEUED and self.pending is not None and self.pending.code in HOPELESS

    @property
    def is_waiting(self) -> bool:
        """True if it is not over and its current attempt has no placement."""
        return not self.is_over and self.phase in (None, Phase.QUEUED)


def history_after(history: History | None, item: Mapping[str, Any], now_s: float) -> History:
    """Return the history after `item`, the newest object of the job, was seen at `now_s`.

    In a phase that is not known, of a newer version, it goes on with what it did."""
    spec, status = item["spec"], item.get("status") or {}
    replicas = int(spec.get("replicas", 1))
    cores = status.get("cores")
    if cores is None:
        asked = spec.get("cpusPerReplica", "auto")
        cores = asked * replicas if isinstance(asked, int) else 0
    before = history or History(name=item["metadata"]["name"], gpus=0, cores=0)
    pending = _pending(before, status, now_s)
    placement = status.get("placement") or {}
    return replace(
        before,
        gpus=replicas * int(spec["gpusPerReplica"]),
        cores=int(cores),
        phase=_PHASES.get(word, before.phase) if (word := status.get("phase")) else None,
        reason=status.get("reason", ""),
        message=status.get("message", ""),
        attempt=max(before.attempt, status.get("attempt", 0)),
        failures=status.get("failures", 0),
        disruptions=status.get("disruptions", 0),
        nodes=tuple(placement.get("nodes") or before.nodes),
        pending=pending,
        reasons=before.reasons if pending is None or pending in before.reasons else (*before.reasons, pending),
        reported=_reported(before.reported, status),
        seen=_seen(before.seen, status, now_s),
    )


def _pending(before: History, status: Mapping[str, Any], now_s: float) -> WaitRecord | None:
    pending = status.get("pending")
    if not pending:
        return None
    for known in before.reasons:
        if (known.code, known.message) == (pending["code"], pending["message"]):
            return known
    return WaitRecord(code=pending["code"], message=pending["message"], seen_s=now_s)


def _reported(before: Moments, status: Mapping[str, Any]) -> Moments:
    def first(known: float | None, text: str | None) -> float | None:
        return known if known is not None or not text else seconds_from_time(text)

    return Moments(
        queued_s=first(before.queued_s, status.get("queuedTime")),
        placed_s=first(before.placed_s, (status.get("placement") or {}).get("committedTime")),
        started_s=first(before.started_s, status.get("startTime")),
        finished_s=first(before.finished_s, status.get("completionTime")),
    )


def _seen(before: Moments, status: Mapping[str, Any], now_s: float) -> Moments:
    def first(known: float | None, happened: bool) -> float | None:
        return known if known is not None or not happened else now_s

    return Moments(
        queued_s=first(before.queued_s, bool(status.get("queuedTime"))),
        placed_s=first(before.placed_s, bool(status.get("placement"))),
        started_s=first(before.started_s, bool(status.get("startTime"))),
        finished_s=first(before.finished_s, status.get("phase") in {phase.value for phase in FINISHED}),
    )


class Follower:
    """Histories by job name of the TrainingJobs of one namespace with one label. Made by `following`."""

    def __init__(self, *, now: Callable[[], float] = time.time) -> None:
        self.by_name: dict[str, History] = {}
        self.changed_s = now()  # when the last change was seen
        self._now = now
        self._waiters: set[asyncio.Future[None]] = set()

    def on_job(self, old: Json | None, new: Json | None) -> None:
        """Listen to a `WatchCache` of jobs."""
        self.changed_s = self._now()
        if new is None:
            name = (old or {})["metadata"]["name"]
            if name in self.by_name:
                self.by_name[name] = replace(self.by_name[name], deleted=True)
        else:
            name = new["metadata"]["name"]
            self.by_name[name] = history_after(self.by_name.get(name), new, self.changed_s)
        self.wake()

    def on_pod(self, old: Json | None, new: Json | None) -> None:
        """Listen to a `WatchCache` of these jobs' pods."""
        if new is None or not _has_ended(new) or (old is not None and _has_ended(old)):
            return
        history = self.by_name.get(new["metadata"]["labels"][LABEL_JOB])
        if history is not None:
            self.by_name[history.name] = replace(history, freed_s=self._now())

    def put(self, history: History) -> None:
        """Take a history that somebody else keeps."""
        self.changed_s = self._now()
        self.by_name[history.name] = history
        self.wake()

    def is_queued(self, name: str) -> bool:
        """True if the job of that name has entered the queue."""
        history = self.by_name.get(name)
        return history is not None and history.reported.queued_s is not None

    def wake(self) -> None:
        """End every wait in `change`."""
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def change(self, timeout_s: float) -> None:
        """Return at the next change, or after `timeout_s`."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await waiter
        finally:
            self._waiters.discard(waiter)


def _has_ended(pod: Json) -> bool:
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def jobs_path(namespace: str) -> str:
    """Return the API path of a namespace's TrainingJobs; of all of them if it is empty."""
    return f"/apis/{GROUP}/{VERSION}{within(namespace)}/trainingjobs"


def within(namespace: str) -> str:
    """Return the part of an API path that names a namespace; empty for all of them."""
    return f"/namespaces/{namespace}" if namespace else ""


@asynccontextmanager
async def following(
    client: Client, namespace: str, *, selector: str, with_pods: bool = False
) -> AsyncIterator[Follower]:
    """Yield a follower that stays up to date inside the context. The context starts when the first lists are read.

    An empty namespace stands for all of them."""
    follower = Follower()
    caches = [WatchCache(client, jobs_path(namespace), listener=follower.on_job, query={"labelSelector": selector})]
    if with_pods:
        pods_path = f"/api/v1{within(namespace)}/pods"
        caches.append(WatchCache(client, pods_path, listener=follower.on_pod, query={"labelSelector": LABEL_JOB}))
    tasks = [asyncio.create_task(cache.run()) for cache in caches]
    try:
        await asyncio.gather(*(cache.synced.wait() for cache in caches))
        yield follower
    finally:
        for task in tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
