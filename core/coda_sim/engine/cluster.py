"""The simulated cluster: who holds what on which node, and the same as a `World` for the planner.

The world is updated, not built: jobs and nodes that did not change stay the same objects in the same blocks. So a
cycle with a cache reads only what changed.
"""

from __future__ import annotations

from math import inf

from coda.history.division import Shares
from coda.model.decision import Start, StopCause
from coda.model.job import Job, JobId, Phase, Placement, PlacementState, Wish
from coda.model.resources import NOTHING, Resources
from coda.model.world import ArrayQuota, Node, VirtualCluster, World
from coda.policy.config import PolicyConfig, ReclaimConfig
from coda.policy.reclaim import WINDOW_S, times_reclaimed
from coda.replacing import replace
from coda.snapshots import VersionedMap
from coda_sim.engine.job_run import JobRun
from coda_sim.workload.cluster_shape import GIB, ClusterShape

_RACK_LABEL, _HOST_LABEL = (level.label for level in PolicyConfig().levels)


def nodes_of_shape(shape: ClusterShape) -> tuple[Node, ...]:
    """Return the nodes `node-0001` and so on, group by group; other resources than those of the shape are unlimited."""
    sizes = [group for group in shape.groups for _ in range(group.nodes)]
    return tuple(
        Node(
            name=f"node-{number:04}",
            allocatable=Resources(gpus=size.gpus, cpu_m=size.cores * 1000, memory_bytes=size.memory_gib * GIB),
            labels={
                _HOST_LABEL: f"node-{number:04}",
                _RACK_LABEL: f"rack-{(number - 1) * shape.racks // len(sizes)}",
            },
        )
        for number, size in enumerate(sizes, 1)
    )


class Cluster:
    """The nodes, and the jobs that wait or run."""

    def __init__(
        self, shape: ClusterShape, virtual_clusters: tuple[VirtualCluster, ...] = (), *, save_every_s: float = 0.0
    ) -> None:
        self._virtual_clusters = virtual_clusters
        self._save_every_s = save_every_s  # as in `Costs`
        self.nodes = nodes_of_shape(shape)
        self.node_types = tuple({node.allocatable: node for node in self.nodes}.values())  # a node of each
        self.array_quotas: tuple[ArrayQuota, ...] = ()
        self.free_gpus = [node.allocatable.gpus for node in self.nodes]
        self.free_cores = [node.allocatable.cpu_m // 1000 for node in self.nodes]
        self.free_memory_bytes = [node.allocatable.memory_bytes for node in self.nodes]
        self._touched: set[int] = set()
        self.gpus = sum(self.free_gpus)
        self.cores = sum(self.free_cores)
        self.running: dict[JobId, JobRun] = {}
        self.waiting: dict[JobId, JobRun] = {}
        self.wishing: dict[JobId, JobRun] = {}
        self._reclaimed_s: dict[str, float] = {}  # when borrowers were stopped in the last minute
        self.on_node: tuple[dict[JobId, JobRun], ...] = tuple({} for _ in self.nodes)
        self._jobs: VersionedMap[JobId, Job] = VersionedMap()
        self._used: VersionedMap[str, Resources] = VersionedMap()
        for node in self.nodes:
            self._used.put(node.name, NOTHING)
        self._rack_by_node = [node.labels[_RACK_LABEL] for node in self.nodes] if shape.racks > 1 else None
        self._number_by_name = {node.name: number for number, node in enumerate(self.nodes)}

    def world(self, now_s: float) -> World:
        """Return a snapshot; it shares everything that did not change with the one before."""
        if self._save_every_s:
            for run in self.running.values():
                if run.save(self._save_every_s, now_s):
                    self._update_job(run)
        return World(
            nodes=self.nodes,
            used=self._used.table(),
            jobs=self._jobs.roster(),
            virtual_clusters=self._virtual_clusters,
            reclaimed=self._reclaimed_s,
            array_quotas=self.array_quotas,
        )

    def spans_racks(self, nodes: tuple[tuple[int, int], ...]) -> bool:
        """Return whether these nodes, by number with ranks, are in several racks. O(nodes)."""
        racks = self._rack_by_node
        return racks is not None and len({racks[number] for number, _ in nodes}) > 1

    def times_reclaimed(self, job: Job, cause: StopCause, now_s: float, rule: ReclaimConfig) -> int:
        """A job is stopped. Return how often it was reclaimed, with this stop. O(those of the last minute)."""
        if cause is not StopCause.RECLAIM:
            return job.reclaimed
        recent = {key: moment_s for key, moment_s in self._reclaimed_s.items() if moment_s > now_s - WINDOW_S}
        self._reclaimed_s = {**recent, f"{job.id}-{job.attempt}": now_s}
        return times_reclaimed(job, now_s, rule)

    def divide(self, shares: Shares) -> None:
        """Divide all nodes so from now on."""
        cores_per_gpu, large_share = shares
        self.array_quotas = (ArrayQuota(name="all", reserve_cores_per_gpu=cores_per_gpu, large_share=large_share),)

    def pop_touched(self) -> set[int]:
        """Return the numbers of the nodes that changed since the last call."""
        touched, self._touched = self._touched, set()
        return touched

    def enqueue(self, run: JobRun) -> None:
        """Add a job that waits. One that resumes and does not save regularly loses nothing whenever it is stopped."""
        if run.job.resumable and not (self._save_every_s and run.gpus):
            run.job = replace(run.job, saved_s=inf)
        self.waiting[run.job.id] = run
        self._update_job(run)

    def start(self, run: JobRun, start: Start, now_s: float) -> None:
        """Start the job where the decision says."""
        run.attempt += 1
        run.cores = run.working_cores = start.cpus_per_replica
        run.resizes += 1
        run.nodes = _ranks_by_node(start, self._number_by_name)
        run.job = replace(
            run.job,
            phase=Phase.RUNNING,
            placement=_placement(run, start, now_s),
            bound=_ranks(run),
            returned=False,
            as_of_s=now_s,
        )
        del self.waiting[run.job.id]
        self.running[run.job.id] = run
        self._add_holding(run)
        self._update_job(run)

    def most_cores(self, run: JobRun) -> int:
        """Return the cores that each rank of a running job could have if it were alone on its nodes."""
        return min(self.nodes[number].allocatable.cpu_m // 1000 // ranks for number, ranks in run.nodes)

    def add_wish(self, run: JobRun, cores: int, now_s: float) -> None:
        """Add the wish of a running job for `cores` per rank; the planner must answer it at once."""
        run.wishes += 1
        wish = Wish(sequence=run.wishes, cores=cores, since_s=now_s, deadline_s=now_s)
        run.job = replace(run.job, wish=wish)
        self.wishing[run.job.id] = run
        self._update_job(run)

    def remove_wish(self, run: JobRun) -> None:
        """Remove the wish of a job, which was denied."""
        run.job = replace(run.job, wish=None)
        del self.wishing[run.job.id]
        self._update_job(run)

    def resize(self, run: JobRun, cores: int, *, own: bool = True) -> None:
        """Give a running job `cores` per rank. `own`: granted for its wish; else lent, and the planner does not know.

        Own cores change at once when granted, so no answer is stored."""
        job, more, asked_m = run.job.id, cores - run.cores, run.job.request.cpu_m
        run.cores = cores
        if own:
            run.set_request(cores)
            self.wishing.pop(job, None)
            self._update_job(run)
        more_m = run.job.request.cpu_m - asked_m
        for number, ranks in run.nodes:
            self.free_cores[number] -= ranks * more
            self._touched.add(number)
            on_node = self.on_node[number]
            on_node[job] = on_node.pop(job)  # as if it had left and come again
            if more_m:
                name = self.nodes[number].name
                self._used.put(name, (self._used.get(name) or NOTHING) + Resources(cpu_m=ranks * more_m))

    def spare_cores(self, number: int) -> int:
        """Return the whole cores of a node that no running job owns."""
        node = self.nodes[number]
        return (node.allocatable.cpu_m - (self._used.get(node.name) or NOTHING).cpu_m) // 1000

    def stop(self, run: JobRun) -> None:
        """Remove a running job from its nodes and from the world."""
        self._remove_holding(run)
        self.wishing.pop(run.job.id, None)
        del self.running[run.job.id]
        self._jobs.drop(run.job.id)
        run.nodes = ()

    def remove_waiting(self, run: JobRun) -> None:
        """Remove a waiting job that never runs."""
        del self.waiting[run.job.id]
        self._jobs.drop(run.job.id)

    def _update_job(self, run: JobRun) -> None:
        self._jobs.put(run.job.id, run.job)

    def _add_holding(self, run: JobRun) -> None:
        request = run.job.request
        for number, ranks in run.nodes:
            share, name = request if ranks == 1 else request * ranks, self.nodes[number].name
            self._used.put(name, (self._used.get(name) or NOTHING) + share)
            self.free_gpus[number] -= share.gpus
            self.free_cores[number] -= ranks * run.cores
            self.free_memory_bytes[number] -= share.memory_bytes
            self._touched.add(number)
            self.on_node[number][run.job.id] = run

    def _remove_holding(self, run: JobRun) -> None:
        request = run.job.request
        for number, ranks in run.nodes:
            share, name = request if ranks == 1 else request * ranks, self.nodes[number].name
            self._used.put(name, (self._used.get(name) or NOTHING) - share)
            self.free_gpus[number] += share.gpus
            self.free_cores[number] += ranks * run.cores
            self.free_memory_bytes[number] += share.memory_bytes
            self._touched.add(number)
            del self.on_node[number][run.job.id]


def _ranks_by_node(start: Start, number_by_name: dict[str, int]) -> tuple[tuple[int, int], ...]:
    ranks: dict[int, int] = {}
    for name in start.nodes:
        number = number_by_name[name]
        ranks[number] = ranks.get(number, 0) + 1
    return tuple(ranks.items())


def _placement(run: JobRun, start: Start, now_s: float) -> Placement:
    return Placement(
        attempt=start.attempt,
        plan_id=f"{run.job.uid}-{run.attempt}",
        epoch=0,
        generation=start.generation,
        state=PlacementState.RELEASED,
        nodes=start.nodes,
        cpus_per_replica=start.cpus_per_replica,
        committed_s=now_s,
        bind_deadline_s=now_s,
        borrows=start.borrows,
    )


_ONE_RANK = frozenset({0})


def _ranks(run: JobRun) -> frozenset[int]:
    return _ONE_RANK if run.gang.replicas == 1 else frozenset(range(run.gang.replicas))
