"""A full cluster of both arrays: planning rounds, requests for each CPU pod, fail-overs, and memory.

Gangs hold all GPUs and CPU pods all other cores; more of both wait. Then pods and jobs are deleted all the time, so
that others start, and the leading extender is killed a few times.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from api_requests import CODA_USERS
from coda.errors import CodaError
from coda_kube.api.client import Client
from coda_kube.objects.json_types import Json
from coda_kube.objects.names import ANNOTATION_PLANNED, GATE, LABEL_JOB_UID, LABEL_LEADER
from coda_kube.objects.quantities import seconds_from_time
from coda_lab.local.startup import running_cluster
from coda_lab.spec import EXTENDER, ClusterSpec, metrics_port_of
from reclaim import BATCH, BATCH_JOBS, opt_in
from rig.arms import NODES_PER_RACK, pids
from rig.asking import ask, tell
from rig.auditing import AuditedCluster, by_kind, is_upkeep
from rig.binding import create_all, following
from rig.loads import JOBS, gang_json
from rig.results import Answer, Row, percentile
from rig.usage import usage_by_pid

NODES, QUICK_NODES = 2000, 20
WATCHED_S, QUICK_WATCHED_S = 90.0, 15.0
FAIL_OVERS: Final = 3
RANKS_PER_GANG: Final = 4  # of four GPUs and four cores: a gang has the GPUs of two nodes
CORES_PER_POD: Final = 5
RUNNING_PER_NODE, GATED_PER_NODE = 8, 10  # CPU pods
WAITING_PER_NODE: Final = 2.5  # gangs
PODS_PER_JOB: Final = 500
CPU_ENDS_PER_S, GANG_ENDS_PER_S = 8.0, 1.0  # on 200 nodes or more
STANDS_STILL_S: Final = 30.0
SEED: Final = 21
MIB: Final = 1 << 20

RANK, CPU_POD = "rank", "cpu"
GATED, BOUND, RUNNING = "gated", "bound", "running"


class Pods:
    """How many pods of each kind are in each state, and when CPU pods were planned. A listener of their watch."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()
        self.started = 0  # CPU pods that came to run
        self.running: dict[str, None] = {}  # keys of CPU pods, in the order in which they came to run
        self.planned_s = 0.0  # the last moment at which a CPU pod was planned, by the planner's clock

    def listener(self, old: Json | None, new: Json | None) -> None:
        """A pod came, changed or went."""
        before, now = _state(old), _state(new)
        for state, sign in ((before, -1), (now, 1)):
            if state is not None:
                self.counts[state] += sign
        if now == (CPU_POD, RUNNING) and before != now and new is not None:
            self.started += 1
            self.running[_key(new)] = None
        if before == (CPU_POD, RUNNING) and before != now and old is not None:
            self.running.pop(_key(old), None)
        if new is not None and (planned := (new["metadata"].get("annotations") or {}).get(ANNOTATION_PLANNED)):
            self.planned_s = max(self.planned_s, seconds_from_time(planned))

    async def until_still(self, kind: str, wanted: int, *, state: str = RUNNING) -> int:
        """Wait until so many pods are in that state, or their number has not grown for a while. Returns it."""
        most, since_s = 0, time.monotonic()
        while (there := self.counts[kind, state]) < wanted and time.monotonic() - since_s < STANDS_STILL_S:
            if there > most:
                most, since_s = there, time.monotonic()
            await asyncio.sleep(1)  # a look at a number
        return there


async def answer(options: argparse.Namespace) -> Answer:
    """Fill the cluster, let others start, kill the leader."""
    nodes, watched_s = (QUICK_NODES, QUICK_WATCHED_S) if options.quick else (NODES, WATCHED_S)
    nodes = options.nodes or nodes
    spec = ClusterSpec(nodes=f"{nodes}x8x48", racks=max(1, nodes // NODES_PER_RACK))
    audited = running_cluster(spec, tell=tell, kind=AuditedCluster)
    pods = Pods()
    async with audited as cluster, cluster.client("admin") as admin, cluster.client("user") as user:
        assert isinstance(cluster, AuditedCluster)
        await opt_in(admin)
        async with following(admin, "/api/v1/pods", listener=pods.listener):
            held = await _fill(admin, user, pods, nodes)
            async with churning(admin, user, pods, min(1.0, nodes / 200)):
                watched = await _watched(cluster, pods, watched_s)
                fail_overs = await _fail_overs(cluster, admin, pods)
            memory = {name: usage.rss_bytes / MIB for name, usage in usage_by_pid(pids(cluster)).items()}
    name = f"{nodes} full nodes"
    rows = [
        *[
            Row(name=f"{name}: {row.name}", value=row.value, unit=row.unit, budget=row.budget)
            for row in (*held, *watched, *fail_overs)
        ],
        *[Row(name=f"{name}: {part}, memory", value=most, unit="MiB") for part, most in sorted(memory.items())],
    ]
    return Answer(question="full_cluster", rows=tuple(rows))


async def _fill(admin: Client, user: Client, pods: Pods, nodes: int) -> list[Row]:
    began_s = time.monotonic()
    rng = random.Random(SEED)
    full = [gang_json(f"full-{number}", RANKS_PER_GANG) for number in range(nodes // 2)]
    await create_all(user, JOBS, full)
    ranks = await pods.until_still(RANK, RANKS_PER_GANG * len(full))
    tell(f"{ranks} ranks run after {time.monotonic() - began_s:.0f} s")
    running, gated = RUNNING_PER_NODE * nodes, GATED_PER_NODE * nodes
    await create_all(admin, BATCH_JOBS, _cpu_jobs(running + gated))
    cpu_pods = await pods.until_still(CPU_POD, running)
    waiting_pods = await pods.until_still(CPU_POD, gated, state=GATED)
    tell(f"{cpu_pods} CPU pods run after {time.monotonic() - began_s:.0f} s, {waiting_pods} wait")
    waiting = round(WAITING_PER_NODE * nodes)
    await create_all(user, JOBS, [gang_json(f"next-{number}", rng.choice((1, 1, 2, 4))) for number in range(waiting)])
    filled_s = time.monotonic() - began_s
    return [
        Row(name="ranks that run", value=ranks, unit="pods"),
        Row(name="CPU pods that run", value=cpu_pods, unit="pods"),
        Row(name="CPU pods that wait", value=waiting_pods, unit="pods"),
        Row(name="gangs that wait", value=waiting, unit="jobs"),
        Row(name="from the first to the last of them", value=filled_s, unit="s"),
    ]


@asynccontextmanager
async def churning(admin: Client, user: Client, pods: Pods, part: float) -> AsyncIterator[None]:
    """CPU pods and gangs end all the time, the oldest first, and others take their place. `part`: of the full rate.

    If that fails, the block ends: nothing would start any more."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(_end_cpu_pods(admin, pods, part)), group.create_task(_end_gangs(user, part))]
        yield
        for task in tasks:
            task.cancel()


async def _end_cpu_pods(admin: Client, pods: Pods, part: float) -> None:
    """Their Jobs create others, which wait behind those that wait already."""
    while True:
        await asyncio.sleep(1 / (part * CPU_ENDS_PER_S))  # the load, not a wait
        key = next(iter(pods.running), None)
        if key is not None:
            pods.running.pop(key)
            namespace, name = key.split("/")
            await _deleted(admin, f"/api/v1/namespaces/{namespace}/pods/{name}")


async def _end_gangs(user: Client, part: float) -> None:
    number = 0
    while True:
        await asyncio.sleep(1 / (part * GANG_ENDS_PER_S))  # the load, not a wait
        await _deleted(user, f"{JOBS}/full-{number}")
        number += 1


async def _deleted(client: Client, path: str) -> None:
    try:
        await client.delete(path)
    except CodaError as error:  # it has gone by itself, or the API server is too busy: the next one comes soon
        tell(str(error))


async def _watched(cluster: AuditedCluster, pods: Pods, lasting_s: float) -> list[Row]:
    """Requests and planning rounds while CPU pods and gangs end and start. What is asked about TrainingJobs is left
    out of the requests."""
    mark, started, before = cluster.mark(), pods.started, await _rounds(cluster)
    await asyncio.sleep(lasting_s)  # the time that is measured
    requests = cluster.requests_since(mark)
    rounds = await _rounds(cluster) - before
    own = Counter({it: n for it, n in requests.items() if it.user in CODA_USERS and not is_upkeep(it)})
    of_extender = [
        n for it, n in own.items() if it.user == "coda-extender" and not it.resource.startswith("trainingjobs")
    ]
    started = pods.started - started
    tell(f"{started} CPU pods started in {lasting_s:.0f} s; requests: {by_kind(own)}")
    return [
        Row(name="CPU pods that start", value=started / lasting_s, unit="pods/s"),
        Row(
            name="requests of the extender for each of them",
            value=sum(of_extender) / max(1, started),
            unit="",
            budget="<= 4",
        ),
        Row(name="rounds", value=rounds.total() / lasting_s, unit="rounds/s"),
        Row(name="round: p50 at most", value=1000 * _at_most(rounds, 0.5), unit="ms"),
        Row(name="round: p99 at most", value=1000 * _at_most(rounds, 0.99), unit="ms", budget="<= 100"),
    ]


async def _rounds(cluster: AuditedCluster) -> Counter[float]:
    """How many rounds there were by the bucket of the histogram that they fall into, over all replicas."""
    found: Counter[float] = Counter()
    async with aiohttp.ClientSession() as session:
        for part in (name for name in cluster.part_by_name if name.startswith(EXTENDER)):
            async with session.get(f"http://127.0.0.1:{cluster.ports[metrics_port_of(part)]}/metrics") as response:
                text = await response.text()
            below = 0.0
            for family in text_string_to_metric_families(text):
                for sample in family.samples:
                    if sample.name == "coda_planner_round_duration_seconds_bucket":
                        found[float(sample.labels["le"])] += round(sample.value - below)
                        below = sample.value
    return found


def _at_most(rounds: Counter[float], share: float) -> float:
    """The upper bound of the bucket that holds this percentile."""
    bounds = [bound for bound in sorted(rounds) for _ in range(rounds[bound])]
    return percentile(bounds, share) if bounds else 0.0


async def _fail_overs(cluster: AuditedCluster, admin: Client, pods: Pods) -> list[Row]:
    """From the death of the leading extender to the first pod that its successor planned, as a watch shows it."""
    times_s: list[float] = []
    for _ in range(FAIL_OVERS):
        leader = await _leader(admin)
        await cluster.kill(leader, signal.SIGKILL)
        began_s, killed_s = time.monotonic(), time.time()  # the API server's clock, too: it is the same machine
        while pods.planned_s <= killed_s:  # what the dead one planned may be seen late
            await asyncio.sleep(0.05)  # a look at a number
        times_s.append(time.monotonic() - began_s)
        tell(f"{leader} was killed: {times_s[-1]:.1f} s to the next pod")
        await cluster.start(leader)
        await asyncio.sleep(STANDS_STILL_S / 2)  # it follows before it may lead
    return [
        Row(name=f"fail-over to the next start: slowest of {FAIL_OVERS}", value=max(times_s), unit="s", budget="<= 15")
    ]


async def _leader(admin: Client) -> str:
    query = {"labelSelector": f"{LABEL_LEADER}=true"}
    while True:
        found = (await admin.get("/api/v1/namespaces/coda-system/pods", query))["items"]
        if len(found) == 1:
            return str(found[0]["metadata"]["name"].removeprefix("coda-"))
        await asyncio.sleep(0.2)


def _cpu_jobs(pods: int) -> list[Json]:
    container = {"name": "main", "image": "work:1", "resources": {"requests": {"cpu": str(CORES_PER_POD)}}}
    spec = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": [container]}
    return [
        {
            "metadata": {"name": f"sweep-{first // PODS_PER_JOB}"},
            "spec": {
                "completions": 1_000_000,
                "backoffLimit": 1_000_000,  # a deleted pod counts as failed
                "parallelism": min(PODS_PER_JOB, pods - first),
                "template": {"spec": spec},
            },
        }
        for first in range(0, pods, PODS_PER_JOB)
    ]


def _state(pod: Json | None) -> tuple[str, str] | None:
    """The kind of a pod and its state; None for others, and for those that end."""
    if pod is None or "deletionTimestamp" in pod["metadata"]:
        return None
    kind = CPU_POD if pod["metadata"]["namespace"] == BATCH else RANK
    if kind == RANK and LABEL_JOB_UID not in (pod["metadata"].get("labels") or {}):
        return None
    if (pod.get("status") or {}).get("phase") == "Running":
        return kind, RUNNING
    gates = pod["spec"].get("schedulingGates") or ()
    return kind, GATED if {"name": GATE} in gates else BOUND


def _key(pod: Json) -> str:
    return f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"


def _more(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--nodes", type=int, default=0, help=f"(default {NODES})")


if __name__ == "__main__":
    sys.exit(ask(__doc__, answer, more=_more))
