"""`python -m coda_lab.kubelets`: wiring only. Prints `ready` once every node is registered; runs until SIGTERM."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import sys
import time
from collections.abc import Sequence
from dataclasses import replace

from coda.errors import CodaError
from coda_kube.api.client import Client, connect
from coda_kube.objects.json_types import Json
from coda_lab.host.signals import run_until_signalled
from coda_lab.kubelets.admission import Ledger, amounts_from_quantities
from coda_lab.kubelets.fleet import Fleet
from coda_lab.kubelets.list_watch import follow
from coda_lab.kubelets.machine import Machine
from coda_lab.kubelets.node_heartbeats import Registrar
from coda_lab.kubelets.nodes import LABEL_SIMULATED, PODS_PER_NODE, NodeSpec, node_specs
from coda_lab.kubelets.pods.gang_start_times import Placements
from coda_lab.kubelets.pods.log_server import listen, serve_logs, tls_context
from coda_lab.kubelets.pods.status_writer import Reporter


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line, read."""
    parser = argparse.ArgumentParser(prog="python -m coda_lab.kubelets", description=__doc__)
    parser.add_argument("--kubeconfig", required=True, help="how to reach the API server")
    parser.add_argument("--nodes", required=True, metavar="SHAPES", help="count x GPUs x cores, such as 8x8x48,4x4x28")
    parser.add_argument("--racks", type=int, default=1, help="contiguous blocks of nodes (default 1)")
    parser.add_argument("--prefix", default="node", help="of the nodes' names (default node: node-0000, ...)")
    parser.add_argument("--memory", default="512Gi", help="per node (default 512Gi)")
    parser.add_argument("--pods-per-node", type=int, default=PODS_PER_NODE, help=f"at most (default {PODS_PER_NODE})")
    parser.add_argument("--seats", type=int, default=0, help="on each GPU, for opportunistic jobs (default none)")
    parser.add_argument("--taint-pool", action="store_true", help="taint the nodes as Coda's pool")
    parser.add_argument("--port", type=int, default=0, help="for container logs; 0 takes a free one (default)")
    parser.add_argument("--tls-cert", required=True, help="certificate of that port, PEM")
    parser.add_argument("--tls-key", required=True, help="its key, PEM")
    parser.add_argument("--log-level", default="INFO", choices=("DEBUG", "INFO", "WARNING", "ERROR"))
    return parser.parse_args(words)


def _machines(specs: Sequence[NodeSpec]) -> list[Machine]:
    return [
        Machine(name=spec.name, index=spec.index, ledger=Ledger(amounts_from_quantities(spec.allocatable)))
        for spec in specs
    ]


async def _follow_pods(client: Client, fleet: Fleet) -> None:
    def gone(item: Json) -> None:
        fleet.pod_gone(item["metadata"]["uid"])

    bound = {"fieldSelector": "spec.nodeName!="}
    await follow(client, "/api/v1/pods", bound, listed=fleet.pods_listed, seen=fleet.pod_seen, gone=gone)


async def _follow_nodes(client: Client, fleet: Fleet) -> None:
    def gone(item: Json) -> None:
        fleet.node_gone(item["metadata"]["name"])

    ours = {"labelSelector": f"{LABEL_SIMULATED}=true"}
    await follow(client, "/api/v1/nodes", ours, listed=fleet.nodes_listed, seen=fleet.node_seen, gone=gone)


async def run(options: argparse.Namespace) -> None:
    """Be the kubelets until cancelled. Raises CodaError when it cannot start."""
    found = node_specs(
        options.nodes,
        racks=options.racks,
        prefix=options.prefix,
        memory=options.memory,
        is_tainted=options.taint_pool,
    )
    specs = tuple(replace(spec, pods=options.pods_per_node, seats=options.seats) for spec in found)
    tls = tls_context(options.tls_cert, options.tls_key)
    listener = listen(options.port)
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(listener.close)
        client = await connect(options.kubeconfig, timeout_s=10.0)
        stack.push_async_callback(client.close)
        reporter = Reporter(client)
        fleet = Fleet(
            _machines(specs), now=time.time, later=asyncio.get_running_loop().call_later, report=reporter.report
        )
        registrar = Registrar(client, specs, fleet.machines, listener.getsockname()[1])
        placements = Placements(client, fleet.placed)
        fleet.returned, fleet.ask_placed = registrar.returned, placements.ask
        await stack.enter_async_context(serve_logs(fleet, listener, tls))
        began_s = time.monotonic()
        await registrar.register_all()
        logging.info("%d nodes registered in %.1f s", len(specs), time.monotonic() - began_s)
        async with asyncio.TaskGroup() as group:
            for work in (reporter.run(), registrar.keep_leases(), placements.run()):
                group.create_task(work)
            for following in (_follow_pods(client, fleet), _follow_nodes(client, fleet)):
                group.create_task(following)
            sys.stdout.write("ready\n")
            sys.stdout.flush()


def main() -> int:
    """Exit code 0 after a signal, 1 when it could not start (one sentence says why)."""
    options = arguments()
    logging.basicConfig(level=options.log_level, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    try:
        asyncio.run(run_until_signalled(run(options)))
    except CodaError as error:
        sys.stderr.write(f"kubelets: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
