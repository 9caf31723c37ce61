"""`python -m coda_agent`: wiring only. Undo what an earlier agent left, run rounds until SIGTERM, undo again."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import signal
import sys
import time
from collections.abc import Callable, Sequence

from prometheus_client import REGISTRY

from coda.errors import CodaError, InvalidInput
from coda_agent.cluster import AgentCaches
from coda_agent.gpus import LibraryState, Moment
from coda_agent.loop import Loop
from coda_agent.node import Node
from coda_agent.report import Metrics, with_throttles
from coda_agent.settings import Settings, read_settings
from coda_kube.api.cache_metrics import CacheMetrics
from coda_kube.api.client import Client, connect
from coda_kube.api.probes import Probes
from coda_kube.metrics_access import judge_of

log = logging.getLogger("coda_agent")

OpenNode = Callable[[Settings, bool], Node]
"""Opens the node by the settings; True: only to read it."""

ONCE_ROUNDS = 10
"""Most rounds of `--once` after the first. Opening NVML takes seconds where nothing else keeps the GPUs open."""


async def run(settings: Settings, node: Node, *, once: bool) -> None:
    """Run until SIGTERM, or print the findings of one round. Raises a CodaError."""
    client = await connect(settings.kubeconfig)
    cluster = AgentCaches(client, settings.node_name)
    metrics = Metrics(REGISTRY, settings.node_name)
    REGISTRY.register(CacheMetrics(cluster.all))
    metrics.set_restored(len(node.restoration.put_back))
    loop = Loop(settings, node, cluster, metrics, clock=lambda: _moment(client))
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    probes = Probes(ready=cluster.is_synced, alive=loop.is_alive, judge=judge_of(settings.metrics_access, client))
    watching = asyncio.create_task(cluster.run())
    try:
        if once:
            await _print_profile(loop, cluster, settings)
            return
        await _serve(probes, settings)
        rounds = asyncio.create_task(loop.run(stopping))
        await asyncio.wait({rounds, watching}, return_when=asyncio.FIRST_COMPLETED)
        stopping.set()  # without its watch the list of pods would never change again
        await rounds
        if watching.done():
            watching.result()
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        await probes.stop()
        await client.close()


def _moment(client: Client) -> Moment:
    """Now. Wishes are dated by the API server's time: the planner judges their deadlines by the same."""
    return Moment(monotonic_s=time.monotonic(), wall_s=client.clock(), node_wall_s=time.time())


async def _print_profile(loop: Loop, cluster: AgentCaches, settings: Settings) -> None:
    """Several rounds, because rates are differences and the GPU driver opens slowly; then print the NodeProfile."""
    try:
        await asyncio.wait_for(cluster.synced(), timeout=30.0)
        await loop.round()
        for _ in range(ONCE_ROUNDS):
            await asyncio.sleep(settings.contention_window_s)
            senses = await loop.round()
            if senses.gpus.library is not LibraryState.SILENT:
                break
        print(json.dumps(loop.profile(senses), indent=2))  # noqa: T201  this is what was asked for
    except TimeoutError:
        raise InvalidInput("the API server did not list this node's pods within 30 s") from None
    finally:
        await loop.end()


async def _report_restored(settings: Settings, node: Node) -> None:
    """Write into the NodeProfile which throttles are left, so that they no longer count as stale. Asks no sensor."""
    client = await connect(settings.kubeconfig)
    try:
        await AgentCaches(client, settings.node_name).write_throttles(with_throttles({}, node.throttles), time.time())
    finally:
        await client.close()


async def _serve(probes: Probes, settings: Settings) -> None:
    try:
        await probes.start(settings.host, settings.metrics_port)
    except OSError as error:
        where = f"{settings.host}:{settings.metrics_port}"
        raise InvalidInput(f"cannot listen on {where} ({error.strerror}); set CODA_METRICS_PORT") from error


def _options(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="coda-agent", description="The node daemon of Coda. Settings: CODA_* variables."
    )
    parser.add_argument("--once", action="store_true", help="measure once, print the node's profile as JSON, end")
    parser.add_argument("--dry-run", action="store_true", help="measure and decide, but write nothing anywhere")
    parser.add_argument("--restore", action="store_true", help="undo what an earlier agent left on this node, end")
    return parser.parse_args(words)


def _open_node(settings: Settings, reads_only: bool) -> Node:
    return Node(settings, reads_only=reads_only)


def main(words: Sequence[str] | None = None, open_node: OpenNode = _open_node) -> None:
    """Read the settings and run; turn an error into one sentence and an exit code.

    `words`: the command line; None: of this process. `open_node`: lets an emulated node replace the real one."""
    options = _options(words)
    try:
        settings = read_settings()
        logging.basicConfig(level=settings.log_level, format="%(asctime)s %(levelname)s %(name)s %(message)s")
        log.info("settings: %s", settings.model_dump(mode="json"))
        node = open_node(settings, options.dry_run or options.once)
        try:
            for entry in node.restoration.put_back:
                log.info("put back what an earlier agent left: %s", entry.target)
            for sentence in node.restoration.failures:
                log.error("left behind by an earlier agent: %s", sentence)
            if options.restore:
                asyncio.run(_report_restored(settings, node))
                sys.exit("; ".join(node.restoration.failures) or 0)
            asyncio.run(run(settings, node, once=options.once))
        finally:
            node.close()
    except CodaError as error:
        sys.exit(f"coda-agent: {error}")


if __name__ == "__main__":
    main()
