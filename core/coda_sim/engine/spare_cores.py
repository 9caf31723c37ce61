"""The spare cores of a simulated cluster, lent by the core's rule (`policy.cores`).

The count at which a job is fastest comes from its profile, as Synergy's own profiling would say.
"""

from __future__ import annotations

from coda.policy.cores import Borrower, cores_with_loans
from coda_sim.engine.cluster import Cluster
from coda_sim.engine.job_run import JobRun
from coda_sim.workload.speed_curves import Distance, best_cores


def best_of(run: JobRun) -> int:
    """Return the cores per rank at which a GPU job is fastest without contention: where it is, or one node a rank."""
    profile, gang = run.model.profile, run.gang
    if profile is None:
        return 0
    if len(run.nodes) == 1:
        return -(-best_cores(profile, gang.gpus) // gang.replicas)
    distance = Distance.ONE_NODE if gang.replicas == 1 else Distance.NODES
    return best_cores(profile, gang.gpus_per_replica, distance)


class SpareCores:
    """The loans of a cluster, and the nodes on which they must be computed again."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._changed: set[int] = set()

    def mark_nodes(self, run: JobRun) -> None:
        """Mark the nodes of a job that has just started or is about to leave."""
        self._changed.update(number for number, _ in run.nodes)

    def changes(self) -> list[tuple[JobRun, int]]:
        """Return the jobs whose cores per rank change, with the new counts: jobs that lose cores first, then by id.

        O(jobs on the marked nodes, and on the nodes that these jobs share with others)."""
        numbers, runs = self._connected()
        self._changed.clear()
        names = {number: self._cluster.nodes[number].name for number in numbers}
        borrowers = [
            Borrower(
                job=run.job.id,
                nodes=tuple(names[number] for number, ranks in run.nodes for _ in range(ranks)),
                own=run.job.cpus_per_replica,
                best=best_of(run) if run.is_profiled else run.job.cpus_per_replica,
            )
            for run in runs
        ]
        spare = {names[number]: self._cluster.spare_cores(number) for number in numbers}
        cores = cores_with_loans(spare, borrowers)
        other = [(run, cores[run.job.id]) for run in runs if cores[run.job.id] != run.cores]
        return sorted(other, key=lambda pair: (pair[1] - pair[0].cores, pair[0].job.id))

    def _connected(self) -> tuple[set[int], list[JobRun]]:
        """The marked nodes, all nodes connected to them by jobs, and the GPU jobs there, each once."""
        numbers, left = set(self._changed), sorted(self._changed)
        runs: dict[int, JobRun] = {}
        while left:
            for run in self._cluster.on_node[left.pop()].values():
                if run.gpus and id(run) not in runs:
                    runs[id(run)] = run
                    more = {number for number, _ in run.nodes} - numbers
                    numbers |= more
                    left += sorted(more)
        return numbers, list(runs.values())
