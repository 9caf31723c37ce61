"""Small worlds in one line: every builder gives valid defaults, and `world` refuses an impossible one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from coda.model import Job, JobId, Node, Phase, Placement, PlacementState, Resources, World
from coda.model.consistency import check
from coda.model.constraints import NodeConstraints, Taint
from coda.model.decision import Start
from coda.model.job import SharingWish, StopCause, StopOrder
from coda.model.quota_scopes import PodScopes, QuotaScope
from coda.model.seats import SHARING, as_sharer, seat_name
from coda.model.world import ArrayQuota, GpuUse, Quota, VirtualCluster
from coda.placements import placement_from_start
from coda.policy import PolicyConfig

GIB = 2**30
RACK_LABEL = "topology.coda.scheduler/rack"
HOST_LABEL = "kubernetes.io/hostname"


def resources(*, gpus: int = 0, cores: float = 0, memory_gib: float = 0, pods: int = 0, **other: int) -> Resources:
    return Resources(gpus=gpus, cpu_m=round(cores * 1000), memory_bytes=round(memory_gib * GIB), pods=pods, other=other)


def node(
    name: str,
    *,
    gpus: int = 8,
    cores: float = 48,
    memory_gib: float = 384,
    pods: int = 110,
    rack: str | None = None,
    labels: Mapping[str, str] | None = None,
    taints: tuple[Taint, ...] = (),
    schedulable: bool = True,
    other: Mapping[str, int] | None = None,
) -> Node:
    """A node of 8 GPUs and 48 cores with its host name label, in no rack unless told."""
    rack_labels = {} if rack is None else {RACK_LABEL: rack}
    return Node(
        name=name,
        allocatable=resources(gpus=gpus, cores=cores, memory_gib=memory_gib, pods=pods, **(other or {})),
        labels={HOST_LABEL: name, **rack_labels, **(labels or {})},
        taints=taints,
        schedulable=schedulable,
    )


def rack(name: str, nodes: int, *, gpus: int = 8, cores: float = 48) -> tuple[Node, ...]:
    """The nodes `<name>-0`, `<name>-1`, ... of one rack."""
    return tuple(node(f"{name}-{number}", rack=name, gpus=gpus, cores=cores) for number in range(nodes))


def job(
    name: str = "job",
    *,
    namespace: str = "team",
    replicas: int = 1,
    gpus: int = 1,
    cores: float = 1,
    memory_gib: float = 1,
    other: Mapping[str, int] | None = None,
    phase: Phase = Phase.QUEUED,
    attempt: int = 1,
    generation: int = 1,
    priority: int = 0,
    queued_s: float = 0.0,
    not_before_s: float = 0.0,
    resumable: bool = False,
    constraints: NodeConstraints | None = None,
    avoid: Iterable[str] = (),
    within: str | None = None,
    quota: Mapping[str, int] | None = None,
    scopes: PodScopes | None = None,
    user: str = "",
    virtual_cluster: str = "",
    returned: bool = False,
) -> Job:
    """A waiting job of one rank with one GPU, one core and 1 GiB."""
    return Job(
        id=JobId(f"{namespace}/{name}"),
        uid=f"uid-{namespace}-{name}",
        phase=phase,
        attempt=attempt,
        generation=generation,
        replicas=replicas,
        request=resources(gpus=gpus, cores=cores, memory_gib=memory_gib, pods=1, **(other or {})),
        cpus_per_replica=int(cores),
        constraints=constraints or NodeConstraints(),
        priority=priority,
        queued_s=queued_s,
        not_before_s=not_before_s,
        resumable=resumable,
        avoid=frozenset(avoid),
        within=within,
        quota=quota or {},
        scopes=scopes,
        user=user,
        virtual_cluster=virtual_cluster,
        returned=returned,
    )


def planned(
    job: Job, *nodes: str, state: PlacementState = PlacementState.COMMITTED, phase: Phase = Phase.QUEUED
) -> Job:
    """The job with a live plan, rank -> node, and no pod yet."""
    placement = Placement(
        attempt=job.attempt,
        plan_id=f"plan-{job.uid}-{job.attempt}",
        epoch=1,
        generation=job.generation,
        state=state,
        nodes=nodes,
        cpus_per_replica=job.cpus_per_replica,
        committed_s=0.0,
        bind_deadline_s=60.0,
    )
    return replace(job, placement=placement, phase=phase)


def running(job: Job, *nodes: str) -> Job:
    """The job with all ranks bound and running on these nodes."""
    placed = planned(job, *nodes, state=PlacementState.RELEASED, phase=Phase.RUNNING)
    return replace(placed, bound=frozenset(range(job.replicas)))


def seat_node(name: str, *, gpus: int = 1, seats: int = 4, gpu_gib: int | None = 80, cores: float = 48) -> Node:
    """A node that offers so many seats on each of its GPUs, which have so much memory (None: nobody says)."""
    labels = {} if gpu_gib is None else {"nvidia.com/gpu.memory": str(gpu_gib * 1024)}
    seats_by_gpu = {seat_name(number): seats for number in range(gpus)}
    return node(name, gpus=gpus, cores=cores, labels=labels, other=seats_by_gpu | {SHARING: 128})


def joinable(one: Job, *nodes: str) -> Job:
    """The job with whole GPUs, running on these nodes; its pods bring the files with which it may be joined."""
    on_nodes = running(one, *nodes)
    assert on_nodes.placement is not None
    return replace(on_nodes, placement=replace(on_nodes.placement, joinable=True))


def gpu_of(one: Job, index: int, *, rank: int = 0, duty: float | None = 0.4, gib: int | None = 20) -> GpuUse:
    """What an agent says of a GPU that a rank of the job has whole."""
    peak = None if gib is None else gib * GIB
    return GpuUse(index=index, is_taken=True, job=one.id, attempt=one.attempt, rank=rank, duty=duty, peak_bytes=peak)


def gpu_of_nobody(index: int) -> GpuUse:
    """What an agent says of a GPU that nobody has whole."""
    return GpuUse(index=index, is_taken=False)


def opportunistic(one: Job, *, gpu_gib: float = 0, wish: SharingWish = SharingWish.OPPORTUNISTIC) -> Job:
    """The same job, which asks for seats; each rank needs so much of a GPU's memory, if that is known."""
    return replace(one, sharing=wish, gpu_bytes=round(gpu_gib * GIB))


def seated(one: Job, *places: tuple[str, int], since_s: float = 0.0) -> Job:
    """The job with all ranks bound and running on seats: node and GPU by rank."""
    on_nodes = running(one, *(name for name, _ in places))
    assert on_nodes.placement is not None
    gpus = tuple(gpu for _, gpu in places)
    return as_sharer(replace(on_nodes, placement=replace(on_nodes.placement, gpus=gpus, committed_s=since_s)))


def quota(
    name: str = "quota",
    *,
    hard: Mapping[str, int],
    used: Mapping[str, int] | None = None,
    namespace: str = "team",
    scopes: tuple[QuotaScope, ...] = (),
) -> Quota:
    """A ResourceQuota in milli-units."""
    return Quota(namespace=namespace, name=name, hard=hard, used=used or {}, scopes=scopes)


def world(
    nodes: Iterable[Node],
    jobs: Iterable[Job] = (),
    *,
    quotas: Iterable[Quota] = (),
    foreign: Mapping[str, Resources] | None = None,
    in_flight: Mapping[str, Resources] | None = None,
    leaving: Mapping[str, Resources] | None = None,
    weights: Mapping[str, float] | None = None,
    virtual_clusters: Iterable[VirtualCluster] = (),
    array_quotas: Iterable[ArrayQuota] = (),
    reclaimed: Mapping[str, float] | None = None,
    gpu_uses: Mapping[str, tuple[GpuUse, ...]] | None = None,
) -> World:
    """A checked world: `used` is what the bound ranks of the jobs take, and `foreign` pods besides."""
    jobs = tuple(jobs)
    used = dict(foreign or {})
    for one in jobs:
        if one.placement is not None:
            for rank in one.bound:
                name = one.placement.nodes[rank]
                used[name] = used.get(name, Resources()) + one.request
                if one.placement.gpus:
                    used[name] += Resources(other={seat_name(one.placement.gpus[rank]): 1})
    snapshot = World(
        nodes=tuple(nodes),
        used=used,
        in_flight=in_flight or {},
        leaving=leaving or {},
        jobs=jobs,
        quotas=tuple(quotas),
        virtual_clusters=tuple(virtual_clusters),
        array_quotas=tuple(array_quotas),
        weights=weights or {},
        reclaimed=reclaimed or {},
        gpu_uses=gpu_uses or {},
    )
    check(snapshot)
    return snapshot


def stopping(one: Job, cause: StopCause = StopCause.MIGRATE, by: str = "team/other") -> Job:
    """The same running job, ordered to stop; its pods are still there."""
    assert one.placement is not None
    return replace(one, placement=replace(one.placement, stop=StopOrder(cause=cause, by=JobId(by), since_s=0.0)))


def start(job: Job, *nodes: str) -> Start:
    """What `decide` returns when it starts the job on these nodes."""
    return Start(
        job=job.id,
        attempt=job.attempt,
        generation=job.generation,
        nodes=nodes,
        cpus_per_replica=job.cpus_per_replica,
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
