"""What mutual TLS between kube-scheduler and extender costs: answers to filter, and pods bound per second.

Filter: the same extender listens on two ports, one with TLS and one without, and calls to them take turns, idle and
while the planner decides without pause. Pods: Coda with TLS and without, in turns, on one cluster.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import multiprocessing
import socket
import ssl
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

import orjson

from coda_kube.api.client import Client
from coda_kube.certificates import files_of, new_authority, new_leaf
from coda_lab.host.client_tls import client_context
from filter_latency import NAMES, PAUSE_S, WARM_UP, await_port, foreign_pod, free_port
from rig.arms import CODA, CODA_OVER_HTTP, Arms, Run, two_armed_cluster
from rig.asking import ask, orders, positive, tell
from rig.binding import bind, clear, timed
from rig.results import Answer, Row, median_ratio, percentile
from serving import serve_coda
from throughput import LOADS, WARM_UP_PODS, objects

CALLS: Final = 300  # of a batch and side
HANDSHAKES: Final = 100
ARMS: Final = (CODA, CODA_OVER_HTTP)

Seconds = tuple[list[float], list[float]]
"""Of each answer: over TLS, without."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sides:
    """The ports of one extender, and the scheduler's certificate for the first."""

    tls: int
    plain: int
    context: ssl.SSLContext
    planning: Any  # an event: the planner decides while it is set

    def connections(self) -> tuple[http.client.HTTPConnection, http.client.HTTPConnection]:
        """One of each, not connected yet."""
        return (
            http.client.HTTPSConnection("127.0.0.1", self.tls, context=self.context),
            http.client.HTTPConnection("127.0.0.1", self.plain),
        )


async def answer(options: argparse.Namespace) -> Answer:
    """Filter calls first, then pods."""
    small = options.quick
    nodes, calls = options.nodes or (500 if small else 5000), 50 if small else CALLS
    found: dict[tuple[str, int], list[Seconds]] = {}
    hands: Seconds = ([], [])
    with two_sides(nodes, 2 * nodes) as sides:
        for pair in range(options.pairs):
            for state in ("idle", "planning") if pair % 2 == 0 else ("planning", "idle"):
                sides.planning.set() if state == "planning" else sides.planning.clear()
                for count in sorted({min(count, nodes) for count in NAMES}):
                    found.setdefault((state, count), []).append(in_turns(sides, count, calls))
            sides.planning.clear()
            for side, seconds in zip(hands, handshakes(sides, HANDSHAKES // 5), strict=True):
                side.extend(seconds)
            tell(f"filter: pair {pair + 1} of {options.pairs}")
    runs = await bound(options, nodes=100 if small else 1000, pods=100 if small else 1000)
    rows = [*filter_rows(found), *handshake_rows(hands), *pod_rows(runs)]
    return Answer(question="tls_cost", rows=tuple(rows), detail={"nodes": nodes, "pairs": options.pairs})


def in_turns(sides: Sides, names: int, calls: int) -> Seconds:
    """A batch of filter calls, each asked over TLS and without, on one kept connection of each."""
    lasted_s: Seconds = ([], [])
    asked = [f"node-{number:05d}" for number in range(names)]
    with contextlib.ExitStack() as stack:
        connections = [stack.enter_context(contextlib.closing(one)) for one in sides.connections()]
        for connection in connections:
            connection.connect()
            connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        turn = list(zip(connections, lasted_s, strict=True))
        for call in range(WARM_UP + calls):
            body = orjson.dumps({"Pod": foreign_pod(call % 5), "Nodes": None, "NodeNames": asked})
            for connection, lasted in turn if call % 2 == 0 else reversed(turn):
                lasted.append(_asked(connection, body))
                time.sleep(PAUSE_S)
    return lasted_s[0][WARM_UP:], lasted_s[1][WARM_UP:]


def handshakes(sides: Sides, times: int) -> Seconds:
    """From the connect to the first answer, each time on a new connection. kube-scheduler keeps its one for hours."""
    lasted_s: Seconds = ([], [])
    body = orjson.dumps({"Pod": foreign_pod(0), "Nodes": None, "NodeNames": ["node-00000"]})
    for _ in range(times):
        for connection, lasted in zip(sides.connections(), lasted_s, strict=True):
            with contextlib.closing(connection):
                lasted.append(_asked(connection, body))
            time.sleep(PAUSE_S)
    return lasted_s


def _asked(connection: http.client.HTTPConnection, body: bytes) -> float:
    began_s = time.perf_counter()
    connection.request("POST", "/filter", body, {"Content-Type": "application/json"})
    content = connection.getresponse().read()
    lasted_s = time.perf_counter() - began_s
    if b'"Error":""' not in content:
        raise RuntimeError(f"no answer: {content[:200]!r}")
    return lasted_s


def filter_rows(found: dict[tuple[str, int], list[Seconds]]) -> Iterator[Row]:
    """Percentiles over all pairs, and the difference of the medians."""
    for (state, count), pairs in found.items():
        name = f"filter, {count} names, {state}"
        tls, plain = ([seconds for pair in pairs for seconds in pair[side]] for side in (0, 1))
        yield Row(name=f"{name}: p99 with TLS", value=percentile(tls, 0.99) * 1e3, unit="ms")
        yield Row(name=f"{name}: p99 without TLS", value=percentile(plain, 0.99) * 1e3, unit="ms")
        medians = [(percentile(one, 0.5), percentile(other, 0.5)) for one, other in pairs]
        yield Row(name=f"{name}: p50 with TLS / without", value=median_ratio(medians), unit="")
        more_ms = median(one - other for one, other in medians) * 1e3
        yield Row(name=f"{name}: p50 with TLS less without", value=more_ms, unit="ms")


def handshake_rows(hands: Seconds) -> Iterator[Row]:
    """The median of each side."""
    for side, seconds in zip(("with", "without"), hands, strict=True):
        value = percentile(seconds, 0.5) * 1e3
        yield Row(name=f"new connection to its first answer, {side} TLS: p50", value=value, unit="ms")


async def bound(options: argparse.Namespace, *, nodes: int, pods: int) -> list[tuple[str, int, Run, Run]]:
    """Every load with TLS and without, in turns: (load, pods, with, without)."""
    found: list[tuple[str, int, Run, Run]] = []
    async with two_armed_cluster(nodes, tell) as arms, arms.cluster.client("user") as user:
        for order in orders(options.pairs, ARMS):
            runs = {arm: await bind_loads(arms, user, arm, pods) for arm in order}
            found += [(load, pods, runs[CODA][load], runs[CODA_OVER_HTTP][load]) for load in LOADS]
    return found


async def bind_loads(arms: Arms, client: Client, arm: str, pods: int) -> dict[str, Run]:
    """Every load once in this arm."""
    await arms.enter(arm)
    runs = {}
    for load in LOADS:
        for many in (WARM_UP_PODS, pods):
            path, items = objects(CODA, load, many)
            runs[load] = await timed(arms, arm, bind(client, path, items, many))
            await clear(client)
        tell(f"{load}, {arm}: {pods / runs[load].lasted_s:.0f} pods/s")
    return runs


def pod_rows(runs: Sequence[tuple[str, int, Run, Run]]) -> Iterator[Row]:
    """Rates, and the medians of the ratios."""
    for load in dict.fromkeys(load for load, *_ in runs):
        these = [(pods / tls.lasted_s, pods / plain.lasted_s) for name, pods, tls, plain in runs if name == load]
        yield Row(name=f"{load}: with TLS", value=median(rate for rate, _ in these), unit="pods/s")
        yield Row(name=f"{load}: without TLS", value=median(rate for _, rate in these), unit="pods/s")
        yield Row(name=f"{load}: pods/s with TLS / without", value=median_ratio(these), unit="")
        used = [(_cpu_s(tls), _cpu_s(plain)) for name, _, tls, plain in runs if name == load]
        yield Row(
            name=f"{load}: CPU of extender and kube-scheduler, with TLS / without", value=median_ratio(used), unit=""
        )


def _cpu_s(run: Run) -> float:
    return sum(used for part, used in run.cpu_s_by_part.items() if part in ("extender-0", "kube-scheduler"))


@contextlib.contextmanager
def two_sides(nodes: int, waiting: int) -> Iterator[Sides]:
    """One extender with both ports, in a process of its own."""
    spawning = multiprocessing.get_context("spawn")
    planning, ready = spawning.Event(), spawning.Event()
    tls, plain = free_port(), free_port()
    with tempfile.TemporaryDirectory(prefix="coda-bench-tls-") as folder:
        authority = new_authority(time.time())
        for side, serves in (("server", True), ("client", False)):
            (Path(folder) / side).mkdir()
            for name, content in files_of(new_leaf(authority, serves=serves, now_s=time.time()), authority).items():
                (Path(folder) / side / name).write_bytes(content)
        over_tls = (tls, str(Path(folder) / "server"))
        arguments = (plain, nodes, waiting, ready, planning, over_tls)
        process = spawning.Process(target=serve_coda, args=arguments, daemon=True)
        process.start()
        try:
            while not ready.wait(1.0):
                if process.exitcode is not None:
                    raise RuntimeError(f"the server ended with {process.exitcode}")
            for port in (tls, plain):
                await_port(port)
            yield Sides(tls=tls, plain=plain, context=client_context(Path(folder) / "client"), planning=planning)
        finally:
            process.terminate()
            process.join()


def _more(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--nodes", type=positive, help="of the extender's cluster (default 5000)")


if __name__ == "__main__":
    sys.exit(ask(__doc__, answer, more=_more))
