"""`python -m coda_operator`: wiring only. Watch always, reconcile while the Lease is ours, end when it is lost."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
import uuid

import kopf

from coda.errors import CodaError
from coda_kube.client import connect
from coda_kube.lease import Elector, lead
from coda_kube.naming import OPERATOR_LEASE, SYSTEM_NAMESPACE
from coda_kube.probes import Probes
from coda_operator.cluster import Cluster
from coda_operator.events import Recorder
from coda_operator.handlers import registry_for
from coda_operator.reconciling import Reconciler
from coda_operator.settings import Settings
from coda_operator.workers import Workers

log = logging.getLogger("coda_operator")


async def run(settings: Settings) -> int:
    """Run one replica until SIGTERM (0) or until its Lease is lost (1: start it again)."""
    client = await connect(settings.kubeconfig)
    identity = f"{settings.identity}_{uuid.uuid4().hex[:8]}"
    elector = Elector(client, SYSTEM_NAMESPACE, OPERATOR_LEASE, identity, settings.lease_times())
    workers = Workers(lambda key: reconciler.reconcile(key))
    cluster = Cluster(client, lambda key: workers.wake(key) if elector.held() else None)
    recorder = Recorder(client, settings.identity)
    reconciler = Reconciler(
        client,
        cluster,
        recorder,
        settings.lifecycle(),
        may_write=elector.held,
        writes_in_flight=settings.writes_in_flight,
    )

    async def operate() -> None:
        await cluster.synced()
        log.info("leading as %s, epoch %d", identity, elector.epoch)
        connection = await client.connection()
        await kopf.operator(
            registry=registry_for(cluster, kopf.ConnectionInfo(**connection)), clusterwide=True, standalone=True
        )

    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    probes = Probes(ready=cluster.is_synced)
    await probes.start(settings.host, settings.metrics_port)
    background = [asyncio.create_task(work) for work in (cluster.run(), recorder.run())]
    leading = asyncio.create_task(lead(elector, lambda: asyncio.create_task(operate())))
    try:
        await asyncio.wait({leading, asyncio.create_task(stopping.wait())}, return_when=asyncio.FIRST_COMPLETED)
        if leading.done():
            leading.result()
            log.error("the Lease is lost; ending so that a fresh process takes part")
            return 1
        return 0
    finally:
        leading.cancel()
        await asyncio.gather(leading, return_exceptions=True)
        await workers.stop()
        for task in background:
            task.cancel()
        await asyncio.gather(*background, return_exceptions=True)
        await probes.stop()
        await client.close()


def main() -> None:
    """Read the settings, run, and turn what goes wrong into one sentence and an exit code."""
    try:
        settings = Settings()
    except ValueError as error:
        sys.exit(f"coda-operator: bad setting: {error}")
    logging.basicConfig(level=settings.log_level, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    logging.getLogger("kopf.objects").setLevel(logging.WARNING)
    log.info("settings: %s", settings.model_dump())
    try:
        sys.exit(asyncio.run(run(settings)))
    except CodaError as error:
        sys.exit(f"coda-operator: {error}")


if __name__ == "__main__":
    main()
