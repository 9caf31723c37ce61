"""How long a GPU job waits for cores that CPU jobs borrowed, and whether any of them is evicted without a start.

A Deployment and a Job fill a cluster, most of their pods on borrowed cores. Then GPU jobs come one after the other,
run for two seconds each, and the CPU jobs come back.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from typing import Final, NamedTuple

from coda.errors import CodaError
from coda_kube.api.client import Client
from coda_kube.objects.json_types import Json
from coda_kube.objects.names import ANNOTATION_BORROWS, GATE, OPT_IN
from coda_lab.local.startup import running_cluster
from coda_lab.spec import ClusterSpec
from rig.arms import NODES_PER_RACK
from rig.asking import ask, tell
from rig.binding import Followed, following
from rig.loads import JOBS, gang_json
from rig.results import Answer, Row, percentile

NODES, ARRIVALS = 17, 100  # of 48 cores, of which the CPU array owns 16: 544 are lent
QUICK_NODES, QUICK_ARRIVALS = 2, 5
CORES: Final = 48
OWN_CORES: Final = 16
SEED: Final = 15
GPUS: Final = (1, 1, 2, 2, 4)  # of a rank, drawn for each job; four cores for each
PAUSE_S: Final = (0.2, 1.5)  # from one job's start to the next arrival
RUN_S: Final = 2.0
SETTLE_S: Final = 12.0  # borrowers run for longer than their minimum before the first job comes

BATCH: Final = "batch"
PODS: Final = f"/api/v1/namespaces/{BATCH}/pods"
BATCH_JOBS: Final = f"/apis/batch/v1/namespaces/{BATCH}/jobs"
DEPLOYMENTS: Final = f"/apis/apps/v1/namespaces/{BATCH}/deployments"


class Reclaimed(NamedTuple):
    """What one GPU job's arrival led to. Times are seconds from its creation."""

    cores: int  # that it asks for
    evicted: int
    ordered_s: float  # the last eviction is seen; 0 without any
    free_s: float  # the last evicted pod is gone
    running_s: float


class Evictions:
    """When pods were seen being deleted, and gone: by uid. A listener of their watch."""

    def __init__(self) -> None:
        self.ordered_s: dict[str, float] = {}
        self.gone_s: dict[str, float] = {}

    def listener(self, old: Json | None, new: Json | None) -> None:
        """A pod came, changed or went."""
        for item in (old, new):
            if item is not None and "deletionTimestamp" in item["metadata"]:
                self.ordered_s.setdefault(item["metadata"]["uid"], time.monotonic())
        if old is not None and (new is None or new["metadata"]["uid"] != old["metadata"]["uid"]):
            self.gone_s[old["metadata"]["uid"]] = time.monotonic()


async def answer(options: argparse.Namespace) -> Answer:
    """GPU jobs one after the other on a cluster full of borrowers."""
    nodes, arrivals = (QUICK_NODES, QUICK_ARRIVALS) if options.quick else (NODES, ARRIVALS)
    spec = ClusterSpec(nodes=f"{nodes}x8x{CORES}", racks=max(1, nodes // NODES_PER_RACK))
    async with running_cluster(spec, tell=tell) as cluster, cluster.client("admin") as admin:
        await opt_in(admin)
        borrowers = await fill(admin, nodes)
        tell(f"{borrowers} CPU jobs run on borrowed cores")
        await asyncio.sleep(SETTLE_S)
        async with cluster.client("user") as user:
            found, in_vain = await reclaim(admin, user, arrivals, seed=SEED)
        failed = (await admin.get(f"{BATCH_JOBS}/sweep"))["status"].get("failed") or 0
    detail = {"borrowers": borrowers, "seed": SEED, "jobs": [one._asdict() for one in found]}
    return Answer(
        question="reclaim", rows=rows(borrowers, found, in_vain, failed, judged=not options.quick), detail=detail
    )


async def opt_in(admin: Client) -> None:
    """Make the namespace of the CPU jobs, and wait until its pods become some."""
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": BATCH, "labels": {OPT_IN: "true"}}}
    await admin.create("/api/v1/namespaces", body)
    probe = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "probe", "namespace": BATCH}, "spec": _pod_spec()}
    while True:
        try:
            made = await admin.create(PODS, probe, {"dryRun": "All"})
        except CodaError:  # the namespace has no service account yet
            made = {"spec": {}}
        if made["spec"].get("schedulingGates") == [{"name": GATE}]:
            return
        await asyncio.sleep(0.1)


async def fill(admin: Client, nodes: int, *, spare: int = 0) -> int:
    """Fill every core with a CPU job of one core. Returns how many of them borrow. `spare` more wait: they take the
    cores of evicted pods that the Job controller brings back late (10 s, twice as long for each, at most 600)."""
    cores = nodes * CORES
    of_the_job = cores // 5
    labels = {"app": "web"}
    spec = {
        "replicas": cores - of_the_job + spare,
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": _pod_spec() | {"restartPolicy": "Always"}},
    }
    counts = {"completions": of_the_job, "parallelism": of_the_job}
    async with following(admin, PODS) as pods:
        await admin.create(DEPLOYMENTS, {"metadata": {"name": "web"}, "spec": spec})
        await admin.create(
            BATCH_JOBS, {"metadata": {"name": "sweep"}, "spec": counts | {"template": {"spec": _pod_spec()}}}
        )
        await pods.until(lambda by_key: sum(map(_runs, by_key.values())) >= cores)
        return sum(map(_borrows, pods.cache.by_key.values()))


async def reclaim(
    admin: Client, user: Client, arrivals: int, *, seed: int, prefix: str = "train", full: int = 0
) -> tuple[list[Reclaimed], int]:
    """Submit so many GPU jobs, one after the other, and see whom each evicts. Returns also how many pods were evicted
    for none that started. `full`: each comes once so many pods run again, however slow the machine is."""
    rng, evictions, found = random.Random(seed), Evictions(), list[Reclaimed]()
    async with following(admin, PODS, listener=evictions.listener) as pods, following(user, JOBS) as jobs:
        for number in range(arrivals):
            gpus = rng.choice(GPUS)
            await pods.until(lambda by_key: sum(map(_runs, by_key.values())) >= full)
            body = gang_json(f"{prefix}-{number}", 1, gpus=gpus, run_s=RUN_S)
            body["spec"]["cpusPerReplica"] = 4 * gpus
            found.append(await _arrive(user, jobs, pods, evictions, body))
            await asyncio.sleep(rng.uniform(*PAUSE_S))  # the load, not a wait
        return found, len(evictions.ordered_s) - sum(one.evicted for one in found)


async def _arrive(user: Client, jobs: Followed, pods: Followed, evictions: Evictions, body: Json) -> Reclaimed:
    key, known = f"default/{body['metadata']['name']}", set(evictions.ordered_s)
    began_s = time.monotonic()
    await user.create(JOBS, body)
    await jobs.until(lambda by_key: _phase(by_key.get(key)) in ("Running", "Succeeded"))
    running_s = time.monotonic() - began_s
    evicted = evictions.ordered_s.keys() - known
    await pods.until(lambda _: evicted <= evictions.gone_s.keys())
    ordered_s = max((evictions.ordered_s[uid] - began_s for uid in evicted), default=0.0)
    free_s = max((evictions.gone_s[uid] - began_s for uid in evicted), default=0.0)
    return Reclaimed(body["spec"]["cpusPerReplica"], len(evicted), ordered_s, free_s, running_s)


def rows(borrowers: int, found: list[Reclaimed], in_vain: int, failed: int, *, judged: bool) -> tuple[Row, ...]:
    """Over the GPU jobs for which somebody was evicted. Times include the pods' grace period of a second."""
    some = [one for one in found if one.evicted] or found
    name, budget, none = f"{borrowers} borrowers", "<= 5" if judged else "", "<= 0" if judged else ""
    return (
        Row(
            name=f"{name}: GPU job to last eviction: p99",
            value=percentile([one.ordered_s for one in some], 0.99),
            unit="s",
        ),
        Row(
            name=f"{name}: GPU job to its cores free: p50",
            value=percentile([one.free_s for one in some], 0.5),
            unit="s",
        ),
        Row(
            name=f"{name}: GPU job to its cores free: p99",
            value=percentile([one.free_s for one in some], 0.99),
            unit="s",
            budget=budget,
        ),
        Row(name=f"{name}: GPU job to running: p99", value=percentile([one.running_s for one in some], 0.99), unit="s"),
        Row(name=f"{name}: evictions for {len(some)} GPU jobs", value=sum(one.evicted for one in some), unit=""),
        Row(name=f"{name}: evictions for no job that started", value=in_vain, unit="", budget=none),
        Row(name=f"{name}: pods that their Job counts as failed", value=failed, unit="", budget=none),
    )


def _pod_spec() -> Json:
    container = {"name": "main", "image": "work:1", "resources": {"requests": {"cpu": "1"}}}
    return {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": [container]}


def _runs(pod: Json) -> bool:
    return (pod.get("status") or {}).get("phase") == "Running" and "deletionTimestamp" not in pod["metadata"]


def _borrows(pod: Json) -> bool:
    return (pod["metadata"].get("annotations") or {}).get(ANNOTATION_BORROWS) == "true"


def _phase(job: Json | None) -> str:
    return str(((job or {}).get("status") or {}).get("phase") or "")


if __name__ == "__main__":
    sys.exit(ask(__doc__, answer))
