"""How long a user waits for "cannot start, because ..." after the create, while 1000 jobs wait already.

Every GPU is taken. With Coda: the time to `status.pending` of a TrainingJob; without: to the condition PodScheduled
with reason Unschedulable of a pod, while as many pods wait.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from typing import Final

from coda_kube.api.client import Client
from coda_kube.objects.json_types import Json
from rig.arms import ARMS, CODA, Arms, two_armed_cluster
from rig.asking import ask, orders, tell
from rig.binding import Followed, bind, clear, create_all, following
from rig.loads import JOBS, NAMESPACE, PODS, gang_json, plain_pods
from rig.results import Answer, Row, median_ratio, percentile

NODES, WAITING, ASKED = 200, 1000, 20  # ASKED: per arm and pair
QUICK_NODES, QUICK_WAITING, QUICK_ASKED = 20, 50, 10
GPUS_PER_NODE: Final = 8
BETWEEN_S: Final = 0.1  # from one answer to the next create: users do not come in step with planning rounds


async def answer(options: argparse.Namespace) -> Answer:
    """A full cluster with a long queue, asked again and again, in both arms."""
    nodes, waiting, asked = (QUICK_NODES, QUICK_WAITING, QUICK_ASKED) if options.quick else (NODES, WAITING, ASKED)
    found: dict[str, list[list[float]]] = {arm: [] for arm in ARMS}
    async with two_armed_cluster(nodes, tell) as arms, arms.cluster.client("user") as user:
        for order in orders(options.pairs, ARMS):
            for arm in order:
                lasted_s = await ask_often(arms, user, arm, nodes=nodes, waiting=waiting, asked=asked)
                tell(f"first reason, {arm}: median {percentile(lasted_s, 0.5):.3f} s, slowest {max(lasted_s):.3f} s")
                found[arm].append(lasted_s)
    return Answer(question="first_reason", rows=rows(found, waiting), detail={"lasted_s": found})


async def ask_often(arms: Arms, client: Client, arm: str, *, nodes: int, waiting: int, asked: int) -> list[float]:
    """Fill the cluster and the queue, then time one create after the other to its reason."""
    await arms.enter(arm)
    path, filling = objects(arm, "full", replicas=nodes)
    await bind(client, path, filling, nodes)
    async with following(client, path) as items:
        queue = [item for number in range(waiting) for item in objects(arm, f"waiting-{number}", replicas=1)[1]]
        await create_all(client, path, queue)
        await items.until(lambda by_key: sum(map(has_reason, by_key.values())) == waiting)
        lasted_s = [await time_to_reason(client, items, arm, f"asked-{number}") for number in range(asked)]
    await clear(client)
    return lasted_s


async def time_to_reason(client: Client, items: Followed, arm: str, name: str) -> float:
    """Seconds from the create to the reason."""
    path, (item,) = objects(arm, name, replicas=1)
    key = f"{NAMESPACE}/{item['metadata']['name']}"
    began_s = time.monotonic()
    await client.create(path, item)
    await items.until(lambda by_key: key in by_key and has_reason(by_key[key]))
    lasted_s = time.monotonic() - began_s
    await asyncio.sleep(BETWEEN_S)
    return lasted_s


def objects(arm: str, name: str, *, replicas: int) -> tuple[str, list[Json]]:
    """A gang that needs every GPU of as many nodes, or its pods."""
    gang = gang_json(name, replicas, gpus=GPUS_PER_NODE)
    return (JOBS, [gang]) if arm == CODA else (PODS, plain_pods(gang))


def has_reason(item: Json) -> bool:
    """True when a TrainingJob, or a pod, says why it does not start."""
    status = item.get("status") or {}
    return bool((status.get("pending") or {}).get("message")) or any(
        condition["type"] == "PodScheduled" and condition.get("reason") == "Unschedulable"
        for condition in status.get("conditions") or ()
    )


def rows(found: dict[str, list[list[float]]], waiting: int) -> tuple[Row, ...]:
    """Over all pairs, and the median of the pairs' ratios."""
    everything = [lasted_s for pair in found[CODA] for lasted_s in pair]
    official = waiting == WAITING
    budget, aim = ("<= 2", "<= 1") if official else ("", "")
    medians = [(percentile(coda, 0.5), percentile(plain, 0.5)) for coda, plain in zip(*found.values(), strict=True)]
    name = f"first reason, {waiting} jobs waiting"
    return (
        Row(name=f"{name}: p50", value=percentile(everything, 0.5), unit="s"),
        Row(name=f"{name}: p99", value=percentile(everything, 0.99), unit="s", budget=budget, aim=aim),
        Row(name=f"{name}: p50 with Coda / kube-scheduler's without", value=median_ratio(medians), unit=""),
    )


if __name__ == "__main__":
    sys.exit(ask(__doc__, answer))
