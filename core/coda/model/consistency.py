"""Checks that a world can exist, for tests and tools."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from coda.errors import InconsistentWorld
from coda.model.job import Job
from coda.model.live_placement import live_placement
from coda.model.resources import Resources
from coda.model.world import World


def check(world: World) -> None:
    """Return if the world can exist; else raise InconsistentWorld with every breach, in a stable order.

    `used`, `in_flight` and `leaving` may name nodes that the world lacks: a node can vanish before its pods."""
    breaches = [*_breaches_of_nodes(world), *_breaches_of_jobs(world), *_breaches_of_quotas(world)]
    if breaches:
        raise InconsistentWorld(tuple(sorted(breaches)))


def _breaches_of_nodes(world: World) -> Iterator[str]:
    yield from _repeated("node", (node.name for node in world.nodes))
    for node in world.nodes:
        yield from _negative(f"allocatable of node {node.name}", node.allocatable)
    for word, amounts in (("used", world.used), ("in flight", world.in_flight), ("leaving", world.leaving)):
        for name, amount in amounts.items():
            yield from _negative(f"{word} on node {name}", amount)


def _breaches_of_jobs(world: World) -> Iterator[str]:
    yield from _repeated("job", (job.id for job in world.jobs))
    live_plans = [placement.plan_id for job in world.jobs if (placement := live_placement(job)) is not None]
    yield from _repeated("live plan", live_plans)
    for job in world.jobs:
        if "/" not in job.id:
            yield f"job {job.id} has no namespace in its id"
        if job.replicas < 1:
            yield f"job {job.id} has {job.replicas} replicas"
        yield from _negative(f"request of job {job.id}", job.request)
        if job.wish is not None and job.wish.cores < 1:
            yield f"job {job.id} wishes for {job.wish.cores} cores"
        yield from _breaches_of_ranks(job)


def _breaches_of_ranks(job: Job) -> Iterator[str]:
    placement = live_placement(job)
    if placement is None:
        return
    if len(placement.nodes) != job.replicas:
        yield f"job {job.id} has {job.replicas} replicas but its plan places {len(placement.nodes)}"
    if placement.gpus and len(placement.gpus) != len(placement.nodes):
        yield f"the plan of job {job.id} has {len(placement.nodes)} ranks and seats for {len(placement.gpus)}"
    if not all(placement.nodes):
        yield f"the plan of job {job.id} names no node for a rank"
    for rank in sorted({*job.bound, *job.unbound}):
        if not 0 <= rank < job.replicas:
            yield f"job {job.id} has a pod of rank {rank} but only {job.replicas} replicas"
        if rank in job.bound and rank in job.unbound:
            yield f"rank {rank} of job {job.id} is both bound and unbound"


def _breaches_of_quotas(world: World) -> Iterator[str]:
    yield from _repeated("quota", (f"{quota.namespace}/{quota.name}" for quota in world.quotas))
    for quota in world.quotas:
        for word, amounts in (("hard", quota.hard), ("used", quota.used)):
            for key, amount in amounts.items():
                if amount < 0:
                    yield f"{word} {key} of quota {quota.namespace}/{quota.name} is negative"
    for job in world.jobs:
        for key, amount in job.quota.items():
            if amount < 0:
                yield f"quota use {key} of job {job.id} is negative"


def _repeated(word: str, names: Iterable[str]) -> Iterator[str]:
    for name, count in Counter(names).items():
        if count > 1:
            yield f"{word} {name} occurs {count} times"


def _negative(where: str, amount: Resources) -> Iterator[str]:
    named = {"cpu": amount.cpu_m, "memory": amount.memory_bytes, "gpus": amount.gpus, "pods": amount.pods}
    for name, value in (*named.items(), *amount.other.items()):
        if value < 0:
            yield f"{where}: {name} is negative"
