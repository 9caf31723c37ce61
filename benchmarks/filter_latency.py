"""How long kube-scheduler waits for answers to filter and prioritize, idle and while the planner decides without pause.

Over real HTTP, on one kept connection, as kube-scheduler asks; in turns with a minimal echo extender, which is asked
the same and has nothing else to do. One process for each server, and this one.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import multiprocessing
import socket
import sys
import time
from collections.abc import Iterator
from multiprocessing.context import SpawnProcess
from typing import Any

import orjson

from rig.asking import ask, positive, tell
from rig.results import Answer, Row, median_ratio, percentile
from serving import serve_coda, serve_echo

CALLS = 200  # of a batch: a tail of two
WARM_UP = 10
NAMES = (100, 1000, 5000)
VERBS = ("filter", "prioritize")
PAUSE_S = 0.002  # between two calls: kube-scheduler has work of its own
BUDGET = {"budget": "<= 5", "aim": "<= 2"}
RATIO_BUDGET = {"budget": "<= 2", "aim": "<= 1.3"}  # of the tails: the machine's own noise is in both

Latencies = dict[tuple[str, str, int], list[tuple[list[float], list[float]]]]
"""(state, verb, names) -> per pair the seconds of Coda's answers and of the echo's."""


async def answer(options: argparse.Namespace) -> Answer:
    """All sizes, verbs and states."""
    nodes = options.nodes or (500 if options.quick else 5000)
    waiting = options.waiting or 2 * nodes
    found: Latencies = {}
    with servers(nodes, waiting) as (coda, echo, planning):
        for pair in range(options.pairs):
            for state in ("idle", "planning") if pair % 2 == 0 else ("planning", "idle"):
                planning.set() if state == "planning" else planning.clear()
                measure(found, state, nodes, coda, echo)
            tell(f"pair {pair + 1} of {options.pairs}")
    detail = {"nodes": nodes, "waiting": waiting, "calls_per_batch": CALLS, "pairs": options.pairs}
    return Answer(question="filter_latency", rows=tuple(rows(found)), detail=detail)


def measure(found: Latencies, state: str, nodes: int, coda: int, echo: int) -> None:
    """A batch of each verb and size, in which calls to Coda and to the echo take turns."""
    for verb in VERBS:
        for count in NAMES:
            names = [f"node-{number:05d}" for number in range(min(count, nodes))]
            found.setdefault((state, verb, count), []).append(lasting(coda, echo, verb, names))


def rows(found: Latencies) -> Iterator[Row]:
    """Percentiles over all pairs and their ratio, and the median ratio of the medians."""
    for (state, verb, count), pairs in found.items():
        name = f"{verb}, {count} names, {state}"
        ours = [seconds for coda, _ in pairs for seconds in coda]
        is_judged = (state, verb, count) == ("planning", "filter", 5000)
        bounds = BUDGET if is_judged else {}
        yield Row(name=f"{name}: p50", value=percentile(ours, 0.5) * 1e3, unit="ms")
        yield Row(name=f"{name}: p99", value=percentile(ours, 0.99) * 1e3, unit="ms", **bounds)
        medians = [(percentile(coda, 0.5), percentile(echo, 0.5)) for coda, echo in pairs]
        theirs = [seconds for _, echo in pairs for seconds in echo]
        tails = percentile(ours, 0.99) / percentile(theirs, 0.99)
        yield Row(name=f"{name}: p99 of the idle echo", value=percentile(theirs, 0.99) * 1e3, unit="ms")
        yield Row(name=f"{name}: p50 with Coda / echo", value=median_ratio(medians), unit="")
        against = RATIO_BUDGET if is_judged else {}
        yield Row(name=f"{name}: p99 with Coda / echo", value=tails, unit="", **against)


def lasting(coda: int, echo: int, verb: str, names: list[str]) -> tuple[list[float], list[float]]:
    """Seconds of each answer of one batch. The two take turns, so that both see the same moments of a busy machine."""
    lasted_s: tuple[list[float], list[float]] = ([], [])
    with contextlib.ExitStack() as stack:
        connections = [stack.enter_context(contextlib.closing(_connected(port))) for port in (coda, echo)]
        for call in range(WARM_UP + CALLS):
            body = orjson.dumps({"Pod": foreign_pod(call % 5), "Nodes": None, "NodeNames": names})
            for connection, lasted in zip(connections, lasted_s, strict=True):
                began_s = time.perf_counter()
                connection.request("POST", f"/{verb}", body, {"Content-Type": "application/json"})
                content = connection.getresponse().read()
                lasted.append(time.perf_counter() - began_s)
                if verb == "filter" and b'"Error":""' not in content:
                    raise RuntimeError(f"no answer: {content[:200]!r}")
                time.sleep(PAUSE_S)
    return lasted_s[0][WARM_UP:], lasted_s[1][WARM_UP:]


def _connected(port: int) -> http.client.HTTPConnection:
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.connect()
    connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def foreign_pod(number: int) -> dict[str, Any]:
    """A CPU pod that is not Coda's."""
    container = {"name": "main", "resources": {"requests": {"cpu": "1", "memory": "1Gi"}}}
    return {
        "metadata": {"name": f"other-{number}", "namespace": "web", "uid": f"other-{number}", "resourceVersion": "1"},
        "spec": {"schedulerName": "coda", "containers": [container]},
        "status": {},
    }


@contextlib.contextmanager
def servers(nodes: int, waiting: int) -> Iterator[tuple[int, int, Any]]:
    """Ports of Coda and of the echo, and the event that lets Coda plan."""
    spawning = multiprocessing.get_context("spawn")
    planning, ready = spawning.Event(), (spawning.Event(), spawning.Event())
    ports = free_port(), free_port()
    processes: list[SpawnProcess] = [
        spawning.Process(target=serve_coda, args=(ports[0], nodes, waiting, ready[0], planning), daemon=True),
        spawning.Process(target=serve_echo, args=(ports[1], ready[1]), daemon=True),
    ]
    for process in processes:
        process.start()
    try:
        for event, port, process in zip(ready, ports, processes, strict=True):
            while not event.wait(1.0):
                if process.exitcode is not None:
                    raise RuntimeError(f"a server ended with {process.exitcode}")
            await_port(port)
        yield *ports, planning
    finally:
        for process in processes:
            process.terminate()
            process.join()


def await_port(port: int) -> None:
    """Return once somebody listens."""
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
            return
        time.sleep(0.02)


def free_port() -> int:
    """A port nobody has now."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def _more(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--nodes", type=positive, help="of the cluster (default 5000)")
    parser.add_argument("--waiting", type=positive, help="jobs that wait (default two for each node)")


if __name__ == "__main__":
    sys.exit(ask(__doc__, answer, more=_more))
