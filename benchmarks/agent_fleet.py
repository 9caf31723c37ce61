"""Many agents' client code against one API server that fails in every way: requests per second, over time.

The agents' caches are real, and so is HTTP; the server, in a process of its own, has only empty lists. It is well, then
answers everything with 429 and Retry-After, then 500, then not at all, then resets connections, then is well again. At
each change all connections break, as when a server restarts. Prints a table, a line per 5 s.

Usage: python benchmarks/agent_fleet.py [AGENTS, default 1000] [SECONDS PER PHASE, default 30]"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import resource
import sys
import time
from collections import Counter
from multiprocessing.connection import Connection
from typing import Final

from coda_agent.cluster import AgentCaches
from coda_kube.api.client import Client
from coda_kube.api.credentials import Access

PHASES: Final = ("well", "429", "500", "silent", "resets", "well again", "well still")
RETRY_AFTER_S: Final = 10
BIN_S: Final = 5
EMPTY: Final = {"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": []}


class Server:
    """Counts requests in each `BIN_S`, by phase."""

    def __init__(self, phase_s: float) -> None:
        self.count_by_bin: Counter[int] = Counter()
        self._began_s = time.monotonic()
        self._phase_s = phase_s
        self._open: set[asyncio.StreamWriter] = set()

    async def change_phases(self) -> None:
        """Break every connection at each change."""
        for number in range(1, len(PHASES)):
            await asyncio.sleep(max(0.0, self._began_s + number * self._phase_s - time.monotonic()))
            if PHASES[number] != "well still":
                for writer in list(self._open):
                    writer.transport.abort()
        await asyncio.sleep(max(0.0, self._began_s + len(PHASES) * self._phase_s - time.monotonic()))

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        self._open.add(writer)
        try:
            while line := await reader.readline():
                while (await reader.readline()).strip():
                    pass
                self.count_by_bin[int((time.monotonic() - self._began_s) / BIN_S)] += 1
                await self._answer(line, writer)
        except ConnectionError:
            return
        finally:
            self._open.discard(writer)
            writer.close()

    async def _answer(self, line: bytes, writer: asyncio.StreamWriter) -> None:
        phase = PHASES[min(int((time.monotonic() - self._began_s) / self._phase_s), len(PHASES) - 1)]
        if phase == "resets":
            writer.transport.abort()
        elif phase == "silent":
            await asyncio.sleep(3600)
        elif phase in ("429", "500"):
            header = f"HTTP/1.1 {phase} Trouble\r\nRetry-After: {RETRY_AFTER_S}\r\nContent-Length: 0\r\n\r\n"
            writer.write((header if phase == "429" else header.replace("Retry-After", "X-Other")).encode())
        elif b"watch=true" in line:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
        else:
            body = json.dumps(EMPTY).encode()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))


def main() -> None:
    """See the module."""
    agents = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    phase_s = float(sys.argv[2]) if len(sys.argv) > 2 else 30.0
    wanted = 10 * agents
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, max(wanted, resource.getrlimit(resource.RLIMIT_NOFILE)[1])))
    ours, theirs = multiprocessing.Pipe()
    server = multiprocessing.get_context("spawn").Process(target=serve, args=(theirs, phase_s))
    server.start()
    asyncio.run(run_agents(agents, int(ours.recv()), phase_s))
    print_table(agents, Counter(ours.recv()), phase_s)
    server.join()


def serve(agents: Connection, phase_s: float) -> None:
    """The server's process."""

    async def run() -> Counter[int]:
        server = Server(phase_s)
        listener = await asyncio.start_server(server.serve, "127.0.0.1", 0, backlog=10_000)
        agents.send(listener.sockets[0].getsockname()[1])
        await server.change_phases()
        return server.count_by_bin

    agents.send(dict(asyncio.run(run())))


async def run_agents(agents: int, port: int, phase_s: float) -> None:
    """The agents' process: each has its own connections, and comes up within the first ten seconds."""
    began_s = time.monotonic()
    clients = [Client(Access(host=f"http://127.0.0.1:{port}")) for _ in range(agents)]
    running: list[asyncio.Task[None]] = []
    for number, client in enumerate(clients):
        running.append(asyncio.create_task(AgentCaches(client, f"node-{number}").run()))
        await asyncio.sleep(max(0.0, began_s + 10.0 * number / agents - time.monotonic()))
    await asyncio.sleep(max(0.0, began_s + len(PHASES) * phase_s - time.monotonic()))
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    for client in clients:
        await client.close()


def print_table(agents: int, count_by_bin: Counter[int], phase_s: float) -> None:
    """Requests per second of all agents."""
    print(f"{agents} agents, requests/s in steps of {BIN_S} s")
    for number, phase in enumerate(PHASES):
        bins = range(int(number * phase_s / BIN_S), int((number + 1) * phase_s / BIN_S))
        print(f"{phase:>12}: " + "  ".join(f"{count_by_bin[one] / BIN_S:7.1f}" for one in bins))


if __name__ == "__main__":
    main()
