"""How long a gang of 512 pods takes on 1000 nodes, from its create to the last bind, against 512 equal plain pods."""

from __future__ import annotations

import argparse
import sys
from statistics import median
from typing import Final

from rig.arms import ARMS, CODA, PLAIN, Run, two_armed_cluster
from rig.asking import ask, orders, tell
from rig.binding import bind, clear, timed
from rig.loads import JOBS, PODS, gang_json, plain_pods
from rig.results import Answer, Row, median_ratio

NODES, REPLICAS = 1000, 512
QUICK_NODES, QUICK_REPLICAS = 100, 64
WARM_UP_REPLICAS: Final = 8


async def answer(options: argparse.Namespace) -> Answer:
    """One gang, or its pods, at a time on an empty cluster."""
    nodes, replicas = (QUICK_NODES, QUICK_REPLICAS) if options.quick else (NODES, REPLICAS)
    runs: dict[str, list[Run]] = {arm: [] for arm in ARMS}
    async with two_armed_cluster(nodes, tell) as arms, arms.cluster.client("user") as user:
        for order in orders(options.pairs, ARMS):
            for arm in order:
                await arms.enter(arm)
                for size in (WARM_UP_REPLICAS, replicas):
                    gang = gang_json("gang", size)
                    path, items = (JOBS, [gang]) if arm == CODA else (PODS, plain_pods(gang))
                    run = await timed(arms, arm, bind(user, path, items, size))
                    await clear(user)
                runs[arm].append(run)
                tell(f"{replicas} pods, {arm}: {run.lasted_s:.2f} s")
    return Answer(question="large_gang", rows=rows(nodes, replicas, runs), detail=detail(runs))


def rows(nodes: int, replicas: int, runs: dict[str, list[Run]]) -> tuple[Row, ...]:
    """The median, and how it compares with plain pods."""
    name = f"gang of {replicas} pods on {nodes} nodes"
    official = (nodes, replicas) == (NODES, REPLICAS)
    budget, aim = ("<= 10", "<= 5") if official else ("", "")
    with_coda, without = ([run.lasted_s for run in runs[arm]] for arm in ARMS)
    ratio = median_ratio(zip(with_coda, without, strict=True))
    return (
        Row(name=f"{name}: create to all bound", value=median(with_coda), unit="s", budget=budget, aim=aim),
        Row(name=f"{name}: time with Coda / without", value=ratio, unit=""),
    )


def detail(runs: dict[str, list[Run]]) -> dict[str, object]:
    """Every run."""
    return {
        "lasted_s": {arm: [round(run.lasted_s, 3) for run in runs[arm]] for arm in (CODA, PLAIN)},
        "cpu_s_by_part": {arm: [run.cpu_s_by_part for run in runs[arm]] for arm in (CODA, PLAIN)},
    }


if __name__ == "__main__":
    sys.exit(ask(__doc__, answer))
