"""Memory and CPU of each process with 1000 finished jobs in the cluster: while nothing changes, and under a mild load.

While nothing changes, what Coda asks of the API server is counted too. The rig's processes are in the detail.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, Final

from api_requests import CODA_USERS, has_succeeded
from coda_kube.api.client import Client
from coda_lab.local.startup import running_cluster
from coda_lab.spec import EXTENDER, OPERATOR, ClusterSpec
from rig.arms import NODES_PER_RACK, pids
from rig.asking import ask, positive, tell
from rig.auditing import AuditedCluster, Request, by_kind, is_upkeep
from rig.binding import Followed, create_all, following
from rig.loads import JOBS, gang_json
from rig.results import Answer, Row
from rig.usage import Usage, cpu_s_between, usage_by_pid

NODES, FINISHED, IDLE_S, STEADY_MINUTES = 100, 1000, 60.0, 10
QUICK_NODES, QUICK_FINISHED, QUICK_IDLE_S, QUICK_STEADY_S = 20, 30, 10.0, 15.0
SETTLING_S: Final = 35.0  # a watch lasts 30 s: by then each has begun anew since the last change
SAMPLE_EVERY_S: Final = 5.0
JOB_EVERY_S: Final = 1.0
SIZES: Final = (1, 1, 2, 8)  # of the jobs of the mild load, in turns
RUN_S: Final = 10.0
MIB: Final = 1 << 20
BUDGETED: Final = (OPERATOR, EXTENDER)


async def answer(options: argparse.Namespace) -> Answer:
    """One cluster as `coda local` starts it: an operator and two replicas of the extender."""
    quick = options.quick
    nodes, finished = (QUICK_NODES, QUICK_FINISHED) if quick else (NODES, FINISHED)
    idle_s = QUICK_IDLE_S if quick else IDLE_S
    steady_s = 60.0 * options.minutes if options.minutes else QUICK_STEADY_S if quick else 60.0 * STEADY_MINUTES
    spec = ClusterSpec(nodes=f"{nodes}x8x48", racks=max(1, nodes // NODES_PER_RACK))
    audited = running_cluster(spec, tell=tell, kind=AuditedCluster)
    async with audited as cluster, cluster.client("user") as user:
        assert isinstance(cluster, AuditedCluster)
        async with following(user, JOBS) as jobs:
            await finish_jobs(user, jobs, finished)
        await asyncio.sleep(SETTLING_S)
        mark = cluster.mark()
        idle = await sampled(cluster, idle_s)
        requests = requests_of_coda(cluster.requests_since(mark))
        tell(f"nothing changes for {idle_s:.0f} s: {requests.total()} requests of Coda's but for watches and Leases")
        steady = await sampled(cluster, steady_s, meanwhile=lambda: keep_submitting(user))
    found = [*rows("idle", idle), *_request_row(requests), *rows("1 job/s", steady)]
    detail = {"idle": describe(idle), "idle_requests": by_kind(requests), "steady": describe(steady)}
    return Answer(question="footprint", rows=tuple(found), detail=detail)


class Samples:
    """What every process used, again and again, from the first to the last sample."""

    def __init__(self) -> None:
        self.by_time: list[tuple[float, dict[str, Usage]]] = []

    def take(self, cluster: AuditedCluster) -> None:
        """One sample of every process."""
        self.by_time.append((time.monotonic(), usage_by_pid(pids(cluster))))

    @property
    def lasted_s(self) -> float:
        """From the first to the last."""
        return self.by_time[-1][0] - self.by_time[0][0]

    def cpu_share(self, name: str) -> float:
        """Of one core, on average."""
        return cpu_s_between(self.by_time[0][1], self.by_time[-1][1])[name] / self.lasted_s

    def rss_mib(self, name: str) -> list[float]:
        """In the order of the samples."""
        return [round(usage[name].rss_bytes / MIB, 1) for _, usage in self.by_time if name in usage]

    @property
    def names(self) -> list[str]:
        """Of the processes that were there from the first to the last."""
        return sorted(self.by_time[0][1].keys() & self.by_time[-1][1].keys())


async def finish_jobs(client: Client, jobs: Followed, count: int) -> None:
    """Create that many jobs of one pod that succeed at once, and wait until they have."""
    await create_all(client, JOBS, [gang_json(f"done-{number}", 1, gpus=1, run_s=0.1) for number in range(count)])
    await jobs.until(lambda by_key: sum(map(has_succeeded, by_key.values())) == count)
    tell(f"{count} jobs have finished")


async def keep_submitting(client: Client) -> None:
    """A job every second, for ever; what has ended goes after a while, as with a time to live."""
    number = 0
    async with following(client, JOBS) as jobs:
        kept = set(jobs.cache.by_key)
        while True:
            job = gang_json(f"load-{number}", SIZES[number % len(SIZES)], gpus=2, run_s=RUN_S)
            await client.create(JOBS, job)
            for key, item in list(jobs.cache.by_key.items()):
                if key not in kept and has_succeeded(item) and "deletionTimestamp" not in item["metadata"]:
                    await client.delete(f"{JOBS}/{item['metadata']['name']}")
            number += 1
            await asyncio.sleep(JOB_EVERY_S)


async def sampled(
    cluster: AuditedCluster, lasting_s: float, *, meanwhile: Callable[[], Awaitable[None]] | None = None
) -> Samples:
    """Look at every process every few seconds, for so long, while `meanwhile` goes on."""
    samples = Samples()
    load = None if meanwhile is None else asyncio.ensure_future(meanwhile())
    try:
        for left in range(max(1, round(lasting_s / SAMPLE_EVERY_S)), -1, -1):
            samples.take(cluster)
            if load is not None and load.done():
                load.result()
            await asyncio.sleep(SAMPLE_EVERY_S if left else 0)
    finally:
        if load is not None:
            load.cancel()
            await asyncio.wait({load})
    return samples


def requests_of_coda(requests: Counter[Request]) -> Counter[Request]:
    """Without watches and Leases, and without the rig's."""
    return Counter({it: times for it, times in requests.items() if it.user in CODA_USERS and not is_upkeep(it)})


def rows(when: str, samples: Samples) -> list[Row]:
    """CPU and memory of Coda's processes. The budget is for the idle state, of every replica."""
    found: list[Row] = []
    cpu_budget, memory_budget = ("<= 1", "<= 120") if when == "idle" else ("", "")
    for name in (name for name in samples.names if name.partition("-")[0] in BUDGETED):
        share, most_mib = 100 * samples.cpu_share(name), max(samples.rss_mib(name))
        found.append(Row(name=f"{when}: {name}, CPU", value=share, unit="% of a core", budget=cpu_budget))
        found.append(Row(name=f"{when}: {name}, memory", value=most_mib, unit="MiB", budget=memory_budget))
    return found


def describe(samples: Samples) -> dict[str, Any]:
    """For the detail: every process, the rig's too; memory over time shows what grows."""
    return {
        "lasted_s": round(samples.lasted_s, 1),
        "cpu_share": {name: round(samples.cpu_share(name), 4) for name in samples.names},
        "rss_mib": {name: samples.rss_mib(name)[:: max(1, len(samples.by_time) // 12)] for name in samples.names},
    }


def _request_row(requests: Counter[Request]) -> list[Row]:
    name = "idle: requests of Coda's but for watches and Leases"
    return [Row(name=name, value=requests.total(), unit="requests", budget="<= 0")]


def _more(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--minutes", type=positive, help=f"of the mild load (default {STEADY_MINUTES})")


if __name__ == "__main__":
    sys.exit(ask(__doc__, answer, more=_more))
