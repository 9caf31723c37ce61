"""`python -m coda_operator`: wiring. Every replica watches pods and nodes; the leader also watches jobs and works."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import Callable

import uvloop
from prometheus_client import REGISTRY

from coda.errors import CodaError, InvalidInput
from coda_kube.api.client import Client, connect
from coda_kube.api.lease import Elector, lead
from coda_kube.api.probes import Probes
from coda_kube.objects.names import OPERATOR_LEASE, SYSTEM_NAMESPACE
from coda_operator.feed import feed
from coda_operator.memory_trim import trim_after_bursts
from coda_operator.metrics import Metrics
from coda_operator.reconcile import Reconciler, Recorder, RequestSlots
from coda_operator.settings import Settings, read_settings
from coda_operator.throttle_recovery import ThrottleRecovery
from coda_operator.view import ClusterView
from coda_operator.work_queue import WorkQueue

log = logging.getLogger("coda_operator")


async def run(settings: Settings) -> None:
    """Run one replica until SIGTERM. Raises a CodaError."""
    client = await connect(settings.kubeconfig)
    try:
        await _run(settings, client)
    finally:
        await client.close()


async def _run(settings: Settings, client: Client) -> None:
    elector = Elector(client, SYSTEM_NAMESPACE, OPERATOR_LEASE, settings.identity, settings.lease_times())
    metrics = Metrics(REGISTRY)
    queue = WorkQueue(lambda key: metrics.timed(reconciler.reconcile(key)))
    cluster = ClusterView(client, queue.wake, queue.wake_soon)
    recorder = Recorder(client, settings.identity)
    requests = RequestSlots(elector.held, at_once=settings.writes_in_flight)
    reconciler = Reconciler(client, cluster, requests, recorder, metrics, settings.lifecycle())
    metrics.show_leader(elector.held)
    metrics.show_jobs(cluster.jobs.by_key.values)
    stopping = asyncio.Event()
    listen = _signals_to(stopping)
    listen()

    async def lead_whenever_possible() -> None:
        while True:
            await lead(elector, lambda: asyncio.create_task(_term(cluster, client, queue, listen)))

    probes = Probes(ready=cluster.is_synced)
    await _serve(probes, settings)
    leading = asyncio.create_task(lead_whenever_possible())
    background = [
        asyncio.create_task(work) for work in (cluster.run(), recorder.run(), trim_after_bursts(), stopping.wait())
    ]
    try:
        await asyncio.wait({leading, *background}, return_when=asyncio.FIRST_COMPLETED)
        for task in (leading, *background):  # only the signal ends without an error
            if task.done():
                task.result()
    finally:
        for task in (leading, *background):
            task.cancel()
        await asyncio.gather(leading, *background, return_exceptions=True)
        await probes.stop()


async def _term(cluster: ClusterView, client: Client, queue: WorkQueue, listen: Callable[[], None]) -> None:
    """Work while the Lease is held, until cancelled. Afterwards no job is known; the next term lists them again."""
    await cluster.synced()
    log.info("leading")
    queue.start()
    feeding = asyncio.create_task(feed(cluster, client, listen))
    recovering = asyncio.create_task(ThrottleRecovery(client).run())
    try:
        ended, _ = await asyncio.wait({feeding, recovering}, return_when=asyncio.FIRST_COMPLETED)
        for task in ended:  # neither ends without an error of our own
            task.result()
    finally:
        await queue.stop()  # first: no write is under way when the Lease is given back
        for task in (feeding, recovering):
            task.cancel()
        await asyncio.gather(feeding, recovering, return_exceptions=True)
        cluster.forget_jobs()


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
    """Read the settings and run. An error becomes one sentence and exit code 1."""
    try:
        settings = read_settings()
        logging.basicConfig(level=settings.log_level, format="%(asctime)s %(levelname)s %(name)s %(message)s")
        logging.getLogger("kopf.objects").setLevel(logging.WARNING)
        log.info("settings: %s", settings.model_dump())
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(run(settings))
    except CodaError as error:
        sys.exit(f"coda-operator: {error}")


if __name__ == "__main__":
    main()
