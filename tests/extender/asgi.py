"""The HTTP side of an extender that leads two nodes, driven as an ASGI application."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import orjson

from coda_extender.guard.guard import Guard
from coda_extender.http.app import Asgi, Dependencies, create_app, create_status_app
from coda_extender.metrics import Metrics
from coda_kube.cluster_state import ClusterState
from tests.extender.objects import job_json, node_json, placement

LIMIT = 3 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return orjson.loads(self.body)


async def call(app: Asgi, method: str, path: str, chunks: Iterable[bytes | None] = (), **headers: str) -> Reply:
    """One request to an ASGI application. Chunks that it does not read are not produced; None is a disconnect."""
    pending = itertools.chain(chunks, [b""], itertools.repeat(None))
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        chunk = next(pending)
        if chunk is None:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": chunk, "more_body": bool(chunk)}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()],
    }
    await app(scope, receive, send)
    head = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return Reply(status=sent[0]["status"], headers=head, body=b"".join(part.get("body", b"") for part in sent[1:]))


def make_app(*, leads: bool = True, synced: bool = True) -> Asgi:
    """What kube-scheduler asks."""
    return create_app(make_dependencies(leads=leads, synced=synced))


def make_status_app(*, leads: bool = True, synced: bool = True) -> Asgi:
    """What kubelets and Prometheus ask."""
    return create_status_app(make_dependencies(leads=leads, synced=synced))


def make_dependencies(*, leads: bool = True, synced: bool = True) -> Dependencies:
    state = ClusterState()
    guard = Guard(state, in_flight_limit_s=30.0, clock=lambda: 0.0, on_settled=lambda: None)
    for name in ("n1", "n2"):
        state.on_node(None, node_json(name))
        guard.node_changed(name)
    gang = job_json("gang", placement=placement("n1"))
    gang["metadata"]["namespace"] = "default"
    state.on_job(None, gang)
    guard.job_changed(next(iter(state.job_json_by_id)))
    return Dependencies(
        guard=guard, metrics=Metrics(), leads=lambda: leads, synced=lambda: synced, body_limit_bytes=LIMIT
    )


APP = make_app()


def request(pod: Any, *names: str, **more: Any) -> bytes:
    return orjson.dumps({"Pod": pod, "Nodes": None, "NodeNames": list(names)} | more)
