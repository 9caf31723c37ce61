"""`python -m coda_lab.machines`: emulates the machines of the first simulated nodes, in real time, until SIGTERM.

Prints `ready` once agents can work on them. A machine that restarts has another boot id, as after a reset.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import shutil
import sys
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from coda.errors import CodaError
from coda_kube.api.client import Client, connect
from coda_kube.api.watch_cache import WatchCache
from coda_kube.objects.names import API_VERSION
from coda_lab.emulators.node import EmulatedNode
from coda_lab.emulators.pod_resources import ContainerDevices, PodResourcesServer
from coda_lab.host.signals import run_until_signalled
from coda_lab.kubelets.nodes import NodeSpec, node_specs
from coda_lab.machines.file_server import serving
from coda_lab.machines.paths import MachinePlaces
from coda_lab.machines.pod_host import Host
from coda_lab.machines.pod_reports import PodReports

TRAIN_S = 0.25  # between two updates of the GPUs
FLOW_S = 0.01  # a counter is at most this old when it is read
GPU_NUMBERS = 10_000  # of one node, which has at most 9999: the UUIDs of two nodes differ


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line, read."""
    parser = argparse.ArgumentParser(prog="python -m coda_lab.machines", description=__doc__)
    parser.add_argument("--kubeconfig", required=True, help="how to reach the API server")
    parser.add_argument("--nodes", required=True, metavar="SHAPES", help="count x GPUs x cores, such as 8x8x48")
    parser.add_argument("--count", type=int, required=True, help="how many of them, the first ones, have a machine")
    parser.add_argument("--profile", default="intel", help="hardware of their memory controllers (default intel)")
    parser.add_argument("--folder", type=Path, required=True, help="for sockets and state; made anew")
    return parser.parse_args(words)


class Simulated:
    """One machine with its kubelet's sockets."""

    def __init__(self, spec: NodeSpec, profile: str, folder: Path) -> None:
        self.places = MachinePlaces(folder=folder, node=spec.name)
        shutil.rmtree(self.places.machine, ignore_errors=True)
        self.places.machine.mkdir(parents=True)
        machine = EmulatedNode(
            self.places.machine,
            profile=profile,
            gpus=spec.gpus,
            first_gpu=spec.index * GPU_NUMBERS,
            cores=spec.cpus,
            is_live=True,
        )
        machine.proc.boot_id = str(uuid.uuid4())
        self._flowed_s = time.monotonic()
        self.host = Host(machine)
        self.reports = PodReports(self.places.pods)
        self.devices = PodResourcesServer(self.places.kubelet_socket)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """While the block lasts, its sockets are there."""
        with self.devices:
            async with serving(self.host.machine.files, self.places.files_socket, before=self.flow):
                yield

    def flow(self) -> None:
        """Advance to the clock's time."""
        passed_s = time.monotonic() - self._flowed_s
        if passed_s >= FLOW_S:
            self._flowed_s += passed_s
            self.host.machine.flow(passed_s)

    def train(self) -> None:
        """Let the GPUs show the jobs' present cores and bandwidth."""
        self.flow()
        self.host.machine.train()
        self.reports.speak(time.monotonic())

    def follow(self, pods: WatchCache, category_by_job: dict[str, str]) -> None:
        """Take over the API server's list of its pods."""
        mine = [pod for pod in pods.by_key.values() if pod["spec"].get("nodeName") == self.places.node]
        self.reports.follow(mine, time.monotonic())
        if self.host.follow(mine, category_by_job):
            grants = self.host.machine.grants()
            self.devices.give(
                ContainerDevices(namespace=one.namespace, pod=one.pod, container=one.container, devices=one.device_ids)
                for one in grants
            )


async def run(options: argparse.Namespace) -> None:
    """Emulate the machines until cancelled. Raises CodaError when it cannot start."""
    specs = node_specs(options.nodes, racks=1)[: options.count]
    os.chdir(options.folder)
    machines = [Simulated(spec, options.profile, options.folder) for spec in specs]
    async with AsyncExitStack() as stack:
        client = await connect(options.kubeconfig, timeout_s=10.0)
        stack.push_async_callback(client.close)
        for machine in machines:
            await stack.enter_async_context(machine.serving())
        pods, jobs = _caches(client)
        async with asyncio.TaskGroup() as group:
            group.create_task(pods.run())
            group.create_task(jobs.run())
            await asyncio.gather(pods.synced.wait(), jobs.synced.wait())
            sys.stdout.write("ready\n")
            sys.stdout.flush()
            await _keep_time(machines, pods, jobs)


def _caches(client: Client) -> tuple[WatchCache, WatchCache]:
    """Bound pods, and jobs."""
    pods = WatchCache(client, "/api/v1/pods", query={"fieldSelector": "spec.nodeName!="})
    return pods, WatchCache(client, f"/apis/{API_VERSION}/trainingjobs")


def _follow(machines: Sequence[Simulated], pods: WatchCache, jobs: WatchCache) -> None:
    category_by_job = {key: job["spec"].get("category") or "" for key, job in jobs.by_key.items()}
    for machine in machines:
        machine.follow(pods, category_by_job)


async def _keep_time(machines: Sequence[Simulated], pods: WatchCache, jobs: WatchCache) -> None:
    while True:
        _follow(machines, pods, jobs)
        for machine in machines:
            machine.train()
        await asyncio.sleep(TRAIN_S)


def main() -> int:
    """Exit code 0 after a signal, 1 when it could not start (one sentence says why)."""
    options = arguments()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    try:
        asyncio.run(run_until_signalled(run(options)))
    except CodaError as error:
        sys.stderr.write(f"machines: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
