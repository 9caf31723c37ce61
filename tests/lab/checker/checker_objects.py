"""Small Kubernetes objects as JSON, and an in-memory API server that serves lists and watches of them."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from coda.errors import Outage
from coda_kube.api.client import Expired
from coda_kube.objects.json_types import Json
from coda_lab.checker.invariants import suspicions_in
from coda_lab.checker.view import View
from coda_lab.checker.watch import Kind, put

NOW = "2026-03-01T12:00:00Z"
LONG_AGO = "2020-01-01T00:00:00Z"
FAR_AHEAD = "2099-01-01T00:00:00Z"


def node(name: str = "n1", *, gpus: int = 8, ready: bool = True, ready_since: str = LONG_AGO) -> Json:
    condition = {"type": "Ready", "status": "True" if ready else "Unknown", "lastTransitionTime": ready_since}
    allocatable = {"nvidia.com/gpu": str(gpus), "cpu": "48", "memory": "256Gi", "pods": "110"}
    return {
        "metadata": {"name": name, "uid": f"uid-{name}"},
        "status": {"allocatable": allocatable, "conditions": [condition]},
    }


def pod(
    name: str = "stranger",
    *,
    uid: str | None = None,
    node: str | None = "n1",
    gpus: int = 1,
    phase: str = "Running",
    deleted: str | None = None,
    scheduler: str = "coda",
    bound: str = LONG_AGO,
    started: bool = False,
) -> Json:
    metadata: Json = {"namespace": "ns", "name": name, "uid": uid or f"uid-{name}", "creationTimestamp": bound}
    if deleted is not None:
        metadata |= {"deletionTimestamp": deleted, "deletionGracePeriodSeconds": 0}
    spec: Json = {
        "schedulerName": scheduler,
        "containers": [{"name": "main", "resources": {"requests": {"nvidia.com/gpu": str(gpus), "cpu": "1"}}}],
    }
    if node is not None:
        spec["nodeName"] = node
    status: Json = {"phase": phase}
    if started:
        status["containerStatuses"] = [{"name": "main", "state": {"running": {"startedAt": bound}}}]
    return {"metadata": metadata, "spec": spec, "status": status}


def rank_pod(
    rank: int, *, attempt: int = 1, job: str = "j", plan: str | None = None, pin: str | None = "n1", **more: Any
) -> Json:
    """The pod of a rank of job `j`, as Coda's operator would make it: pinned to and, by default, bound to `pin`."""
    made = pod(f"{job}-{attempt}-{rank}", **({"node": pin} | more))
    made["metadata"]["labels"] = {
        "coda.scheduler/job": job,
        "coda.scheduler/job-uid": f"uid-{job}",
        "coda.scheduler/attempt": str(attempt),
        "coda.scheduler/rank": str(rank),
    }
    made["metadata"]["annotations"] = {"coda.scheduler/plan": plan or f"{job}-p{attempt}"}
    made["metadata"]["ownerReferences"] = [{"kind": "TrainingJob", "uid": f"uid-{job}", "controller": True}]
    made["spec"]["affinity"] = affinity([pin] if pin is not None else [])
    return made


def affinity(pins: list[str]) -> Json:
    """Required node affinity of one term per name."""
    terms = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [name]}]} for name in pins]
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}


def placement(
    *nodes: str, attempt: int = 1, job: str = "j", state: str = "Released", deadline: str = FAR_AHEAD, **more: Any
) -> Json:
    return {
        "attempt": attempt,
        "planId": f"{job}-p{attempt}",
        "epoch": 1,
        "generation": 1,
        "state": state,
        "nodes": list(nodes),
        "cpusPerReplica": 1,
        "committedTime": NOW,
        "bindDeadline": deadline,
    } | more


def pending(
    code: str = "InsufficientGPUs", message: str = "needs 8, 4 are free", since: str = NOW, **more: Any
) -> Json:
    return {"code": code, "message": message, "since": since} | more


def job(
    name: str = "j",
    *,
    phase: str | None = "Queued",
    attempt: int = 1,
    placement: Json | None = None,
    pending: Json | None = None,
    gpus: int = 1,
    suspend: bool = False,
    deleted: bool = False,
    generation: int = 1,
) -> Json:
    metadata: Json = {"namespace": "ns", "name": name, "uid": f"uid-{name}", "generation": generation}
    if deleted:
        metadata["deletionTimestamp"] = NOW
    status: Json = {"attempt": attempt, "request": {"resources": {"nvidia.com/gpu": str(gpus), "cpu": "1"}}}
    status |= {key: part for key, part in (("phase", phase), ("placement", placement), ("pending", pending)) if part}
    return {"metadata": metadata, "spec": {"suspend": suspend}, "status": status}


def lease(name: str, *, holder: str = "one", renewed: str = NOW) -> Json:
    return {
        "metadata": {"namespace": "coda-system", "name": name, "uid": f"uid-{name}"},
        "spec": {"holderIdentity": holder, "renewTime": renewed},
    }


def view_of(*things: Json, unsteady: frozenset[str] = frozenset()) -> View:
    view = View(unsteady=unsteady)
    for thing in things:
        kind = (
            Kind.NODE if "allocatable" in thing["status"] else Kind.POD if "containers" in thing["spec"] else Kind.JOB
        )
        put(view, kind, thing)
    return view


def found_in(view: View, letters: str = "abcdeg") -> list[tuple[str, str]]:
    """Letter and sentence of everything suspected."""
    suspicions = [each for scope in view.scopes() for each in suspicions_in(view, scope, {})]
    return sorted((each.invariant.value, each.sentence) for each in suspicions if each.invariant.value in letters)


class FakeServer:
    """Objects by kind, with resourceVersions, consistent lists, and watches that can be held back or broken."""

    def __init__(self) -> None:
        self.down = False
        self.lists: list[Kind] = []
        self._version = 1
        self._things: dict[Kind, dict[str, Json]] = {kind: {} for kind in Kind}
        self._log: list[tuple[int, Kind, Json]] = []
        self._oldest = 0
        self._held: set[Kind] = set()
        self._moved = asyncio.Event()
        self._generation = 0

    def put(self, kind: Kind, thing: Json) -> None:
        things, key = self._things[kind], thing["metadata"]["uid"]
        change = "MODIFIED" if key in things else "ADDED"
        things[key] = self._stamped(thing)
        self._tell(kind, {"type": change, "object": things[key]})

    def drop(self, kind: Kind, uid: str) -> None:
        self._tell(kind, {"type": "DELETED", "object": self._stamped(self._things[kind].pop(uid))})

    def tell(self, kind: Kind, event: Json) -> None:
        """Send `event` to the watches of `kind` as it is."""
        self._version += 1
        self._tell(kind, event)

    def hold(self, kind: Kind) -> None:
        """From now on watches of `kind` show nothing new; lists do."""
        self._held.add(kind)

    def restart(self, *, forget: bool = False) -> None:
        """Break every watch; with `forget`, old versions have expired afterwards."""
        self._generation += 1
        self._oldest = self._version if forget else 0
        self._wake()

    async def list_pages(self, path: str, query: Mapping[str, str] | None = None) -> Json:
        kind = Kind(path)
        self.lists.append(kind)
        if self.down:
            raise Outage(f"GET {path}: connection refused")
        return {
            "metadata": {"resourceVersion": str(self._version)},
            "items": [copy.deepcopy(thing) for thing in self._things[kind].values()],
        }

    @asynccontextmanager
    async def watch(self, path: str, query: Mapping[str, str], *, idle_s: float) -> AsyncIterator[AsyncIterator[Json]]:
        if self.down:
            raise Outage(f"watch of {path}: connection refused")
        if int(query["resourceVersion"]) < self._oldest:
            raise Expired("too old resource version")
        yield self._events(Kind(path), int(query["resourceVersion"]))

    async def _events(self, kind: Kind, version: int) -> AsyncIterator[Json]:
        generation = self._generation
        while True:
            for number, which, event in list(self._log):
                if number > version and which is kind and kind not in self._held:
                    version = number
                    yield copy.deepcopy(event)
            moved = self._moved
            await moved.wait()
            if generation != self._generation:
                raise Outage("connection reset")

    def _stamped(self, thing: Json) -> Json:
        self._version += 1
        stamped = copy.deepcopy(thing)
        stamped["metadata"]["resourceVersion"] = str(self._version)
        return stamped

    def _tell(self, kind: Kind, event: Json) -> None:
        self._log.append((self._version, kind, event))
        self._wake()

    def _wake(self) -> None:
        self._moved.set()
        self._moved = asyncio.Event()
