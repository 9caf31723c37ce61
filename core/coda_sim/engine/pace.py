"""How fast each running job goes, from its cores, its neighbours and the distance between its ranks.

Memory bandwidth is counted per node in whole bytes/s, so that no error adds up over a month. The curves are those of
`coda_sim.workload.speed_curves`.
"""

from __future__ import annotations

from collections.abc import Iterable

from coda_sim.engine.cluster import Cluster
from coda_sim.engine.job_run import JobRun
from coda_sim.workload.model_profiles import ModelProfile, ProfileSet
from coda_sim.workload.speed_curves import (
    Distance,
    asked_speed,
    bandwidth_bytes_per_s,
    contention_loss,
    speed,
    utilisation,
)

VICTIM_LOSS = 0.05
"""A job that loses a larger share of its utilisation to contention is a victim."""


class PaceModel:
    """The wanted bandwidth of every node, and the pace of the jobs there."""

    def __init__(self, cluster: Cluster, profiles: ProfileSet) -> None:
        shared = next(iter(profiles.profile_by_model.values())).shared
        self._cluster = cluster
        self.peak_bytes_per_s = shared.node_bandwidth_bytes_per_s
        self._calm_bytes_per_s = shared.contention_from * shared.node_bandwidth_bytes_per_s
        self._wanted_bytes_per_s = [0] * len(cluster.nodes)
        self._asked: dict[tuple[ModelProfile, int, int, int], float] = {}
        self._quiet: dict[tuple[ModelProfile, int, int], float] = {}

    def share(self, number: int) -> float:
        """Return the share of a node's memory bandwidth that its jobs want; above 1 if they want more than it has."""
        return self._wanted_bytes_per_s[number] / self.peak_bytes_per_s

    def undisturbed_utilisation(self, run: JobRun) -> float:
        """Return the GPU utilisation that a job would have on its present nodes without contention."""
        assert run.model.profile is not None
        loss = self._worst_loss(run, run.model.profile)
        return min(1.0, run.busy_gpus / run.gpus / (1 - loss)) if loss < 1 else 0.0

    def add_bandwidth(self, run: JobRun) -> set[int]:
        """Add the job's bandwidth to its nodes. Returns the nodes where the pace of other jobs may change."""
        return self._change_bandwidth(run, 1)

    def remove_bandwidth(self, run: JobRun) -> set[int]:
        """Remove the job's bandwidth from its nodes, which it must still have. Returns as `add_bandwidth`."""
        return self._change_bandwidth(run, -1)

    def neighbours(self, numbers: Iterable[int]) -> list[JobRun]:
        """Return the GPU jobs on these nodes, each once, in order of nodes and of arrival there."""
        found: dict[int, JobRun] = {}
        for number in sorted(numbers):
            found.update((id(run), run) for run in self._cluster.on_node[number].values() if run.gpus)
        return list(found.values())

    def set_pace(self, run: JobRun) -> None:
        """Set the job's pace and busy GPUs to their present values."""
        profile = run.model.profile
        if profile is None:
            run.pace = run.limit * run.working_cores / run.gang.cpus_per_replica
            return
        at_speed = self._speed(run, profile)
        loss = self._worst_loss(run, profile)
        run.is_victim = loss > VICTIM_LOSS
        run.pace = at_speed / self._asked_speed(run, profile)
        run.lost_pace = run.pace * loss / (1 - loss) if VICTIM_LOSS < loss < 1 else 0.0
        run.busy_gpus = utilisation(profile, at_speed) * run.gpus

    def _change_bandwidth(self, run: JobRun, sign: int) -> set[int]:
        """Return the nodes that are contended before or after, or where a spread gang gets or loses neighbours."""
        touched: set[int] = set()
        if not run.gpus:
            run.bandwidth_bytes_per_s = sum(self._bandwidth(run, ranks) for _, ranks in run.nodes)
        for number, ranks in run.nodes:
            before = self._wanted_bytes_per_s[number]
            after = before + sign * self._bandwidth(run, ranks)
            self._wanted_bytes_per_s[number] = after
            is_contended = after != before and max(before, after) > self._calm_bytes_per_s
            if is_contended or (run.gpus and self._has_spread_gang(number)):
                touched.add(number)
        return touched

    def _has_spread_gang(self, number: int) -> bool:
        return any(len(run.nodes) > 1 for run in self._cluster.on_node[number].values())

    def _bandwidth(self, run: JobRun, ranks: int) -> int:
        profile, gang = run.model.profile, run.gang
        if profile is not None:
            return round(bandwidth_bytes_per_s(profile, gang.gpus_per_replica * ranks))
        wanted = run.model.bandwidth_bytes_per_s
        if not wanted:
            return 0
        return round(wanted * run.limit * run.cores * ranks / (gang.cpus_per_replica * gang.replicas))

    def _worst_loss(self, run: JobRun, profile: ModelProfile) -> float:
        """The share of its speed that the job loses to contention, on the worst of its nodes."""
        if all(self._wanted_bytes_per_s[number] <= self._calm_bytes_per_s for number, _ in run.nodes):
            return 0.0
        return max(contention_loss(profile, self.share(number)) for number, _ in run.nodes)

    def _speed(self, run: JobRun, profile: ModelProfile) -> float:
        gpus = run.gang.gpus_per_replica
        if len(run.nodes) == 1:
            ((number, ranks),) = run.nodes
            if self._wanted_bytes_per_s[number] <= self._calm_bytes_per_s:
                return self._quiet_speed(profile, run.working_cores * ranks, gpus * ranks)
            return speed(profile, run.working_cores * ranks, gpus * ranks, Distance.ONE_NODE, self.share(number))
        distance = Distance.BUSY_NODES if self._has_neighbours(run) else Distance.NODES
        if self._cluster.spans_racks(run.nodes):
            distance = Distance.RACKS  # the slowest of Philly's Table 3, which measured no two of them together
        return min(
            speed(profile, run.working_cores * ranks, gpus * ranks, distance, self.share(number))
            for number, ranks in run.nodes
        )

    def _quiet_speed(self, profile: ModelProfile, cores: int, gpus: int) -> float:
        key = (profile, cores, gpus)
        found = self._quiet.get(key)
        if found is None:
            found = self._quiet[key] = speed(profile, cores, gpus)
        return found

    def _asked_speed(self, run: JobRun, profile: ModelProfile) -> float:
        gang = run.gang
        key = (profile, gang.cpus_per_replica, gang.gpus_per_replica, gang.replicas)
        found = self._asked.get(key)
        if found is None:
            found = self._asked[key] = asked_speed(profile, gang.cpus_per_replica, gang.gpus_per_replica, gang.replicas)
        return found

    def _has_neighbours(self, run: JobRun) -> bool:
        """Whether another GPU job is on one of its nodes."""
        on_node = self._cluster.on_node
        return any(other.gpus and other is not run for number, _ in run.nodes for other in on_node[number].values())
