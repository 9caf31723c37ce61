"""The process that owns the real node's virtual machine: boots it, makes a node of it, and ends with it.

`python -m coda_lab.realnode.host_process` is a part of the local cluster. It prints `ready` when the API server says
that the node is Ready and has its GPUs. The machine never outlives it: the kernel ensures that, even after SIGKILL.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from coda.errors import CodaError
from coda_kube.api.client import connect
from coda_kube.api.until import until
from coda_kube.objects import names
from coda_kube.objects.json_types import Json
from coda_lab.host.paths import Settings
from coda_lab.host.ports import LOOPBACK
from coda_lab.host.signals import run_until_signalled
from coda_lab.realnode import vm
from coda_lab.realnode.artifacts import ensure_node
from coda_lab.realnode.configuration import GPUS, NODE, SERVICE_ADDRESS, portable_kubeconfig
from coda_lab.realnode.node import KUBELET, RealNode
from coda_lab.realnode.vm import Machine

MEMORY_MIB = 4096
_START_TIMEOUT_S = 300.0
_READY_TIMEOUT_S = 300.0
_CREDENTIALS = (KUBELET,)
_NODE_ONLY = {"fieldSelector": f"metadata.name={NODE}"}  # a kubelet may read its own node, no other


async def host(options: argparse.Namespace, settings: Settings) -> None:
    """Run the real node until the machine ends or is stuck. Raises LabFailure."""
    began_s = time.monotonic()
    pieces = ensure_node(settings, print)
    address = f"{LOOPBACK}:{options.api_port}"  # so every kubeconfig from here works there
    machine = Machine(
        name=NODE,
        cores=options.cores,
        memory_mib=MEMORY_MIB,
        port=options.port,
        forwards=dict.fromkeys((address, SERVICE_ADDRESS), f"{vm.HOST}:{options.api_port}"),
    )
    async with vm.running(machine, pieces.machine, options.folder, settings) as booted:
        _say(began_s, "the virtual machine takes commands")
        node = RealNode(guest=booted.guest, folder=options.folder)
        starting = node.start_all(pieces, _portable_credentials(options))
        await booted.guarded(starting, timeout_s=_START_TIMEOUT_S, doing="starting containerd and the kubelet")
        _say(began_s, "containerd and the kubelet are started")
        await booted.guarded(
            _wait_until_usable(options), timeout_s=_READY_TIMEOUT_S, doing="waiting for the node to be Ready"
        )
        _say(began_s, f"the node is Ready with {GPUS} GPUs")
        print("ready", flush=True)  # noqa: T201 - the cluster waits for this line
        await booted.until_over()


def is_usable(node: Mapping[str, Json]) -> bool:
    """True when the node is Ready and offers its GPUs."""
    return any(
        item.get("status", {}).get("allocatable", {}).get(names.GPU) == str(GPUS)
        and any(entry["type"] == "Ready" and entry["status"] == "True" for entry in item["status"]["conditions"])
        for item in node.values()
    )


async def _wait_until_usable(options: argparse.Namespace) -> None:
    api = await connect(str(options.credentials / f"{KUBELET}.yaml"), timeout_s=10.0)
    try:
        await until(api, "/api/v1/nodes", is_usable, query=_NODE_ONLY)
    finally:
        await api.close()


def _portable_credentials(options: argparse.Namespace) -> dict[str, str]:
    authority = options.authority.read_bytes()
    return {
        name: portable_kubeconfig((options.credentials / f"{name}.yaml").read_text(), authority)
        for name in _CREDENTIALS
    }


def _say(began_s: float, what: str) -> None:
    print(f"{time.monotonic() - began_s:5.1f} s  {what}", flush=True)  # noqa: T201 - this process's log


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m coda_lab.realnode.host_process")
    for name in ("--folder", "--credentials", "--authority"):
        parser.add_argument(name, type=Path, required=True)
    for name in ("--cores", "--api-port", "--port"):
        parser.add_argument(name, type=int, required=True)
    return parser.parse_args()


def main() -> int:
    """Exit code 0 after a signal, 1 with one sentence when the machine could not be started or ended."""
    try:
        asyncio.run(run_until_signalled(host(_arguments(), Settings.from_environ())))
    except CodaError as error:
        print(f"real node: {error}", file=sys.stderr)  # noqa: T201
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
