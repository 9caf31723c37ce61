"""How many pods per second are bound, with Coda and as if there were no Coda.

Gangs: from the create of the first TrainingJob to the last bind seen, against equal pods that the same client creates.
Foreign pods: the same unpinned pods through kube-scheduler with the extender and without.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

from coda.errors import InvalidInput
from coda_kube.api.client import Client
from coda_kube.objects.json_types import Json
from rig.arms import ARMS, CODA, GPUS_PER_NODE, PLAIN, Arms, Run, two_armed_cluster
from rig.asking import ask, orders, positive, tell
from rig.binding import bind, clear, timed
from rig.loads import GPUS_PER_RANK, JOBS, PODS, foreign_pods, gang_json, gang_sizes, plain_pods
from rig.results import Answer, Row, median_ratio

GANGS: Final = "gangs"
FOREIGN: Final = "foreign pods"
LOADS: Final = (GANGS, FOREIGN)
BOUNDS: Final = {  # (load, nodes) -> budget, aim
    (GANGS, 1000): (">= 0.9", ">= 1.0"),
    (GANGS, 5000): (">= 1.0", ">= 1.5"),
    (FOREIGN, 1000): (">= 0.9", ">= 0.95"),
    (FOREIGN, 5000): (">= 0.45", ">= 0.7"),
}
NODES: Final = (1000, 5000)
QUICK_NODES: Final = (100,)
PODS_PER_RUN: Final = 1000
QUICK_PODS: Final = 100
WARM_UP_PODS: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One load in both arms, one right after the other."""

    nodes: int
    load: str
    pods: int
    coda: Run
    plain: Run

    @property
    def cpu_s(self) -> tuple[float, float]:
        """Of everything on the machine that belongs to the run: with Coda, without."""
        return sum(self.coda.cpu_s_by_part.values()), sum(self.plain.cpu_s_by_part.values())

    @property
    def pods_per_s(self) -> tuple[float, float]:
        """With Coda, without."""
        return self.pods / self.coda.lasted_s, self.pods / self.plain.lasted_s

    def as_json(self) -> dict[str, Any]:
        """For the detail."""
        with_coda, without = (round(rate, 1) for rate in self.pods_per_s)
        return {
            "nodes": self.nodes,
            "load": self.load,
            "pods": self.pods,
            "pods_per_s": {CODA: with_coda, PLAIN: without},
            "ratio": round(with_coda / without, 3),
            "cpu_s_by_part": {CODA: self.coda.cpu_s_by_part, PLAIN: self.plain.cpu_s_by_part},
        }


async def answer(options: argparse.Namespace) -> Answer:
    """Measure on one cluster per size."""
    pods = options.pods or (QUICK_PODS if options.quick else PODS_PER_RUN)
    found: list[Pair] = []
    for nodes in [options.nodes] if options.nodes else QUICK_NODES if options.quick else NODES:
        if pods * GPUS_PER_RANK > (room := nodes * GPUS_PER_NODE):
            raise InvalidInput(f"{pods} pods of gangs need {pods * GPUS_PER_RANK} GPUs; {nodes} nodes have {room}.")
        async with two_armed_cluster(nodes, tell) as arms, arms.cluster.client("user") as user:
            for order in orders(options.pairs, ARMS):
                found += await pairs(arms, user, order, nodes=nodes, pods=pods)
    detail = {"pairs": [pair.as_json() for pair in found]}
    return Answer(question="throughput", rows=tuple(rows(found)), detail=detail)


async def pairs(arms: Arms, client: Client, order: Sequence[str], *, nodes: int, pods: int) -> list[Pair]:
    """Every load once in each arm, the arms in that order."""
    runs: dict[tuple[str, str], Run] = {}
    for arm in order:
        await arms.enter(arm)
        for load in LOADS:
            await _bound(client, arm, load, WARM_UP_PODS)
            await clear(client)
            run = runs[arm, load] = await timed(arms, arm, _bound(client, arm, load, pods))
            tell(f"{nodes} nodes, {load}, {arm}: {pods / run.lasted_s:.0f} pods/s")
            await clear(client)
    return [Pair(nodes=nodes, load=load, pods=pods, coda=runs[CODA, load], plain=runs[PLAIN, load]) for load in LOADS]


def objects(arm: str, load: str, pods: int) -> tuple[str, list[Json]]:
    """Where a load is created in an arm, and what: the same pods in both."""
    if load == FOREIGN:
        return PODS, foreign_pods(pods)
    gangs = [gang_json(f"gang-{number}", size) for number, size in enumerate(gang_sizes(pods))]
    return (JOBS, gangs) if arm == CODA else (PODS, [pod for gang in gangs for pod in plain_pods(gang)])


def rows(found: Sequence[Pair]) -> list[Row]:
    """Per size and load: the median of the ratios, and what was reached."""
    answers: list[Row] = []
    for load, nodes in dict.fromkeys((pair.load, pair.nodes) for pair in found):
        of_these = [pair for pair in found if (pair.load, pair.nodes) == (load, nodes)]
        rates = [pair.pods_per_s for pair in of_these]
        budget, aim = BOUNDS.get((load, nodes), ("", ""))
        name = f"{load}, {nodes} nodes"
        ratio = median_ratio(rates)
        answers.append(Row(name=f"{name}: with Coda / without", value=ratio, unit="", budget=budget, aim=aim))
        answers.append(Row(name=f"{name}: with Coda", value=median(rate for rate, _ in rates), unit="pods/s"))
        cpu_ratio = median_ratio(pair.cpu_s for pair in of_these)  # says as much on a machine that is busy otherwise
        answers.append(Row(name=f"{name}: CPU of everything, with Coda / without", value=cpu_ratio, unit=""))
    return answers


async def _bound(client: Client, arm: str, load: str, pods: int) -> None:
    path, items = objects(arm, load, pods)
    await bind(client, path, items, pods)


def _more(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--nodes", type=positive, help="one cluster of that many nodes (default 1000, then 5000)")
    parser.add_argument("--pods", type=positive, help=f"pods of each run (default {PODS_PER_RUN})")


if __name__ == "__main__":
    sys.exit(ask(__doc__, answer, more=_more))
