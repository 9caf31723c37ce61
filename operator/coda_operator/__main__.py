"""`python -m coda_operator`: wiring only. Watch always, reconcile while the Lease is ours, end when it is lost."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
import uuid
from collections.abc import Callable

from prometheus_client import REGISTRY

from coda.errors import CodaError, InvalidInput
from coda_kube.client import Client, connect
from coda_kube.lease import Elector, lead
from coda_kube.naming import OPERATOR_LEASE, SYSTEM_NAMESPACE
from coda_kube.probes import Probes
from coda_operator.cluster import Cluster
from coda_operator.events import Recorder
from coda_operator.feeding import feed
from coda_operator.metrics import Metrics
from coda_operator.reconciling import Reconciler
from coda_operator.requesting import Requests
from coda_operator.settings import Settings, read_settings
from coda_operator.workers import Workers

log = logging.getLogger("coda_operator")


async def run(settings: Settings) -> int:
    """Run one replica until SIGTERM (0) or until its Lease is lost (1: start it again). Raises a CodaError."""
    client = await connect(settings.kubeconfig)
    try:
        return await _run(settings, client)
    finally:
        await client.close()


async def _run(settings: Settings, client: Client) -> int:
    identity = f"{settings.identity}_{uuid.uuid4().hex[:8]}"
    elector = Elector(client, SYSTEM_NAMESPACE, OPERATOR_LEASE, identity, settings.lease_times())
    metrics = Metrics(REGISTRY)
    workers = Workers(lambda key: metrics.timed(reconciler.reconcile(key)))
    cluster = Cluster(client, workers.wake)
    recorder = Recorder(client, settings.identity)
    requests = Requests(elector.held, at_once=settings.writes_in_flight)
    reconciler = Reconciler(client, cluster, requests, recorder, metrics, settings.lifecycle())
    metrics.show_leader(elector.held)
    metrics.show_jobs(cluster.jobs.by_key.values)
    stopping = asyncio.Event()
    listen = _signals_to(stopping)
    listen()

    async def operate() -> None:
        await cluster.synced()
        log.info("leading as %s, epoch %d", identity, elector.epoch)
        await feed(cluster, client, listen)

    probes = Probes(ready=cluster.is_synced)
    await _serve(probes, settings)
    leading = asyncio.create_task(lead(elector, lambda: asyncio.create_task(operate())))
    background = [asyncio.create_task(work) for work in (cluster.run(), recorder.run(), stopping.wait())]
    try:
        await asyncio.wait({leading, *background}, return_when=asyncio.FIRST_COMPLETED)
        if stopping.is_set():
            return 0
        for task in (leading, *background):  # none of them ends by itself but the first, when the Lease is lost
            if task.done():
                task.result()
        log.error("the Lease is lost; ending so that a fresh process takes part")
        return 1
    finally:
        await workers.stop()  # first: nothing is begun any more, and nothing is under way when the Lease is given back
        for task in (leading, *background):
            task.cancel()
        await asyncio.gather(leading, *background, return_exceptions=True)
        await probes.stop()


def _signals_to(stopping: asyncio.Event) -> Callable[[], None]:
    def listen() -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stopping.set)

    return listen


async def _serve(probes: Probes, settings: Settings) -> None:
    try:
        await probes.start(settings.host, settings.metrics_port)
    except OSError as error:
        where = f"{settings.host}:{settings.metrics_port}"
        raise InvalidInput(f"cannot listen on {where} ({error.strerror}); set CODA_METRICS_PORT") from error


def main() -> None:
    """Read the settings, run, and turn what goes wrong into one sentence and an exit code."""
    try:
        settings = read_settings()
        logging.basicConfig(level=settings.log_level, format="%(asctime)s %(levelname)s %(name)s %(message)s")
        logging.getLogger("kopf.objects").setLevel(logging.WARNING)
        log.info("settings: %s", settings.model_dump())
        sys.exit(asyncio.run(run(settings)))
    except CodaError as error:
        sys.exit(f"coda-operator: {error}")


if __name__ == "__main__":
    main()
