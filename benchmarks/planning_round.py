"""How long one planning round takes in a full cluster whose world changes before each: jobs end, plans are released,
pods are created and bound, jobs are submitted, nodes fail and come back. Reading the changes is in the time.

Nothing is asserted: what `decide` returns is applied to the world, and the next round plans on.
"""

from __future__ import annotations

import argparse
import gc
import random
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, Protocol

from coda.model import JobId
from coda.model.decision import Refusal, Start
from coda.policy import DEFAULT, PolicyConfig
from coda_extender.__main__ import MOST_UNCOLLECTED
from coda_extender.guard.in_flight import InFlightPods
from coda_extender.planner.pending_reasons import notice_for
from coda_extender.planner.snapshot_feed import SnapshotFeed
from coda_extender.planner_process import AnswerEnd, ChangedRefusals, Kind, Orders, Question
from coda_extender.planner_process.answering import Answering
from coda_extender.planner_process.messages import Setup
from coda_kube.cluster_state import ClusterState
from coda_kube.objects.write import pending_json
from rig.asking import ask, positive, tell
from rig.results import Answer, Row, percentile
from rig.worlds import GPUS_PER_NODE, Json, node_json, random_job, rank_pods, released, with_status

ROUNDS = 200
SIZES = (500, 1000, 2500, 5000)
WARM_UP = 5
JOBS_PER_NODE = 2  # that wait
SMALL, SMALL_WAITING = 80, 100  # the simulated month's cluster on a busy day
ENDS = 0.0005  # of all running jobs end between two rounds, and at least one
SICKNESS = 0.1  # how often a node fails between two rounds
REASONS = 64  # written between two rounds
NOW_S = 1_800_000_000.0

Change = tuple[Callable[[Json | None, Json | None], None], Json | None, Json | None]
"""A listener of the state, and the object before and after."""


class Listeners(Protocol):
    """Who is told of changes."""

    @property
    def state(self) -> ClusterState: ...
    def on_node(self, old: Json | None, new: Json | None) -> None: ...
    def on_pod(self, old: Json | None, new: Json | None) -> None: ...
    def on_job(self, old: Json | None, new: Json | None) -> None: ...


class Alone:
    """A state without a guard beside it."""

    def __init__(self) -> None:
        self.state = ClusterState()
        self.on_node, self.on_pod, self.on_job = self.state.on_node, self.state.on_pod, self.state.on_job


class MadeCluster:
    """A cluster as the planner's caches would tell of it."""

    def __init__(
        self, nodes: int, waiting: int, *, seed: int, policy: str = DEFAULT, replica: Listeners | None = None
    ) -> None:
        self._told: Listeners = replica or Alone()
        self.state = self._told.state
        self.running: list[JobId] = []
        self.refusal_by_job: dict[JobId, Refusal] = {}
        self._unwritten: dict[JobId, Refusal] = {}
        self._answering = Answering()
        assert not [*self._answering.take(Setup(PolicyConfig(policy=policy)))]
        self._feed = SnapshotFeed(self.state, InFlightPods(time.monotonic, lambda: None), dict)
        self._rng = random.Random(seed)
        self._number = 0
        self._queued = 0
        self._waiting = waiting
        self._sick: int | None = None
        self._nodes = nodes
        for number in range(nodes):
            self._told.on_node(None, node_json(number))
        for _ in range(5):  # the first fill the cluster, the last the queue
            self.happen(self.submissions())
            self.happen(self.written(self.run_cycle()))
        self.happen(self.submissions())

    def run_cycle(self) -> list[Start]:
        """What one cycle starts: both halves of the planner, with nothing between them."""
        starts: list[Start] = []
        for values in self._feed.changes():
            assert not [*self._answering.take(values)]
        for message in self._answering.take(Question(Kind.CYCLE, 1, NOW_S)):
            if isinstance(message, ChangedRefusals):
                self.take_refusals(message)
            elif isinstance(message, Orders):
                starts += [order for order in message.items if isinstance(order, Start)]
            else:
                assert isinstance(message, AnswerEnd), message
        return starts

    def take_refusals(self, changes: ChangedRefusals) -> None:
        """Keep the refusals, and which of them are to be written at once."""
        for generation, reason, jobs in changes.groups:
            for job in jobs:
                refusal = self.refusal_by_job[job] = Refusal(job, generation, reason)
                notice = notice_for(refusal, self.state.job_json_by_id.get(job))
                if notice is not None and notice.urgent:
                    self._unwritten[job] = refusal
        for job in changes.gone:
            self.refusal_by_job.pop(job, None)
            self._unwritten.pop(job, None)

    def happen(self, changes: Iterable[Change]) -> None:
        """The caches tell of these changes."""
        for listener, old, new in changes:
            listener(old, new)

    def written(self, starts: list[Start]) -> Iterator[Change]:
        """What planner, operator and kubelets make of a round: plans, some reasons, pods, and running jobs."""
        for start in starts:
            waiting = self.state.job_json_by_id[start.job]
            planned = released(waiting, start)
            created, bound = rank_pods(planned, bound=False), rank_pods(planned, bound=True)
            yield self._told.on_job, waiting, planned
            yield from [(self._told.on_pod, None, pod) for pod in created]
            yield from [(self._told.on_pod, old, new) for old, new in zip(created, bound, strict=True)]
            yield self._told.on_job, planned, with_status(planned, phase="Running")
            self.running.append(start.job)
            self._queued -= 1
        for refusal in [*islice(self._unwritten.values(), REASONS)]:
            del self._unwritten[refusal.job]
            old = self.state.job_json_by_id[refusal.job]
            yield self._told.on_job, old, with_status(old, pending=pending_json(refusal, since_s=NOW_S))

    def changes_after(self, starts: list[Start]) -> Iterator[Change]:
        """All that happens until the next round, each made when it is asked for."""
        yield from self.ends()
        yield from self.written(starts)
        yield from self.node_changes()
        yield from self.submissions()

    def ends(self) -> Iterator[Change]:
        """A few running jobs end, and their pods go."""
        for job in self._rng.sample(self.running, max(1, round(len(self.running) * ENDS))):
            self.running.remove(job)
            item = self.state.job_json_by_id[job]
            yield from [(self._told.on_pod, pod, None) for pod in rank_pods(item, bound=True)]
            yield self._told.on_job, item, None

    def submissions(self) -> Iterator[Change]:
        """As many new jobs as keep the queue at its length."""
        count = self._waiting - self._queued
        self._queued += count
        first, self._number = self._number, self._number + count
        for number in range(first, first + count):
            yield self._told.on_job, None, random_job(number, self._rng)

    def node_changes(self) -> list[Change]:
        """Now and then a node fails; the next time it is back."""
        if self._sick is not None:
            number, self._sick = self._sick, None
            return [(self._told.on_node, node_json(number, ready=False), node_json(number))]
        if self._rng.random() > SICKNESS:
            return []
        self._sick = number = self._rng.randrange(self._nodes)
        return [(self._told.on_node, node_json(number), node_json(number, ready=False))]


def rounds(nodes: int, waiting: int, count: int, *, policy: str = DEFAULT, seed: int = 1) -> dict[str, Any]:
    """Seconds of each round: reading what happened since the last one, and thinking. Garbage is collected as in the
    extender, at the end of each round and in its time."""
    cluster = MadeCluster(nodes, waiting, policy=policy, seed=seed)
    changes: list[Change] = []
    thresholds = gc.get_threshold()
    gc.set_threshold(MOST_UNCOLLECTED, 1_000, 1_000)
    gc.collect()
    gc.freeze()
    lasted_s, cpu_s, starts, changed = [], [], [], []
    for number in range(count + WARM_UP):
        began_s, cpu_began_s = time.perf_counter(), time.thread_time()
        cluster.happen(changes)
        started = cluster.run_cycle()
        gc.collect(1)
        gc.freeze()
        ended_s, cpu_ended_s = time.perf_counter(), time.thread_time()
        if number >= WARM_UP:
            lasted_s.append(ended_s - began_s)
            cpu_s.append(cpu_ended_s - cpu_began_s)
            starts.append(len(started))
            changed.append(len(changes))
        changes = [*cluster.changes_after(started)]
    gc.unfreeze()
    gc.set_threshold(*thresholds)
    return {
        "nodes": nodes,
        "gpus": nodes * GPUS_PER_NODE,
        "waiting": len(cluster.refusal_by_job),
        "running": len(cluster.running),
        "p50_ms": percentile(lasted_s, 0.5) * 1e3,
        "p99_ms": percentile(lasted_s, 0.99) * 1e3,
        "cpu_p50_ms": percentile(cpu_s, 0.5) * 1e3,
        "cpu_p99_ms": percentile(cpu_s, 0.99) * 1e3,
        "most_ms": max(lasted_s) * 1e3,
        "starts_per_round": sum(starts) / count,
        "changes_per_round": sum(changed) / count,
    }


async def answer(options: argparse.Namespace) -> Answer:
    """Every size."""
    sizes = SIZES[:2] if options.quick else SIZES
    small = rounds(SMALL, SMALL_WAITING, options.rounds, policy=options.policy)
    found = [rounds(nodes, nodes * JOBS_PER_NODE, options.rounds, policy=options.policy) for nodes in sizes]
    for row in (small, *found):
        tell(str({name: round(value, 3) for name, value in row.items()}))
    rows = tuple(answer_rows(small, found, found[-1]))
    return Answer(question="planning_round", rows=rows, detail={"sizes": [small, *found]})


def answer_rows(small: dict[str, Any], found: list[dict[str, Any]], last: dict[str, Any]) -> list[Row]:
    rows = []
    for sized in (small, *found):
        bounds = {"budget": "<= 100", "aim": "<= 50"} if sized is last else {}
        for name in ("p50", "p99", "cpu_p99"):
            limits = bounds if name == "p99" else {}
            title = f"round of {sized['nodes']} nodes, {sized['waiting']} waiting: {name.replace('_', ' ')}"
            rows.append(Row(name=title, value=sized[f"{name}_ms"], unit="ms", **limits))
    growth = last["p50_ms"] / found[0]["p50_ms"]
    rows.append(
        Row(name=f"growth of p50 from {found[0]['nodes']} to {last['nodes']} nodes", value=growth, unit="times")
    )
    return rows


def _more(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--policy", default=DEFAULT, help=f"a live policy (default {DEFAULT})")
    parser.add_argument("--rounds", type=positive, default=ROUNDS, help=f"rounds of each size (default {ROUNDS})")


if __name__ == "__main__":
    sys.exit(ask(__doc__, answer, more=_more))
