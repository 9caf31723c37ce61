"""`python -m coda_operator`: wiring. Every replica watches pods and nodes; the leader also watches jobs and works."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from prometheus_client import REGISTRY

from coda.errors import CodaError, InvalidInput
from coda_kube.api.cache_metrics import CacheMetrics
from coda_kube.api.client import Client, connect
from coda_kube.api.lease import Elector, lead
from coda_kube.api.probes import Probes
from coda_kube.metrics_access import judge_of
from coda_kube.objects.names import OPERATOR_LEASE, SYSTEM_NAMESPACE
from coda_kube.served_schema import ServedSchema
from coda_operator.certificates import Certificates
from coda_operator.cordon_writer import Cordons
from coda_operator.cores_limit import CoresLimit
from coda_operator.cpu_history import CpuHistory, Retention
from coda_operator.failure_rules import read_failure_rules
from coda_operator.feed import feed
from coda_operator.history import HistoryKeeper, store_of
from coda_operator.liveness import Liveness
from coda_operator.memory_trim import trim_after_bursts
from coda_operator.metrics import Metrics
from coda_operator.pool_list import PoolList
from coda_operator.reconcile import OwnerlessPods, Reconciler, Recorder, RequestSlots
from coda_operator.settings import Settings, read_settings
from coda_operator.throttle_recovery import ThrottleRecovery
from coda_operator.trials import Trials
from coda_operator.view import Agents, ClusterView
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
    clock = client.clock
    queue = WorkQueue(lambda key: metrics.timed(reconciler.reconcile(key)), clock=clock)
    cluster = ClusterView(client, queue.wake, queue.wake_soon, clock=clock, config=settings.lifecycle())
    schema = ServedSchema(client)
    recorder = Recorder(client, settings.identity)
    requests = RequestSlots(elector.held, at_once=settings.writes_in_flight)
    store = store_of(
        settings.history_url.get_secret_value(),
        settings.history_file,
        url_file=settings.history_url_file,
        ca_file=settings.history_ca_file,
    )
    kept = Retention(cpu_days=settings.history_cpu_days, job_days=settings.history_days)
    cpu_history = CpuHistory(store, client, REGISTRY, kept=kept, clock=clock)
    history = HistoryKeeper(
        store,
        client,
        queue.wake,
        cluster.learned_cores,
        REGISTRY,
        cpu_jobs_away=cpu_history.is_away,
        clock=clock,
    )
    lifecycle = settings.lifecycle()
    rules = read_failure_rules(settings.failure_rules)
    trials = Trials(client, settings.trial_node_selector())
    reconciler = Reconciler(
        client,
        cluster,
        requests,
        recorder,
        metrics,
        lifecycle,
        history.outbox,
        clock=clock,
        rules=rules.book,
        trials=trials,
        pool_taints=settings.pool_taint_keys(),
        cores_limit=CoresLimit(per_gpu=settings.most_cores_per_gpu),
    )
    metrics.show_failure_rules(rules.accepted, len(rules.refused))
    metrics.show_leader(elector.held)
    metrics.show_nodes(cluster.nodes.unready_count, cluster.nodes.is_braked)
    metrics.show_jobs(cluster.jobs.by_key.values, clock)
    metrics.show_waits(lambda: cluster.times.booked_s(clock()))
    REGISTRY.register(CacheMetrics(lambda: (cluster.jobs, cluster.pods, cluster.nodes.cache)))
    makes_certificates = settings.certificates == "own"
    stopping = asyncio.Event()
    listen = _signals_to(stopping)
    listen()

    def works() -> tuple[Coroutine[Any, Any, None], ...]:
        cluster.agents = Agents(client, clock)  # of this term: what an earlier one knew is old
        return (
            feed(cluster, client, listen),
            schema.wait_until_incomplete(),
            ThrottleRecovery(client, cluster.agents.cache, clock=clock).run(),
            OwnerlessPods(client, cluster, requests, clock=clock).run(),
            *([Certificates(client, metrics.show_certificates, clock=clock).run()] if makes_certificates else []),
            Cordons(
                client,
                cluster,
                metrics.show_cordons,
                identity=settings.identity,
                share=settings.cordon_share,
                cordon_s=settings.cordon_s,
                clock=clock,
            ).run(),
            PoolList(client, is_shared=settings.pool_mode == "shared").run(),
            history.publish(),
            cpu_history.record(),
        )

    liveness = Liveness(
        elector.held, queue.is_busy, lambda: requests.used + queue.done, cluster.unheard_since_s, clock=clock
    )

    async def lead_whenever_possible() -> None:
        while True:
            await schema.wait_until_complete()
            metrics.begin_term()
            await lead(elector, lambda: asyncio.create_task(_term(cluster, queue, works, liveness)))

    judge = judge_of(settings.metrics_access, client)
    probes = Probes(ready=lambda: cluster.is_synced() and schema.is_complete, alive=liveness.is_alive, judge=judge)
    await _serve(probes, settings)
    history.start()
    leading = asyncio.create_task(lead_whenever_possible())
    watching = (cluster.run(), trials.run(), cpu_history.watch())
    in_every_replica = (*watching, recorder.run(), trim_after_bursts(), stopping.wait())
    background = [asyncio.create_task(work) for work in in_every_replica]
    try:
        await asyncio.wait({leading, *background}, return_when=asyncio.FIRST_COMPLETED)
        for task in (leading, *background):  # only the signal ends without an error
            if task.done():
                task.result()
    finally:
        for task in (leading, *background):
            task.cancel()
        await asyncio.gather(leading, *background, return_exceptions=True)
        history.stop()
        await probes.stop()


async def _term(
    cluster: ClusterView,
    queue: WorkQueue,
    works: Callable[[], Iterable[Coroutine[Any, Any, None]]],
    liveness: Liveness,
) -> None:
    """Do `works` while the Lease is held, until cancelled. Afterwards no job is known: the next term lists them."""
    await cluster.synced()
    log.info("leading")
    cluster.listing.set()  # until kopf has told of every job
    queue.start()
    liveness.set_term(works=True)
    tasks = {asyncio.create_task(work) for work in works()}
    try:
        ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in ended:  # none ends without an error of our own
            task.result()
    finally:
        liveness.set_term(works=False)
        await queue.stop()  # first: no write is under way when the Lease is given back
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
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
        with asyncio.Runner() as runner:
            runner.run(run(settings))
    except CodaError as error:
        sys.exit(f"coda-operator: {error}")


if __name__ == "__main__":
    main()
