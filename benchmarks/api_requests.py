"""How many API requests a job costs from its create to Succeeded, for one pod and for a gang of 8.

Counted from the API server's audit log, but for watches and Leases. The plain arm runs equal pods to their end.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from typing import Any, Final

from coda_kube.api.client import Client
from coda_kube.objects.json_types import Json
from rig.arms import ARMS, CODA, Arms, two_armed_cluster
from rig.asking import ask, orders, tell
from rig.auditing import AuditedCluster, Request, by_kind, is_upkeep
from rig.binding import clear, create_all, following
from rig.loads import JOBS, PODS, gang_json, plain_pods
from rig.results import Answer, Row, median_ratio

NODES, JOBS_PER_RUN = 100, 20
QUICK_NODES, QUICK_JOBS = 20, 5
SIZES: Final = (1, 8)
RUN_S: Final = 2.0
CODA_USERS: Final = frozenset({"coda-operator", "coda-extender"})


async def answer(options: argparse.Namespace) -> Answer:
    """Jobs of each size, all at once, in both arms."""
    nodes, jobs = (QUICK_NODES, QUICK_JOBS) if options.quick else (NODES, JOBS_PER_RUN)
    found: dict[int, dict[str, list[Counter[Request]]]] = {size: {arm: [] for arm in ARMS} for size in SIZES}
    async with two_armed_cluster(nodes, tell, kind=AuditedCluster) as arms, arms.cluster.client("user") as user:
        for order in orders(options.pairs, ARMS):
            for arm in order:
                for size in SIZES:
                    requests = await count(arms, user, arm, size=size, jobs=jobs)
                    found[size][arm].append(requests)
                    tell(f"{jobs} jobs of {size}, {arm}: {requests.total() / jobs:.1f} requests per job")
    answers = [row for size in SIZES for row in rows(size, found[size], jobs)]
    return Answer(question="api_requests", rows=tuple(answers), detail=detail(found, jobs))


async def count(arms: Arms, client: Client, arm: str, *, size: int, jobs: int) -> Counter[Request]:
    """The requests that `jobs` jobs of `size` pods cost until all have succeeded."""
    await arms.enter(arm)
    gangs = [gang_json(f"job-{number}", size, gpus=1, run_s=RUN_S) for number in range(jobs)]
    path, items = (JOBS, gangs) if arm == CODA else (PODS, [pod for gang in gangs for pod in plain_pods(gang)])
    cluster = arms.cluster
    assert isinstance(cluster, AuditedCluster)
    async with following(client, path) as created:
        mark = cluster.mark()
        await create_all(client, path, items)
        await created.until(lambda by_key: sum(map(has_succeeded, by_key.values())) == len(items))
        requests = cluster.requests_since(mark)
    await clear(client)
    return Counter({request: times for request, times in requests.items() if not is_upkeep(request)})


def has_succeeded(item: Json) -> bool:
    """Of a TrainingJob or a pod."""
    return (item.get("status") or {}).get("phase") == "Succeeded"


def rows(size: int, found: dict[str, list[Counter[Request]]], jobs: int) -> list[Row]:
    """What Coda itself asks for, and what everybody does."""
    name = f"API requests per job of {size} pod{'s' if size > 1 else ''}"
    own = [sum(times for request, times in run.items() if request.user in CODA_USERS) for run in found[CODA]]
    totals = [(coda.total(), plain.total()) for coda, plain in zip(*found.values(), strict=True)]
    return [
        Row(name=f"{name}: operator and extender", value=sorted(own)[len(own) // 2] / jobs, unit="requests"),
        Row(name=f"{name}: everybody, with Coda / without", value=median_ratio(totals), unit=""),
    ]


def detail(found: dict[int, dict[str, list[Counter[Request]]]], jobs: int) -> dict[str, Any]:
    """Per job, by who asked for what; summed over the pairs."""
    return {
        f"{size} pods, {arm}": by_kind(sum(runs, Counter()), per=jobs * len(runs))
        for size, by_arm in found.items()
        for arm, runs in by_arm.items()
    }


if __name__ == "__main__":
    sys.exit(ask(__doc__, answer))
