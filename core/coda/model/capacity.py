"""Queries on a world, hypothetical changes of it, and its consistency check. What must not live here: choices.

The one idea: what is free on a node is what it can allocate, less what its pods use, less what foreign pods in flight
may take, less what live plans withhold for ranks that no bound pod stands for yet, and for growth that was granted and
that no pod counts with yet.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from coda.errors import InconsistentWorld
from coda.model.decision import Start
from coda.model.job import FINISHED, NOTHING, Job, Node, Phase, Placement, PlacementState, Resources, Wish, World
from coda.policy.config import PolicyConfig


def live_placement(job: Job) -> Placement | None:
    """The plan that holds for the job's current attempt, or None.

    A plan dies with its attempt, when the job is suspended, finished or ordered to stop, and when a queued job was
    edited after it was made; edits of a launched job never touch its shape."""
    placement = job.placement
    if placement is None or placement.attempt != job.attempt or placement.stop is not None:
        return None
    if job.phase is Phase.QUEUED:
        return placement if placement.generation == job.generation else None
    return None if job.phase is Phase.SUSPENDED or job.phase in FINISHED else placement


def is_waiting(job: Job) -> bool:
    """True for a queued job that no live plan starts."""
    return job.phase is Phase.QUEUED and (job.placement is None or live_placement(job) is None)


def withheld_ranks(job: Job) -> Iterator[tuple[int, str]]:
    """The ranks whose share of a node is taken though no bound pod uses it, with that node's name.

    Until all pods are known to exist (queued, launched) that is every rank without a bound pod; afterwards, and
    whatever became of the plan, every live pod that has no node yet, where it is pinned."""
    if _may_lack_pods(job):
        placement = live_placement(job)
        if placement is not None:
            for rank, node in enumerate(placement.nodes):
                if rank not in job.bound:
                    yield rank, job.unbound.get(rank, node)
            return
    yield from job.unbound.items()


def _may_lack_pods(job: Job) -> bool:
    return job.phase is Phase.QUEUED or job.phase is Phase.LAUNCHED


def is_resizing(job: Job) -> bool:
    """True while a wish that was granted is being carried out."""
    placement = live_placement(job) if job.phase is Phase.RUNNING else None
    answer = placement.answer if placement is not None else None
    return answer is not None and answer.granted and answer.sequence > job.resized


def after_stops(world: World) -> World:
    """The world once all ordered stops are carried out: what a decision is about. O(nodes) where there are any."""
    if not world.leaving:
        return world
    used = dict(world.used)
    for node, amount in world.leaving.items():
        used[node] = used.get(node, NOTHING) - amount
    return replace(world, used=used, leaving={})


def open_wish(job: Job) -> Wish | None:
    """The wish of a running job that awaits an answer: the last one, unless the one before is still carried out."""
    wish = job.wish
    if wish is None or job.phase is not Phase.RUNNING or is_resizing(job):
        return None
    placement = live_placement(job)
    if placement is None or (placement.answer is not None and placement.answer.sequence >= wish.sequence):
        return None
    return wish


def growth_by_node(job: Job, cores: int) -> dict[str, int]:
    """Per node, the millicores that the pods of a placed job lack for so many cores per rank, where they lack any."""
    placement = live_placement(job)
    asked_m = job.request.cpu_m + (cores - job.cpus_per_replica) * 1000
    growth: dict[str, int] = {}
    for rank, node in enumerate(placement.nodes if placement is not None else ()):
        lacking_m = asked_m - job.pod_cpu_m.get(rank, job.request.cpu_m)
        if lacking_m > 0:
            growth[node] = growth.get(node, 0) + lacking_m
    return growth


def withheld(world: World) -> dict[str, Resources]:
    """Per node, what plans and unbound pods withhold; nodes without any are absent. O(jobs + ranks withheld)."""
    held: dict[str, Resources] = {}
    for job in world.jobs:
        _sum(held, withheld_shares(job))
    return held


def withheld_shares(job: Job) -> dict[str, Resources]:
    """Per node, what one job's plan, its unbound pods and its granted growth withhold."""
    if job.placement is not None and job.placement.answer is not None and is_resizing(job):
        growth = growth_by_node(job, job.placement.answer.cores)
        return _sum(_shares_of_ranks(job), {node: Resources(cpu_m=cpu_m) for node, cpu_m in growth.items()})
    if not job.unbound and (job.placement is None or not _may_lack_pods(job)):
        return {}
    return _shares_of_ranks(job)


def _shares_of_ranks(job: Job) -> dict[str, Resources]:
    ranks_by_node = Counter(node for _, node in withheld_ranks(job))
    return {node: job.request * ranks for node, ranks in ranks_by_node.items()}


def _sum(shares: dict[str, Resources], more: Mapping[str, Resources]) -> dict[str, Resources]:
    for node, share in more.items():
        shares[node] = shares[node] + share if node in shares else share
    return shares


def free_by_node(world: World) -> dict[str, Resources]:
    """Per node of the world: allocatable - used - in flight - withheld. Negative where a node is over-committed."""
    takers = tuple(taker for taker in (world.used, world.in_flight, withheld(world)) if taker)
    return {node.name: free_on(node, takers) for node in world.nodes}


def free_on(node: Node, takers: Iterable[Mapping[str, Resources]]) -> Resources:
    """Allocatable of one node, less what each of the `takers` has there."""
    free = node.allocatable
    for taker in takers:
        taken = taker.get(node.name)
        if taken is not None:
            free = free - taken
    return free


def placement_from_start(start: Start, *, plan_id: str, epoch: int, now_s: float, config: PolicyConfig) -> Placement:
    """The durable plan that commits `start` at `now_s`."""
    return Placement(
        attempt=start.attempt,
        plan_id=plan_id,
        epoch=epoch,
        generation=start.generation,
        state=PlacementState.COMMITTED,
        nodes=start.nodes,
        cpus_per_replica=start.cpus_per_replica,
        committed_s=now_s,
        bind_deadline_s=now_s + config.bind_deadline_s,
        borrows=start.borrows,
    )


def with_starts(world: World, starts: Iterable[Start], config: PolicyConfig, now_s: float) -> World:
    """The world once `starts` are committed (by epoch 0, plan ids `<uid>-<attempt>`)."""
    start_by_job = {start.job: start for start in starts}

    def committed(job: Job) -> Job:
        start = start_by_job.get(job.id)
        if start is None:
            return job
        plan_id = f"{job.uid}-{start.attempt}"
        return replace(job, placement=placement_from_start(start, plan_id=plan_id, epoch=0, now_s=now_s, config=config))

    return replace(world, jobs=tuple(committed(job) for job in world.jobs))


def check(world: World) -> None:
    """Return for a world that can exist. Raises InconsistentWorld naming every breach, in a stable order.

    `used`, `in_flight` and `leaving` may name nodes the world lacks: a node can vanish before its pods do."""
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
