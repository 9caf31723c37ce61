"""The two servers that filter latency is measured on: Coda's, beside a planner that decides without pause when told to;
and the least an extender in FastAPI can do, which says yes to everything."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import statistics
import sys
import time
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI, Request

from coda.policy import PolicyConfig
from coda_extender.__main__ import SWITCH_INTERVAL_S, keep_collections_short
from coda_extender.guard.guard import Guard
from coda_extender.http.app import Asgi, Dependencies, create_app
from coda_extender.http.connections import ConnectionLimits, OpenConnections, connections_of
from coda_extender.http.server import VerbServer
from coda_extender.http.tls import ServerTls
from coda_extender.metrics import Metrics
from coda_extender.planner.cycle import CycleRunner
from coda_extender.planner.snapshot_feed import SnapshotFeed
from coda_extender.planner_process.process import PlannerProcess
from coda_kube.api.watch_cache import key_of
from coda_kube.cluster_state import ClusterState
from coda_kube.objects.read import id_of
from planning_round import MadeCluster
from rig.worlds import Json

BODY_LIMIT_BYTES = 3 << 20


class Replica:
    """State and guard of one replica, told of changes as its caches tell it."""

    def __init__(self) -> None:
        self.state = ClusterState()
        self.guard = Guard(
            self.state, in_flight_limit_s=30.0, clock=time.monotonic, in_touch=lambda: True, on_settled=lambda: None
        )

    def on_node(self, old: Json | None, new: Json | None) -> None:
        self.state.on_node(old, new)
        self.guard.node_changed(key_of(new or old or {}))

    def on_pod(self, old: Json | None, new: Json | None) -> None:
        key = key_of(new or old or {})
        before = self.state.pod_by_id.get(key)
        self.state.on_pod(old, new)
        self.guard.pod_changed(before, self.state.pod_by_id.get(key), old, new)

    def on_job(self, old: Json | None, new: Json | None) -> None:
        self.state.on_job(old, new)
        self.guard.job_changed(id_of(new or old or {}))


def serve_coda(
    port: int, nodes: int, waiting: int, ready: Event, planning: Event, tls: tuple[int, str] | None = None
) -> None:
    """Coda's extender in a full cluster; rounds follow each other for as long as `planning` is set.

    `tls`: another port of the same, over mutual TLS as on a cluster, and the folder with the server's files."""
    replica, metrics = Replica(), Metrics()
    cluster = MadeCluster(nodes, waiting, seed=1, replica=replica)
    app = create_app(
        Dependencies(
            guard=replica.guard,
            metrics=metrics,
            leads=lambda: True,
            synced=lambda: True,
            body_limit_bytes=BODY_LIMIT_BYTES,
        )
    )
    sys.setswitchinterval(SWITCH_INTERVAL_S)

    async def run() -> None:
        servers = {asyncio.create_task(uvicorn.Server(_config(app, port, connections_of(_connections()))).serve())}
        if tls is not None:
            servers.add(asyncio.create_task(_over_tls(app, *tls).serve()))
        thinking = asyncio.create_task(plan_on(cluster, metrics, replica.guard, planning))
        collecting = asyncio.create_task(keep_collections_short(asyncio.sleep(0)))
        ready.set()
        await asyncio.wait({*servers, thinking, collecting}, return_when=asyncio.FIRST_COMPLETED)

    _run(run)


async def plan_on(cluster: MadeCluster, metrics: Metrics, guard: Guard, planning: Event) -> None:
    """What `Planner` does but for its writes, which the made cluster answers for: with a process that decides."""
    runner = CycleRunner(
        lambda: SnapshotFeed(cluster.state, guard.in_flight, dict),
        lambda: PlannerProcess.start(PolicyConfig(), memory_bytes=8 << 30),
        metrics,
        answer_limit_s=60.0,
        start_again_s=(),
        on_refusals=cluster.take_refusals,
        on_new_process=cluster.refusal_by_job.clear,
        in_flight=guard.in_flight.pods,
        now_s=time.time,
    )
    lasted_s: list[float] = []
    while True:
        if not planning.is_set():
            await asyncio.sleep(0.05)
            continue
        began_s = time.perf_counter()
        result = await runner.decide(1)
        metrics.show_queue(result)
        lasted_s.append(time.perf_counter() - began_s)
        for change in cluster.changes_after([*result.decision.starts]):
            cluster.happen([change])
            await asyncio.sleep(0)  # as between two events of a watch
        if len(lasted_s) % 100 == 0:
            median_ms = statistics.median(lasted_s) * 1e3
            print(f"  {len(cluster.refusal_by_job)} waiting, median round {median_ms:.0f} ms", file=sys.stderr)


def serve_echo(port: int, ready: Event) -> None:
    """The yardstick: FastAPI, the same server, the whole request as the answer."""
    app = FastAPI()

    @app.post("/filter")
    async def filter_(request: Request) -> dict[str, Any]:
        question = await request.json()
        return {"NodeNames": question["NodeNames"], "FailedNodes": {}, "Error": ""}

    @app.post("/prioritize")
    async def prioritize(request: Request) -> list[dict[str, Any]]:
        question = await request.json()
        return [{"Host": name, "Score": 0} for name in question["NodeNames"]]

    async def run() -> None:
        ready.set()
        await uvicorn.Server(_config(app, port, "httptools")).serve()

    _run(run)


def _over_tls(app: Asgi, port: int, folder: str) -> VerbServer:
    listening = socket.socket()
    listening.bind(("127.0.0.1", port))
    config = _config(app, port, connections_of(_connections()))
    return VerbServer(config, listening, ServerTls(Path(folder)), lambda _reason: None)


def _connections() -> OpenConnections:
    return OpenConnections(ConnectionLimits(), lambda _reason: None)


def _config(app: Asgi | FastAPI, port: int, http: Any) -> uvicorn.Config:
    return uvicorn.Config(app, port=port, http=http, ws="none", lifespan="off", log_config=None, access_log=False)


def _run(main: Any) -> None:
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main())
