"""What every finished job leaves in the memory of each process, when 10 000 jobs finish in a live cluster."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from typing import Final

from api_requests import has_succeeded
from coda_kube.objects.json_types import Json
from coda_lab.local.cluster import LocalCluster
from coda_lab.local.startup import running_cluster
from coda_lab.spec import EXTENDER, OPERATOR, ClusterSpec
from rig.arms import NODES_PER_RACK, pids
from rig.asking import ask, tell
from rig.binding import create_all, following
from rig.loads import JOBS, gang_json
from rig.results import Answer, Row
from rig.usage import usage_by_pid

NODES, JOBS_COUNT = 100, 10_000
QUICK_NODES, QUICK_JOBS = 20, 200
STEPS: Final = 10  # memory is looked at after each tenth
WARM_STEPS: Final = 3  # what every process needs once is there by then
OPEN: Final = 300  # jobs that are not finished yet
RUN_S: Final = 0.1
SETTLED_S: Final = 12.0  # collectors run every 10 s
JUDGED: Final = (OPERATOR, EXTENDER)


async def answer(options: argparse.Namespace) -> Answer:
    """Jobs of one pod, a few hundred open at a time; none is deleted."""
    nodes, count = (QUICK_NODES, QUICK_JOBS) if options.quick else (NODES, JOBS_COUNT)
    spec = ClusterSpec(nodes=f"{nodes}x8x48", racks=max(1, nodes // NODES_PER_RACK))
    began_s = time.monotonic()
    memory: list[dict[str, int]] = []
    async with running_cluster(spec, tell=tell) as cluster:
        for step in range(STEPS):
            await finish(cluster, range(step * count // STEPS, (step + 1) * count // STEPS))
            await asyncio.sleep(SETTLED_S)
            usage = usage_by_pid(pids(cluster))
            memory.append({name: each.rss_bytes for name, each in usage.items()})
            told = ", ".join(f"{name} {size >> 20}" for name, size in memory[-1].items() if name.startswith(JUDGED))
            tell(f"{(step + 1) * count // STEPS} jobs have finished: {told} MiB")
    lasted_s = time.monotonic() - began_s - STEPS * SETTLED_S
    detail = {
        "rss_mib": {name: [round(each.get(name, 0) / 2**20, 1) for each in memory] for name in memory[0]},
        "jobs_at": [(step + 1) * count // STEPS for step in range(STEPS)],
    }
    found = (*rows(memory, count), Row(name=f"{count} jobs of 1 pod: finished", value=count / lasted_s, unit="jobs/s"))
    return Answer(question="finished_jobs", rows=found, detail=detail)


async def finish(cluster: LocalCluster, numbers: range) -> None:
    """Create these jobs, at most OPEN more than have finished, and wait until the last has succeeded."""
    done: set[str] = set()
    room = asyncio.Semaphore(OPEN)

    def listener(_old: Json | None, new: Json | None) -> None:
        name = new["metadata"]["name"] if new is not None else ""
        if new is not None and has_succeeded(new) and name in wanted and name not in done:
            done.add(name)
            room.release()

    wanted = {f"done-{number}" for number in numbers}
    async with cluster.client("user") as user, following(user, JOBS, listener=listener) as jobs:
        for number in numbers:
            await room.acquire()
            await create_all(user, JOBS, [gang_json(f"done-{number}", 1, gpus=1, run_s=RUN_S)])
        await jobs.until(lambda _: len(done) == len(wanted))


def rows(memory: list[dict[str, int]], count: int) -> list[Row]:
    """The growth of Coda's processes for each job that finished after the warm-up. Only the official size is judged."""
    first, last = memory[WARM_STEPS - 1], memory[-1]
    jobs = count * (STEPS - WARM_STEPS) // STEPS
    budget = "<= 1" if count == JOBS_COUNT else ""
    return [
        Row(
            name=f"each finished job in {name}",
            value=(last[name] - first[name]) / jobs / 1024,
            unit="KiB",
            budget=budget,
        )
        for name in sorted(last)
        if name.startswith(JUDGED) and name in first
    ]


if __name__ == "__main__":
    sys.exit(ask(__doc__, answer))
