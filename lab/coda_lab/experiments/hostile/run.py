"""One run: a cluster of two rooms, the honest jobs beside harmless objects, then the same jobs beside hostile ones.

The honest jobs have nodes of their own, kept by a taint, and everything else has as many: so nobody takes capacity that
an honest job needs, and any difference between the two phases is harm.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from typing import Final

from coda.errors import CodaError, Outage
from coda_kube.api.client import Client
from coda_lab import install
from coda_lab.checker import Checker
from coda_lab.experiments.hostile.generator import harmless_objects, hostile_objects
from coda_lab.experiments.hostile.honest import Honest, honest_jobs
from coda_lab.experiments.hostile.kinds import JOB, KINDS, NAMESPACES
from coda_lab.experiments.hostile.measures import (
    coda_parts,
    cpu_by_part,
    cycles,
    errors_in_logs,
    memory_by_part,
    processes_of,
)
from coda_lab.experiments.hostile.nastiness import HONEST_ROOM, HONEST_TAINT, Hostile, Victims
from coda_lab.experiments.hostile.report import Options, Outcome, PhaseSeen, honest_nodes
from coda_lab.experiments.hostile.schema import Schemas, roots
from coda_lab.experiments.hostile.sender import RawClient, Sender, paths_of, release, remove_all, rows_of
from coda_lab.experiments.load.watches import JOBS, Watches, beside
from coda_lab.host.versions import machine, versions
from coda_lab.kubelets.nodes import node_specs
from coda_lab.local.cluster import LocalCluster
from coda_lab.local.restarts import Restarter
from coda_lab.local.startup import running_cluster
from coda_lab.spec import ClusterSpec, Tell

GONE_S: Final = 60.0

_LOOK_S: Final = 1.0
_PODS_AT_MOST: Final = 1_500  # of the hostile namespaces: endless pods are another attack, and quotas answer it


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """A prepared cluster and the clients of a run."""

    cluster: LocalCluster
    options: Options
    user: Client
    admin: Client
    raw_user: RawClient
    raw_admin: RawClient
    schemas: Schemas
    nodes: tuple[str, ...]
    tell: Tell


async def run(options: Options, tell: Tell) -> Outcome:
    """Run both phases on a fresh cluster. Raises CodaError when it cannot start."""
    load_before = os.getloadavg()[0]
    async with AsyncExitStack() as stack:
        scene = await _prepared(stack, options, tell)
        checker, restarter = Checker(scene.admin), Restarter(scene.cluster)
        over = asyncio.Event()
        refereeing = asyncio.create_task(_referee(checker, over))
        began_s = time.monotonic()
        async with beside(restarter.keep_all()):
            control = await _phase(scene, "control", harmless_objects(options.seed))
            victims = Victims(nodes=scene.nodes)
            objects = hostile_objects(options.seed, scene.schemas, victims, count=options.count, ways=options.ways)
            attack = await _phase(scene, "attack", objects, victims)
        over.set()
        return Outcome(
            options=options,
            control=control,
            attack=attack,
            breaches=tuple(checker.breaches),
            referee_failed=await refereeing,
            restarts_by_part={part: many for part, many in restarter.restarts_by_part.items() if many},
            versions=await versions(scene.admin),
            machine=machine(load_before),
            took_s=time.monotonic() - began_s,
        )


async def _referee(checker: Checker, over: asyncio.Event) -> str:
    """Watch the invariants until `over`; a sentence if the checker itself could not go on."""
    try:
        async with checker.watching():
            await over.wait()
    except (CodaError, ValueError, RecursionError) as error:
        return f"the invariants could not be watched: {type(error).__name__}: {str(error)[:200]}"
    return ""


async def _prepared(stack: AsyncExitStack, options: Options, tell: Tell) -> Scene:
    # As the chart installs it: pods of the default profile have a kube-scheduler of their own.
    spec = ClusterSpec(nodes=options.nodes, racks=2, operators=2, extenders=2, foreign_scheduler=True)
    cluster = await stack.enter_async_context(running_cluster(spec, tell=tell))
    if options.logs is not None:
        stack.callback(shutil.copytree, cluster.log_path("etcd").parent, options.logs, dirs_exist_ok=True)
    admin = await stack.enter_async_context(cluster.client("admin"))
    user = await stack.enter_async_context(cluster.client("user"))
    documents = {root: await admin.get(f"/openapi/v3/{root}") for root in roots()}
    honest = honest_nodes(options.nodes)
    for name in honest:
        taint = {"key": HONEST_TAINT, "effect": "NoSchedule"}
        await admin.patch(f"/api/v1/nodes/{name}", {"metadata": {"labels": HONEST_ROOM}, "spec": {"taints": [taint]}})
    for namespace in NAMESPACES:
        await admin.create("/api/v1/namespaces", {"metadata": {"name": namespace}})
        await install.wait_for_account(admin, namespace)
        cap = {"metadata": {"name": "cap"}, "spec": {"hard": {"pods": str(_PODS_AT_MOST)}}}
        await admin.create(f"/api/v1/namespaces/{namespace}/resourcequotas", cap)
    return Scene(
        cluster=cluster,
        options=options,
        user=user,
        admin=admin,
        raw_user=await stack.enter_async_context(RawClient.opened(user)),
        raw_admin=await stack.enter_async_context(RawClient.opened(admin)),
        schemas=Schemas(documents),
        nodes=honest,
        tell=tell,
    )


async def _phase(scene: Scene, name: str, objects: Iterator[Hostile], victims: Victims | None = None) -> PhaseSeen:
    cluster, options = scene.cluster, scene.options
    gpus = sum(node.gpus for node in node_specs(options.nodes, racks=1)) // 2
    jobs = honest_jobs(options.seed, count=options.jobs, gpus=gpus, over_s=options.over_s)
    honest = Honest(scene.user, jobs, name)
    if victims is not None:
        victims.uid_by_job = honest.uid_by_job
    sender = Sender(scene.raw_user, scene.raw_admin, count=options.count, over_s=jobs[-1].after_s + 1.0)
    parts = coda_parts(cluster)
    before = {part: processes_of(cluster, part) for part in parts}
    memory, seen_cycles, errors = memory_by_part(cluster), await cycles(cluster), errors_in_logs(cluster, parts)
    cpu, began_s = cpu_by_part(cluster), time.monotonic()
    scene.tell(f"{name}: {options.jobs} honest jobs in {jobs[-1].after_s:.0f} s beside {options.count} objects")
    async with Watches(scene.admin, ((JOBS, (honest.on_job,)),)).kept():
        await asyncio.gather(honest.submit(), sender.run(objects))
        tally = sender.tally
        scene.tell(
            f"{name}: {tally.stored_count} objects of {tally.kinds} kinds stored, {tally.bytes_stored >> 20} MiB"
        )
        done = await honest.all_done(options.limit_s)
        lasted_s, cpu_after = time.monotonic() - began_s, cpu_by_part(cluster)
        await asyncio.sleep(options.settle_s)
        ended = [part for part in parts if before[part].items() - processes_of(cluster, part).items()]
        seen = PhaseSeen(
            jobs=jobs,
            records=honest.records,
            all_done=done,
            tally=tally,
            rows=await rows_of(scene.raw_admin, JOB),
            cycles=(await cycles(cluster)).since(seen_cycles),
            memory_before=memory,
            memory_after=memory_by_part(cluster),
            cpu_s={part: used - cpu.get(part, 0.0) for part, used in cpu_after.items()},
            lasted_s=lasted_s,
            ended_processes=tuple(ended),
            tracebacks={part: many - errors[part] for part, many in errors_in_logs(cluster, parts).items()},
        )
        scene.tell(f"{name}: the honest jobs are done; everything is deleted")
        seen.left = tuple(await _cleared(scene, honest))
        if seen.left:
            scene.tell(f"{name}: {len(seen.left)} objects are still there: {', '.join(seen.left[:3])}")
    return seen


async def _cleared(scene: Scene, honest: Honest) -> list[str]:
    """Delete everything, and return what cannot be deleted."""
    for job in honest.jobs:
        await scene.user.delete(f"{JOBS}/{job.name}-{honest.phase}")
    for kind in KINDS:
        await remove_all(scene.raw_admin, kind)
    found: list[str] = []
    with suppress(TimeoutError):
        async with asyncio.timeout(GONE_S):
            while True:
                found = await _still_there(scene)
                if not found:
                    break
                for path in found:
                    with suppress(Outage):
                        await release(scene.raw_admin, path)
                await asyncio.sleep(_LOOK_S)
                for kind in KINDS:
                    await remove_all(scene.raw_admin, kind)
    return found


async def _still_there(scene: Scene) -> list[str]:
    found: list[str] = []
    for kind in KINDS:
        with suppress(Outage):
            found += await paths_of(scene.raw_admin, kind)
    return found
