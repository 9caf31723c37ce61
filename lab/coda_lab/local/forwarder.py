"""A TCP forwarder with a Service's rule: new connections go to the pod that carries the leader's label.

`python -m coda_lab.local.forwarder --kubeconfig FILE --port PORT` stands in for the Service and its proxy, which a
local control plane does not have. If several pods carry the label (a leader died with it), the last one labelled comes
first. A pod that refuses the connection is skipped; if none is left the connection is closed at once. Connections to a
pod that has lost the leadership are closed, so that the scheduler connects again.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import signal
import sys
from collections.abc import Iterable

from coda.errors import CodaError
from coda_kube.api.client import connect
from coda_kube.api.watch_cache import WatchCache, key_of
from coda_kube.objects.json_types import Json
from coda_kube.objects.names import LABEL_LEADER, SYSTEM_NAMESPACE
from coda_lab.host.ports import LOOPBACK
from coda_lab.spec import EXTENDER

log = logging.getLogger(__name__)

PORT_ANNOTATION = "local.coda.scheduler/port"
"""On an extender's pod object: the port of its process."""

_CONNECT_TIMEOUT_S = 0.5


class Backends:
    """The ports of the labelled pods, the last one labelled first."""

    def __init__(self) -> None:
        self._port_by_pod: dict[str, int] = {}
        self.changed = asyncio.Event()

    @property
    def ports(self) -> tuple[int, ...]:
        """The ports, in the order to try them."""
        return tuple(reversed(self._port_by_pod.values()))

    def listener(self, old: Json | None, new: Json | None) -> None:
        """Follow the watch of labelled pods."""
        if new is None:
            assert old is not None
            self._port_by_pod.pop(key_of(old), None)
        elif key_of(new) not in self._port_by_pod:
            port = new["metadata"].get("annotations", {}).get(PORT_ANNOTATION, "")
            if not port.isdigit():
                log.warning("%s has no %s: passed over", key_of(new), PORT_ANNOTATION)
                return
            self._port_by_pod[key_of(new)] = int(port)
        self.changed.set()


class Forwarder:
    """Accepts on one port and joins each connection to a backend."""

    def __init__(self, backends: Backends) -> None:
        self._backends = backends
        self._tasks: dict[asyncio.Task[None], int | None] = {}  # connection -> the port it goes to

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection until either side ends it or its backend loses the leadership."""
        task = asyncio.current_task()
        assert task is not None
        self._tasks[task] = None
        try:
            joined = await self._connect(task)
            if joined is not None:
                await _join((reader, writer), joined)
        except asyncio.CancelledError:
            pass  # told to let go: only closing is left
        finally:
            del self._tasks[task]
            _drop(writer)

    def let_go(self) -> None:
        """Close the connections to every backend but the first."""
        leader = self._backends.ports[:1]
        for task, port in self._tasks.items():
            if port is not None and port not in leader:
                task.cancel()

    async def _connect(self, task: asyncio.Task[None]) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        for port in self._backends.ports:
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(_CONNECT_TIMEOUT_S):
                    joined = await asyncio.open_connection(LOOPBACK, port)
                self._tasks[task] = port
                return joined
        return None


async def _join(
    one: tuple[asyncio.StreamReader, asyncio.StreamWriter], two: tuple[asyncio.StreamReader, asyncio.StreamWriter]
) -> None:
    copies = {
        asyncio.create_task(_copy(one[0], two[1])),
        asyncio.create_task(_copy(two[0], one[1])),
    }
    try:
        await asyncio.wait(copies, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for copy in copies:
            copy.cancel()
        _drop(two[1])


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while chunk := await reader.read(65_536):
            writer.write(chunk)
            await writer.drain()


def _drop(writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()


async def serve(kubeconfig: str, port: int) -> None:
    """Forward until cancelled; prints `ready` once it accepts and knows the labelled pods."""
    api = await connect(kubeconfig)
    backends = Backends()
    forwarder = Forwarder(backends)
    selector = f"app.kubernetes.io/component={EXTENDER},{LABEL_LEADER}=true"
    pods = WatchCache(
        api,
        f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/pods",
        listener=backends.listener,
        query={"labelSelector": selector},
    )
    watching = asyncio.create_task(pods.run())
    try:
        async with await asyncio.start_server(forwarder.accept, LOOPBACK, port):
            await pods.synced.wait()
            print("ready", flush=True)  # noqa: T201 - its starter waits for this line
            while True:
                await backends.changed.wait()
                backends.changed.clear()
                log.info("backends, first choice first: %s", ", ".join(map(str, backends.ports)) or "none")
                forwarder.let_go()
    finally:
        watching.cancel()
        await asyncio.wait({watching})
        await api.close()


async def _until_told_to_stop(kubeconfig: str, port: int) -> None:
    task = asyncio.create_task(serve(kubeconfig, port))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await task


def main(arguments: Iterable[str] | None = None) -> int:
    """Run it; 1 with one sentence when it cannot."""
    parser = argparse.ArgumentParser(
        prog="python -m coda_lab.local.forwarder", description="Forward to the leader's port."
    )
    parser.add_argument("--kubeconfig", required=True)
    parser.add_argument("--port", type=int, required=True, help="loopback port to accept on")
    options = parser.parse_args(None if arguments is None else list(arguments))
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        asyncio.run(_until_told_to_stop(options.kubeconfig, options.port))
    except (CodaError, OSError) as error:
        print(f"forwarder: {error}", file=sys.stderr)  # noqa: T201
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
