"""How long a planning round takes in a full cluster of both arrays, without a control plane beside it.

Gangs hold all GPUs, CPU pods all other cores, and more of both wait. The time is the processor's, of the planner alone.
First all CPU pods start, as many in each round as are written of one. Then a few CPU pods end before each round, and a
gang before every other one.
"""

from __future__ import annotations

import argparse
import gc
import random
import sys
import time
from collections.abc import Iterator
from typing import Any, Final

from coda.model.decision import Start, Stop
from coda.policy import PolicyConfig
from coda_extender.__main__ import MOST_UNCOLLECTED
from coda_extender.cpu_jobs.pod_writer import MOST_RELEASES
from coda_extender.planner_process import Kind, Orders, Question
from coda_extender.planner_process.answering import Answering
from coda_extender.planner_process.messages import Setup
from coda_kube.objects.names import ANNOTATION_BORROWS, ANNOTATION_PLAN, ANNOTATION_PLANNED, GATE
from coda_kube.objects.pods.cpu_job import pod_id_of
from coda_kube.objects.quantities import time_from_seconds
from planning_round import NOW_S, MadeCluster
from rig.asking import ask, positive, tell
from rig.results import Answer, Row, percentile
from rig.worlds import Json, job_json, node_json, rank_pods

NODES, QUICK_NODES = 2000, 50
ROUNDS: Final = 200
RUNNING_PER_NODE, GATED_PER_NODE = 8, 10  # CPU pods of five cores
WAITING_PER_NODE: Final = 2.5  # gangs
PODS_PER_JOB: Final = 500
ROUND_S: Final = 0.5  # from one round to the next
STANDS_STILL: Final = 3  # rounds in a row in which no CPU pod starts
CPU_ENDS: Final = 4  # before each round
SEED: Final = 21
CONFIG: Final = PolicyConfig(policy="coda")
CAME: Final = "2027-01-15T07:{:02d}:{:02d}Z"  # within the last hour before `NOW_S`
IGNORES: Final = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}


class FullCluster(MadeCluster):
    """A cluster in which CPU pods borrow what gangs leave, and are evicted for them."""

    def __init__(self, nodes: int) -> None:
        super().__init__(0, 0, seed=SEED)
        self._answering = Answering(time.thread_time)  # as the planner's process: so CPU jobs start in turns
        self._now_s = NOW_S
        assert not [*self._answering.take(Setup(CONFIG))]
        self.pods: dict[str, Json] = {}
        self.running_pods: list[str] = []
        self._cpu_pods = self._gangs = 0
        self._draw = random.Random(SEED)
        for number in range(nodes):
            item = node_json(number)
            item["status"]["allocatable"]["cpu"] = "48"
            self._told.on_node(None, item)
        for _ in range(nodes // 2):
            self.submit_gang(4)
        self.carry_out(*self.decide())
        for _ in range((RUNNING_PER_NODE + GATED_PER_NODE) * nodes):
            self.create_pod()

    def decide(self) -> tuple[list[Start], list[Stop]]:
        """One cycle's orders."""
        orders: list[Any] = []
        self._now_s += ROUND_S
        for values in self._feed.changes():
            assert not [*self._answering.take(values)]
        for message in self._answering.take(Question(Kind.CYCLE, 1, self._now_s)):
            if isinstance(message, Orders):
                orders += message.items
        return [one for one in orders if isinstance(one, Start)], [one for one in orders if isinstance(one, Stop)]

    def carry_out(self, starts: list[Start], stops: list[Stop]) -> int:
        """What the extender writes of them, and what becomes of that at once. Returns how many CPU pods it released."""
        gangs = [start for start in starts if pod_id_of(start.job) is None]
        self.happen(self.written(gangs))
        released = [start for start in starts if pod_id_of(start.job) is not None][:MOST_RELEASES]
        for start in released:
            self._release(str(pod_id_of(start.job)), start)
        for stop in stops:
            if (pod := pod_id_of(stop.job)) in self.pods:
                self.end_pod(str(pod))
        return len(released)

    def _release(self, pod: str, start: Start) -> None:
        before = self.pods[pod]
        notes = {ANNOTATION_PLAN: f"plan-{start.job}", ANNOTATION_PLANNED: time_from_seconds(NOW_S)}
        notes |= {ANNOTATION_BORROWS: "true"} if start.borrows else {}
        metadata = before["metadata"] | {"resourceVersion": "2", "annotations": notes}
        spec = {**before["spec"], "schedulingGates": [], "nodeName": start.nodes[0]}
        self.pods[pod] = after = before | {"metadata": metadata, "spec": spec, "status": {"phase": "Running"}}
        self._told.on_pod(before, after)
        self.running_pods.append(pod)

    def submit_gang(self, replicas: int) -> None:
        """Of four GPUs and four cores a rank."""
        item = job_json(self._gangs, replicas, 4, 4, 8)
        item["status"]["queuedTime"] = CAME.format(self._gangs // 60 % 60, self._gangs % 60)
        self._gangs += 1
        self._told.on_job(None, item)

    def submit_gangs(self, count: int) -> None:
        """Gangs that wait: of one, two or four ranks."""
        for _ in range(count):
            self.submit_gang(self._draw.choice((1, 1, 2, 4)))

    def create_pod(self) -> None:
        """The next pod of a Job. Its evicted pods are made anew, so it may borrow."""
        number, owner = self._cpu_pods, self._cpu_pods // PODS_PER_JOB
        self._cpu_pods += 1
        job = {"name": f"sweep-{owner}", "namespace": "batch", "uid": f"uid-sweep-{owner}", "resourceVersion": "1"}
        if number % PODS_PER_JOB == 0:
            spec = {"podFailurePolicy": {"rules": [IGNORES]}}
            self.state.on_batch_job(None, {"metadata": job, "spec": spec})
        name = f"sweep-{owner}-{number}"
        controller = {"apiVersion": "batch/v1", "kind": "Job", "name": job["name"], "uid": job["uid"]}
        container = {"name": "main", "resources": {"requests": {"cpu": "5"}}}
        pod = self.pods[f"batch/{name}"] = {
            "metadata": {
                "name": name,
                "namespace": "batch",
                "uid": f"uid-{name}",
                "resourceVersion": "1",
                "creationTimestamp": CAME.format(min(59, number // 600), number % 60),
                "annotations": {},
                "ownerReferences": [controller | {"controller": True}],
            },
            "spec": {"schedulerName": "coda", "schedulingGates": [{"name": GATE}], "containers": [container]},
            "status": {"phase": "Pending"},
        }
        self._told.on_pod(None, pod)

    def end_pod(self, pod: str) -> None:
        """It goes, and its Job creates another."""
        self._told.on_pod(self.pods.pop(pod), None)
        self.running_pods.remove(pod)
        self.create_pod()

    def end_some(self, number: int) -> None:
        """What ends before a round: the CPU pods and the gangs that have run longest."""
        for pod in self.running_pods[:CPU_ENDS]:
            self.end_pod(pod)
        if number % 2 and self.running:
            job = self.running.pop(0)
            item = self.state.job_json_by_id[job]
            for rank in rank_pods(item, bound=True):
                self._told.on_pod(rank, None)
            self._told.on_job(item, None)


def timed_rounds(cluster: FullCluster, before: Iterator[int]) -> Iterator[tuple[float, int]]:
    """The seconds of each round, and how many CPU pods were released of it. `before` lets things happen first."""
    for _ in before:
        began_s = time.thread_time()
        starts, stops = cluster.decide()
        gc.collect(1)
        gc.freeze()
        took_s = time.thread_time() - began_s
        yield took_s, cluster.carry_out(starts, stops)


async def answer(options: argparse.Namespace) -> Answer:
    """Fill the cluster, and let others start."""
    nodes = QUICK_NODES if options.quick else NODES
    thresholds = gc.get_threshold()
    gc.set_threshold(MOST_UNCOLLECTED, 1_000, 1_000)
    cluster = FullCluster(nodes)
    filling_s: list[float] = []
    still = 0
    for took_s, released in timed_rounds(cluster, iter(range(10_000))):
        filling_s.append(took_s)
        still = 0 if released else still + 1
        if still == STANDS_STILL:
            break
    del filling_s[-STANDS_STILL:]
    tell(f"{len(cluster.running_pods)} CPU pods run after {len(filling_s)} rounds, {sum(filling_s):.1f} s")
    cluster.submit_gangs(round(WAITING_PER_NODE * nodes))
    cluster.carry_out(*cluster.decide())
    busy = timed_rounds(cluster, _ending(cluster, options.rounds))
    lasted_s = [took_s for took_s, _ in busy]
    gc.unfreeze()
    gc.set_threshold(*thresholds)
    name = f"{nodes} full nodes, {len(cluster.running_pods)} CPU pods run, {len(cluster.pods)} in all"
    rows = (
        Row(name=f"{name}: rounds until all run", value=len(filling_s), unit="rounds"),
        Row(name=f"{name}: the first of them, which reads all pods", value=1e3 * filling_s[0], unit="ms"),
        Row(name=f"{name}: the others, p50", value=1e3 * percentile(filling_s[1:], 0.5), unit="ms"),
        Row(name=f"{name}: the others, longest", value=1e3 * max(filling_s[1:]), unit="ms"),
        Row(name=f"{name}: later rounds, p50", value=1e3 * percentile(lasted_s, 0.5), unit="ms"),
        Row(name=f"{name}: later rounds, p99", value=1e3 * percentile(lasted_s, 0.99), unit="ms", budget="<= 100"),
    )
    return Answer(question="cpu_job_rounds", rows=rows)


def _ending(cluster: FullCluster, rounds: int) -> Iterator[int]:
    for number in range(rounds):
        cluster.end_some(number)
        yield number


def _more(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=positive, default=ROUNDS, help=f"rounds once all run (default {ROUNDS})")


if __name__ == "__main__":
    sys.exit(ask(__doc__, answer, more=_more))
