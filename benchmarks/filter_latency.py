"""How long kube-scheduler waits for a filter answer, idle and while the planner decides without pause.

One process serves the real application on a cluster made up in memory; this one asks, on one kept connection, as
kube-scheduler does. Usage: python benchmarks/filter_latency.py [nodes] [waiting jobs]
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import http.client
import multiprocessing
import socket
import statistics
import sys
import time
from typing import Any

import orjson
import uvicorn
import uvloop

from coda.config import PolicyConfig
from coda_extender.__main__ import SWITCH_INTERVAL_S
from coda_extender.app import Dependencies, create_app
from coda_extender.cluster import Cluster
from coda_extender.metrics import Metrics
from coda_extender.thinking import think
from coda_kube.client import Client

CALLS = 400


def node_json(number: int) -> dict[str, Any]:
    name = f"node-{number:05d}"
    return {
        "metadata": {
            "name": name,
            "resourceVersion": "1",
            "labels": {"kubernetes.io/hostname": name, "topology.coda.scheduler/rack": f"rack-{number // 40}"},
        },
        "status": {
            "allocatable": {"nvidia.com/gpu": "8", "cpu": "48", "memory": "384Gi", "pods": "110"},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def job_json(number: int, nodes: int) -> dict[str, Any]:
    """The first jobs hold two nodes each by a released plan, until all but a few nodes are taken; the rest wait."""
    placed = number < nodes // 2 - 8
    placement = {
        "attempt": 1,
        "planId": f"plan-{number}",
        "epoch": 1,
        "generation": 1,
        "state": "Released",
        "nodes": [f"node-{2 * number:05d}", f"node-{2 * number + 1:05d}"],
        "cpusPerReplica": 4,
        "committedTime": "2026-01-01T00:00:00Z",
        "bindDeadline": "2036-01-01T00:00:00Z",
    }
    unbound = placed and number % 10 == 0
    return {
        "metadata": {
            "name": f"job-{number}",
            "namespace": "team",
            "uid": f"uid-{number}",
            "generation": 1,
            "resourceVersion": "1",
        },
        "spec": {"replicas": 2 if placed else 32, "gpusPerReplica": 8},
        "status": {
            "phase": ("Launched" if unbound else "Running") if placed else "Queued",
            "attempt": 1,
            "observedGeneration": 1,
            "queuedTime": "2026-01-01T00:00:00Z",
            "request": {
                "resources": {"nvidia.com/gpu": "8", "cpu": str(1 + number % 7), "memory": "8Gi"},
                "cpusPerReplica": 4,
            },
        }
        | ({"placement": placement} if placed else {}),
    }


def pod_json(number: int, node: str | None) -> dict[str, Any]:
    requests = {"nvidia.com/gpu": "8", "cpu": "4", "memory": "8Gi"} if node else {"cpu": "1", "memory": "1Gi"}
    return {
        "metadata": {"name": f"pod-{number}", "namespace": "team", "uid": f"pod-{number}", "resourceVersion": "1"},
        "spec": {
            "schedulerName": "coda",
            "containers": [{"name": "main", "resources": {"requests": requests}}],
        }
        | ({"nodeName": node} if node else {}),
        "status": {},
    }


def serve(port: int, nodes: int, waiting: int, busy: Any) -> None:
    async def run() -> None:
        cluster = Cluster(Client.__new__(Client), in_flight_limit_s=30.0)
        for number in range(nodes):
            cluster._on_node(None, node_json(number))
        placed = nodes // 2 - 8
        for number in range(placed + waiting):
            cluster._on_job(None, job_json(number, nodes))
            if number < placed and number % 10:
                for half in (0, 1):
                    node = f"node-{2 * number + half:05d}"
                    cluster._on_pod(None, pod_json(2 * number + half, node))
        metrics = Metrics()
        app = create_app(
            Dependencies(
                guard=cluster.guard, metrics=metrics, leads=lambda: True, synced=lambda: True, body_limit_bytes=3 << 20
            )
        )
        config = uvicorn.Config(
            app, port=port, http="httptools", ws="none", lifespan="off", log_config=None, access_log=False
        )
        gc.collect()
        gc.freeze()
        gc.set_threshold(2_000, 1_000, 1_000)
        server = asyncio.create_task(uvicorn.Server(config).serve())
        rounds = []
        while not server.done():
            if not busy.is_set():
                await asyncio.sleep(0.05)
                continue
            started_s = time.perf_counter()
            thought = await asyncio.to_thread(
                think,
                cluster.state.snapshot(),
                cluster.guard.ledger.pods(),
                cluster.state.job_json_by_id,
                PolicyConfig(),
                epoch=1,
                now_s=time.time(),
            )
            rounds.append(time.perf_counter() - started_s)
            if len(rounds) % 50 == 0:
                print(
                    f"  planner: {len(thought.waiting)} waiting, {len(thought.plan.starts)} starts,"
                    f" round median {statistics.median(rounds) * 1e3:.0f} ms"
                )

    sys.setswitchinterval(SWITCH_INTERVAL_S)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.Runner(loop_factory=uvloop.new_event_loop).run(run())


def ask(port: int, names: list[str], *, verb: str = "/filter") -> list[float]:
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.connect()
    connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    lasted_s = []
    for call in range(CALLS + 20):
        pod = pod_json(10_000_000 + call % 5, None)
        body = orjson.dumps({"Pod": pod, "Nodes": None, "NodeNames": names})
        started_s = time.perf_counter()
        connection.request("POST", verb, body, {"Content-Type": "application/json"})
        answer = connection.getresponse().read()
        lasted_s.append(time.perf_counter() - started_s)
        assert b'"Error":""' in answer or verb == "/prioritize", answer[:200]
        time.sleep(0.002)
    connection.close()
    return sorted(lasted_s[20:])


def main() -> None:
    nodes = int(sys.argv[1]) if len(sys.argv) > 1 else 5000
    waiting = int(sys.argv[2]) if len(sys.argv) > 2 else 10_000
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    busy = multiprocessing.Event()
    server = multiprocessing.Process(target=serve, args=(port, nodes, waiting, busy), daemon=True)
    server.start()
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 0.2):
            break
        time.sleep(0.1)
    for state in ("idle", "planning"):
        if state == "planning":
            busy.set()
        for verb in ("/filter", "/prioritize"):
            for count in (1, 1000, 5000):
                lasted_s = ask(port, [f"node-{number:05d}" for number in range(min(count, nodes))], verb=verb)
                p50, p99 = lasted_s[len(lasted_s) // 2], lasted_s[len(lasted_s) * 99 // 100]
                print(f"{state:9}{verb:12}{count:5} names: p50 {p50 * 1e3:6.2f} ms, p99 {p99 * 1e3:6.2f} ms")
    server.terminate()


if __name__ == "__main__":
    main()
