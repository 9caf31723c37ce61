"""Reads the cluster: one list-and-watch per kind, and the fresh consistent list that confirms a suspicion."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from enum import Enum
from typing import Final, Protocol

from coda.errors import InvalidInput, Outage
from coda_kube.api.client import Expired, Rejected
from coda_kube.api.watch_cache import IDLE_TIMEOUT_S, SERVER_TIMEOUT_S
from coda_kube.objects import names
from coda_kube.objects.json_types import Json
from coda_lab.checker.objects import full_name, read_job, read_node, read_pod
from coda_lab.checker.view import View

RETRY_S: Final = 1.0


class Reader(Protocol):
    """The two verbs of `coda_kube.api.client.Client` the referee uses."""

    async def list_pages(self, path: str, query: Mapping[str, str] | None = None) -> Json:
        """The whole collection at one moment."""

    def watch(
        self, path: str, query: Mapping[str, str], *, idle_s: float
    ) -> AbstractAsyncContextManager[AsyncIterator[Json]]:
        """Its changes from a resourceVersion on."""


class Kind(Enum):
    """A kind that is read; the value is the collection's path."""

    JOB = f"/apis/{names.API_VERSION}/trainingjobs"
    POD = "/api/v1/pods"
    NODE = "/api/v1/nodes"
    TENANT = f"/apis/{names.API_VERSION}/virtualclusters"
    LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{names.SYSTEM_NAMESPACE}/leases"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sink:
    """Receives what is read: a whole list, a single change, or the news that the API server is away."""

    replace: Callable[[Kind, list[Json]], None]
    put: Callable[[Kind, Json], None]
    drop: Callable[[Kind, Json], None]
    outage: Callable[[str], None]


class Follower:
    """Keeps a sink up to date on one kind, over ends of the watch, expired versions and API server restarts."""

    def __init__(self, reader: Reader, kind: Kind, sink: Sink) -> None:
        self._reader = reader
        self._kind = kind
        self._sink = sink
        self._version: str | None = None

    async def fill(self) -> None:
        """List once. Raises Outage or Rejected."""
        answer = await self._reader.list_pages(self._kind.value)
        self._version = answer["metadata"]["resourceVersion"]
        self._sink.replace(self._kind, answer["items"])

    def restart(self) -> None:
        """List again before the next watch: versions count from elsewhere now."""
        self._version = None

    async def follow(self) -> None:
        """Watch, and list again if the watch cannot continue. Never returns."""
        while True:
            try:
                if self._version is None:
                    await self.fill()
                await self._stream(self._version or "")
            except Expired:
                self._version = None
            except (Outage, Rejected) as error:
                self._sink.outage(str(error))
                await asyncio.sleep(RETRY_S)

    async def _stream(self, version: str) -> None:
        query = {
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(SERVER_TIMEOUT_S),
        }
        async with self._reader.watch(self._kind.value, query, idle_s=IDLE_TIMEOUT_S) as events:
            async for event in events:
                self._take(event["type"], event["object"])

    def _take(self, change: str, thing: Json) -> None:
        if change == "ERROR":
            message = f"watch of {self._kind.value}: {thing.get('message')}"
            raise Expired(message) if thing.get("code") == 410 else Outage(message)
        if change in ("ADDED", "MODIFIED"):
            self._sink.put(self._kind, thing)
        elif change == "DELETED":
            self._sink.drop(self._kind, thing)
        self._version = thing["metadata"]["resourceVersion"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """One consistent moment; `unreadable` holds a sentence for each object that could not be read."""

    view: View
    leases: tuple[Json, ...]
    unreadable: tuple[str, ...]


async def read_snapshot(reader: Reader) -> Snapshot:
    """Return fresh consistent lists: pods at one moment, with the jobs that were the same before and after it.

    A list without resourceVersion is the newest state, in one piece even when paged. Jobs that changed while the pods
    were read are set aside as unsteady: nobody can say which of their states belongs to the pods.

    Raises Outage or Rejected.
    """
    before = await reader.list_pages(Kind.JOB.value)
    pods = await reader.list_pages(Kind.POD.value)
    nodes = await reader.list_pages(Kind.NODE.value)
    after = await reader.list_pages(Kind.JOB.value)
    leases = await reader.list_pages(Kind.LEASE.value)
    versions = [{_identity(job) for job in jobs["items"]} for jobs in (before, after)]
    steady = versions[0] & versions[1]
    view = View(unsteady=frozenset(uid for uid, _ in versions[0] ^ versions[1]))
    unreadable: list[str] = []
    for kind, things in ((Kind.NODE, nodes), (Kind.POD, pods), (Kind.JOB, after)):
        for thing in things["items"]:
            if kind is Kind.JOB and _identity(thing) not in steady:
                continue
            try:
                put(view, kind, thing)
            except InvalidInput as error:
                unreadable.append(f"{full_name(thing)} could not be read and is not judged: {error}")
    return Snapshot(view=view, leases=tuple(leases["items"]), unreadable=tuple(unreadable))


def put(view: View, kind: Kind, thing: Json) -> None:
    """Read `thing` into the view. Raises InvalidInput."""
    if kind is Kind.POD:
        view.put_pod(read_pod(thing))
    elif kind is Kind.NODE:
        view.put_node(read_node(thing))
    elif kind is Kind.JOB:
        view.put_job(read_job(thing))


def _identity(thing: Json) -> tuple[str, str]:
    return thing["metadata"]["uid"], thing["metadata"]["resourceVersion"]
