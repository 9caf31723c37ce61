"""How much later a job of one GPU starts while a gang of 4096 ranks launches, and while it is rolled back."""

from __future__ import annotations

import argparse
import asyncio
import itertools
import sys
import time
from collections.abc import Iterator
from statistics import median
from typing import Final

from coda_kube.api.client import Client
from coda_kube.objects.json_types import Json
from coda_kube.objects.names import LABEL_JOB
from coda_lab.local.startup import running_cluster
from coda_lab.spec import ClusterSpec
from rig.arms import NODES_PER_RACK
from rig.asking import ask, tell
from rig.binding import Followed, following
from rig.loads import JOBS, PODS, gang_json
from rig.results import Answer, Row

NODES, RANKS = 530, 4096  # 8 ranks a node, and free nodes for the small jobs
QUICK_NODES, QUICK_RANKS = 20, 128
ALONE: Final = 10  # small jobs before the gang
EVERY_S: Final = 1.0
RUN_S: Final = 0.5
GANG: Final = "gang"


async def answer(options: argparse.Namespace) -> Answer:
    """A small job every second: alone, beside the launch, beside the roll-back."""
    nodes, ranks = (QUICK_NODES, QUICK_RANKS) if options.quick else (NODES, RANKS)
    spec = ClusterSpec(nodes=f"{nodes}x8x48", racks=max(1, nodes // NODES_PER_RACK))
    numbers = itertools.count()
    lasted_s: dict[str, float] = {}
    async with (
        running_cluster(spec, tell=tell) as cluster,
        cluster.client("user") as user,
        following(user, JOBS) as jobs,
    ):
        small = Small(user, jobs)
        starts = {"alone": await small.starts(numbers, ALONE)}
        for name, spell in (("launch", _launched(user, jobs, ranks)), ("roll-back", _rolled_back(user))):
            began_s = time.monotonic()
            starts[name] = await small.starts_beside(numbers, asyncio.ensure_future(spell))
            lasted_s[name] = time.monotonic() - began_s
            tell(f"{name}: {lasted_s[name]:.1f} s; small jobs start after {median(starts[name]):.2f} s (median)")
    detail = {"starts_s": {name: [round(each, 3) for each in times] for name, times in starts.items()}}
    return Answer(question="launch_beside", rows=rows(nodes, ranks, starts, lasted_s), detail=detail)


def rows(nodes: int, ranks: int, starts: dict[str, list[float]], lasted_s: dict[str, float]) -> tuple[Row, ...]:
    """The slowest start beside each spell, less the median alone. Only the official size is judged."""
    alone_s = median(starts["alone"])
    budget = "<= 2" if (nodes, ranks) == (NODES, RANKS) else ""
    found = [Row(name="1-GPU job alone: create to running", value=alone_s, unit="s")]
    for name, seconds in lasted_s.items():
        later_s = max(starts[name]) - alone_s
        found.append(Row(name=f"{name} of {ranks} ranks on {nodes} nodes", value=seconds, unit="s"))
        found.append(Row(name=f"1-GPU job beside the {name}: later at most", value=later_s, unit="s", budget=budget))
    return tuple(found)


class Small:
    """Submits small jobs, and takes the time until each runs."""

    def __init__(self, client: Client, jobs: Followed) -> None:
        self._client = client
        self._jobs = jobs

    async def starts(self, numbers: Iterator[int], count: int) -> list[float]:
        """One job after the other, EVERY_S apart."""
        tasks = []
        for _ in range(count):
            tasks.append(asyncio.create_task(self._start(next(numbers))))
            await asyncio.sleep(EVERY_S)
        return list(await asyncio.gather(*tasks))

    async def starts_beside(self, numbers: Iterator[int], spell: asyncio.Future[None]) -> list[float]:
        """The same while `spell` lasts."""
        tasks = []
        while not spell.done():
            tasks.append(asyncio.create_task(self._start(next(numbers))))
            await asyncio.wait({spell}, timeout=EVERY_S)
        spell.result()
        return list(await asyncio.gather(*tasks))

    async def _start(self, number: int) -> float:
        name, began_s = f"small-{number}", time.monotonic()
        await self._client.create(JOBS, gang_json(name, 1, gpus=1, run_s=RUN_S))
        await self._jobs.until(lambda by_key: _phase(by_key, name) in ("Running", "Succeeded"))
        return time.monotonic() - began_s


async def _launched(user: Client, jobs: Followed, ranks: int) -> None:
    await user.create(JOBS, gang_json(GANG, ranks, gpus=1))
    await jobs.until(lambda by_key: _phase(by_key, GANG) == "Running")


async def _rolled_back(user: Client) -> None:
    """Suspended: every pod of the gang is ended and gone."""
    async with following(user, PODS, query={"labelSelector": f"{LABEL_JOB}={GANG}"}) as pods:
        await user.patch(f"{JOBS}/{GANG}", {"spec": {"suspend": True}})
        await pods.until(lambda by_key: not by_key)


def _phase(by_key: dict[str, Json], name: str) -> str:
    job = by_key.get(f"default/{name}") or {}
    return str((job.get("status") or {}).get("phase") or "")


if __name__ == "__main__":
    sys.exit(ask(__doc__, answer))
