"""`python -m coda_extender`: wiring only."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import uvicorn

from coda.errors import CodaError, InvalidInput
from coda_extender.cluster.cluster import ExtenderCluster
from coda_extender.cluster.use_metrics import UseMetrics
from coda_extender.http.app import Dependencies, create_app, create_status_app
from coda_extender.http.connections import ConnectionLimits, OpenConnections, connections_of
from coda_extender.http.server import Server, VerbServer
from coda_extender.http.tls import ServerTls
from coda_extender.metrics import Metrics
from coda_extender.planner.leader_label import LeaderLabel
from coda_extender.planner.planner import Planner, PlannerConfig
from coda_extender.settings import Settings, read_settings
from coda_kube.api.cache_metrics import CacheMetrics
from coda_kube.api.client import Client, connect
from coda_kube.api.lease import Elector
from coda_kube.listening import listening_socket
from coda_kube.metrics_access import judge_of
from coda_kube.objects.names import PLANNER_LEASE, SYSTEM_NAMESPACE

log = logging.getLogger("coda_extender")

SWITCH_INTERVAL_S: Final = 0.0001  # how long a decision may keep a filter answer from the interpreter; measured
COLLECT_EVERY_S: Final = 0.1  # garbage of 2 s of planning stops answers for 10 ms, of 0.1 s for 2 ms; measured
WORTH_COLLECTING: Final = 500  # new objects: an idle process collects nothing
MOST_UNCOLLECTED: Final = 20_000  # new objects, then Python collects by itself
MOST_STATUS_CONNECTIONS: Final = 100  # kubelet and Prometheus have one each
KEEP_ALIVE_S: Final = 3600  # kube-scheduler keeps its connection; if we close it, its next call needs a retry


Serving = tuple[Server, Callable[[], Coroutine[Any, Any, None]]]
"""A server, and what serves until it is told to exit."""


def main() -> int:
    """Run until SIGTERM or SIGINT. Returns 2 for settings that no retry can mend."""
    try:
        settings = read_settings()
        logging.basicConfig(level=settings.log_level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
        log.info("settings: %s", settings.model_dump_json())
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        with asyncio.Runner() as runner:
            runner.run(_run(settings))
    except CodaError as error:
        print(f"coda_extender: {error}", file=sys.stderr)  # noqa: T201 - logging may not be set up yet
        return 2
    return 0


async def _run(settings: Settings) -> None:
    client = await connect(settings.kubeconfig)
    lease_client = await connect(settings.kubeconfig)  # writes that hang take every connection of the other
    try:
        await _serve(settings, client, lease_client)
    finally:
        await client.close()
        await lease_client.close()


async def _serve(settings: Settings, client: Client, lease_client: Client) -> None:
    metrics = Metrics()
    cluster = ExtenderCluster(
        client,
        in_flight_limit_s=settings.in_flight_limit_s,
        gather_s=settings.gather_s,
        priorities=settings.priorities(),
        shares_gpus=settings.sharing,
    )
    metrics.registry.register(CacheMetrics(cluster.caches))
    metrics.registry.register(UseMetrics(cluster))
    elector = Elector(
        lease_client,
        SYSTEM_NAMESPACE,
        PLANNER_LEASE,
        settings.identity,
        settings.lease_times(),
        known_epoch=cluster.state.known_epoch,
    )
    label = LeaderLabel(client, settings.pod_namespace, settings.pod_name)
    planner = Planner(client, cluster, elector, label, metrics, _planner_config(settings))
    dependencies = Dependencies(
        guard=cluster.guard,
        metrics=metrics,
        leads=planner.leads,
        synced=lambda: cluster.is_synced() and planner.schema.is_complete,
        alive=planner.is_alive,
        body_limit_bytes=settings.body_limit_bytes,
        judge=judge_of(settings.metrics_access, client),
    )
    tls = ServerTls(Path(settings.tls_dir)) if settings.tls_dir else None
    servers = _servers(settings, dependencies, tls)
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    background = [
        asyncio.create_task(cluster.run(), name="caches"),
        asyncio.create_task(planner.run(), name="planner"),
        *([asyncio.create_task(tls.follow(), name="certificates")] if tls is not None else []),
        asyncio.create_task(keep_collections_short(cluster.wait_until_synced()), name="memory"),
    ]
    try:
        await _serve_until_stopped(servers, stopping, background)
    finally:
        was_leading = planner.leads()
        for task in background:
            task.cancel()
        await asyncio.gather(*background, return_exceptions=True)  # the planner releases its Lease
        if was_leading:
            await label.drop()


async def _serve_until_stopped(
    servers: Sequence[Serving], stopping: asyncio.Event, background: list[asyncio.Task[None]]
) -> None:
    """Serve until a signal. A background task that ends is a bug of ours, and ends the process."""
    serving = [asyncio.create_task(serve()) for _, serve in servers]
    told = asyncio.create_task(stopping.wait())
    try:
        await asyncio.wait({told, *serving, *background[:-1]}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        told.cancel()
        for server, _ in servers:
            server.should_exit = True
        await asyncio.gather(*serving)
    for task in background:
        if task.done() and not task.cancelled() and (error := task.exception()) is not None:
            raise error


def _servers(settings: Settings, dependencies: Dependencies, tls: ServerTls | None) -> tuple[Serving, ...]:
    """The server of the verbs, and the one of probes and metrics. Raises InvalidInput if an address cannot be used."""
    metrics = dependencies.metrics
    connections = OpenConnections(_limits(settings), metrics.count_refused)
    verbs = VerbServer(
        _server_config(create_app(dependencies), http=connections_of(connections)),
        _listen(settings.host, settings.port, "CODA_PORT"),
        tls,
        metrics.count_refused,
    )
    status = Server(_server_config(create_status_app(dependencies), limit_concurrency=MOST_STATUS_CONNECTIONS))
    listening = _listen(settings.host, settings.metrics_port, "CODA_METRICS_PORT")
    return (verbs, verbs.serve), (status, partial(status.serve, sockets=[listening]))


def _listen(host: str, port: int, variable: str) -> socket.socket:
    """Return a socket bound there. Raises InvalidInput if the address cannot be used."""
    try:
        listening = listening_socket(host, port)
    except OSError as error:
        raise InvalidInput(
            f"cannot listen on {host}:{port}: {error.strerror}: change CODA_HOST or {variable}"
        ) from error
    log.info("listening on %s:%d", *listening.getsockname()[:2])
    return listening


async def keep_collections_short(filled: Awaitable[None]) -> None:
    """Hide the caches from the garbage collector once they are `filled`: a walk over 50 000 pods would stall answers.

    New objects are collected once, in small portions, and then hidden too. Reference counts free them later."""
    gc.set_threshold(MOST_UNCOLLECTED, 1_000, 1_000)
    await filled
    gc.collect()
    gc.freeze()
    while True:
        await asyncio.sleep(COLLECT_EVERY_S)
        new, collected_once, _ = gc.get_count()
        if new > WORTH_COLLECTING or collected_once:
            gc.collect(1)
            gc.freeze()


def _planner_config(settings: Settings) -> PlannerConfig:
    return PlannerConfig(
        policy=settings.policy(),
        scheduler_names=settings.scheduler_names,
        takeover_limit_s=settings.takeover_limit_s,
        settle_limit_s=settings.settle_limit_s,
        writes_at_once=settings.writes_at_once,
        answer_limit_s=settings.planner_answer_limit_s,
        hangs_s=settings.planner_answer_limit_s + 5.0,
        memory_bytes=settings.planner_memory_bytes,
    )


def _limits(settings: Settings) -> ConnectionLimits:
    framed = 2 * settings.body_limit_bytes  # a body in chunks takes more bytes than its content
    return ConnectionLimits(request_s=settings.request_limit_s, request_bytes=framed)


def _server_config(app: Any, **more: Any) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="error",  # a warning for each request that is not HTTP would fill disks; a metric counts them
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=2,
        **more,
    )


if __name__ == "__main__":
    sys.exit(main())
