"""Stores the objects and does their owners' deeds, as the plain user or as an administrator. Counts, judges nothing."""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import aiohttp

from coda.errors import Outage
from coda_kube.api.client import Client
from coda_kube.objects.names import FINALIZER
from coda_lab.experiments.hostile.kinds import JOB, NAMESPACES, Kind
from coda_lab.experiments.hostile.nastiness import MERGE, Hostile

AT_ONCE: Final = 6
PATIENCE_S: Final = 30.0
MOST_TRIES: Final = 4  # objects for each that shall be stored: the others are refused
_JSON: Final = "application/json"
_DELETION: Final = json.dumps(
    {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background", "gracePeriodSeconds": 0}
).encode()


class RawClient:
    """Sends bytes as they are, which no honest client would."""

    def __init__(self, session: aiohttp.ClientSession, server: str, context: ssl.SSLContext) -> None:
        self._session = session
        self._server = server
        self._context = context

    @classmethod
    @asynccontextmanager
    async def opened(cls, api: Client) -> AsyncIterator[RawClient]:
        """With the server and the identity of `api`."""
        known = await api.connection()
        context = ssl.create_default_context(cafile=known["ca_path"])
        headers = {"Authorization": f"{known['scheme']} {known['token']}"}
        timeout = aiohttp.ClientTimeout(total=PATIENCE_S)
        async with aiohttp.ClientSession(headers=headers, timeout=timeout) as session:
            yield cls(session, known["server"], context)

    async def send(self, verb: str, path: str, body: bytes, content_type: str = _JSON) -> tuple[int, str]:
        """The status, and the API server's sentence when it refuses. Status 0: no answer."""
        headers = {"Content-Type": content_type}
        url = self._server + path
        try:
            async with self._session.request(verb, url, data=body, headers=headers, ssl=self._context) as answer:
                text = await answer.text(errors="replace")
                return answer.status, "" if answer.status < 300 else _sentence(text)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            return 0, str(error) or type(error).__name__

    async def read(self, path: str, accept: str) -> Any:
        """GET in the form that `accept` names. Raises Outage."""
        try:
            async with self._session.get(self._server + path, headers={"Accept": accept}, ssl=self._context) as answer:
                if answer.status != 200:
                    raise Outage(f"GET {path}: HTTP {answer.status}: {(await answer.text())[:200]}")
                return json.loads(await answer.read())
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise Outage(f"GET {path}: {str(error) or type(error).__name__}") from error


@dataclass(slots=True, kw_only=True)
class Tally:
    """What became of the objects. `refusals`: one sentence for each way of being refused."""

    sent: Counter[str] = field(default_factory=Counter)
    stored: Counter[tuple[str, str]] = field(default_factory=Counter)  # (kind, way)
    refused: Counter[tuple[str, int]] = field(default_factory=Counter)  # (way, status)
    unclear: list[str] = field(default_factory=list)
    examples: dict[str, str] = field(default_factory=dict)
    deeds: Counter[tuple[str, str]] = field(default_factory=Counter)  # (way, "done" or status)
    bytes_stored: int = 0
    jobs: dict[str, str] = field(default_factory=dict)  # stored TrainingJobs: name -> way

    @property
    def stored_count(self) -> int:
        """How many were stored."""
        return sum(self.stored.values())

    @property
    def kinds(self) -> int:
        """Of how many kinds."""
        return len({kind for kind, _ in self.stored})


class Sender:
    """Stores objects until `count` are stored, evenly over `over_s` seconds as far as the machine can."""

    def __init__(self, user: RawClient, admin: RawClient, *, count: int, over_s: float) -> None:
        self.tally = Tally()
        self._user = user
        self._admin = admin
        self._count = count
        self._gap_s = over_s / count
        self._taken = 0

    async def run(self, objects: Iterator[Hostile]) -> None:
        """Work through `objects`."""
        began_s = time.monotonic()
        async with asyncio.TaskGroup() as workers:
            for _ in range(AT_ONCE):
                workers.create_task(self._work(objects, began_s))

    async def _work(self, objects: Iterator[Hostile], began_s: float) -> None:
        while self.tally.stored_count < self._count and self._taken < MOST_TRIES * self._count:
            self._taken += 1
            hostile = next(objects)
            await asyncio.sleep(max(0.0, began_s + self.tally.stored_count * self._gap_s - time.monotonic()))
            await self._store(hostile)

    async def _store(self, hostile: Hostile) -> None:
        tally, client = self.tally, self._user if hostile.kind.is_users else self._admin
        tally.sent[hostile.way] += 1
        status, said = await client.send("POST", hostile.kind.path(hostile.namespace), hostile.body)
        if status not in (200, 201):
            self._refused(hostile, status, said)
            return
        tally.stored[hostile.kind.name, hostile.way] += 1
        tally.bytes_stored += len(hostile.body)
        if hostile.kind is JOB:
            tally.jobs[f"{hostile.namespace}/{hostile.name}"] = hostile.way
        for deed in hostile.deeds:
            path = hostile.path + deed.suffix
            status, _ = await client.send(deed.verb, path, deed.body, deed.content_type)
            tally.deeds[hostile.way, "done" if 200 <= status < 300 else str(status)] += 1

    def _refused(self, hostile: Hostile, status: int, said: str) -> None:
        self.tally.refused[hostile.way, status] += 1
        self.tally.examples.setdefault(f"{hostile.way} {hostile.kind.name} {status}", said[:300])
        if status == 0 or not said.strip():
            self.tally.unclear.append(f"{hostile.kind.name} {hostile.name} ({hostile.way}): {status}: {said[:200]}")


async def remove_all(admin: RawClient, kind: Kind) -> None:
    """Delete every object of `kind` that was stored."""
    if kind.is_namespaced:
        for namespace in NAMESPACES:
            await admin.send("DELETE", kind.path(namespace), _DELETION)
        return
    for path in await paths_of(admin, kind):
        await admin.send("DELETE", path, _DELETION)


async def paths_of(client: RawClient, kind: Kind) -> list[str]:
    """The paths of the objects of `kind` that exist. Only their metadata is read: the rest may be unreadable."""
    form = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"
    found: list[str] = []
    for namespace in NAMESPACES if kind.is_namespaced else ("",):
        answer = await client.read(kind.path(namespace), form)
        names = [str(item["metadata"]["name"]) for item in answer["items"] or ()]
        ours = [name for name in names if name[:1] in "hp" and name[1:].isdigit()]
        found += [f"{kind.path(namespace)}/{name}" for name in ours]
    return found


async def release(admin: RawClient, path: str) -> None:
    """Take away the finalizers that its owner made up. Coda's own stays on its jobs: Coda must lift it."""
    known = await admin.read(path, "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io")
    finalizers = known["metadata"].get("finalizers") or []
    kept = [name for name in finalizers if name == FINALIZER and JOB.plural in path]
    if kept != finalizers:
        await admin.send("PATCH", path, json.dumps({"metadata": {"finalizers": kept}}).encode(), MERGE)


async def rows_of(client: RawClient, kind: Kind) -> dict[str, dict[str, Any]]:
    """The printed columns of the objects of `kind`, by `namespace/name`."""
    found: dict[str, dict[str, Any]] = {}
    for namespace in NAMESPACES:
        path = f"{kind.path(namespace)}?includeObject=None"
        answer = await client.read(path, "application/json;as=Table;v=v1;g=meta.k8s.io")
        columns = [str(column["name"]) for column in answer["columnDefinitions"]]
        for row in answer["rows"] or ():
            cells = dict(zip(columns, row["cells"], strict=True))
            found[f"{namespace}/{cells['Name']}"] = cells
    return found


def _sentence(text: str) -> str:
    try:
        return str(json.loads(text).get("message") or "")
    except (ValueError, AttributeError):
        return text
