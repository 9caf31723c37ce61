"""Spare cores of a simulated cluster, lent as the core says (`spare_cores`). What must not live here: who gets them.

What a job is fastest with is known from its profile, as Synergy's own profiling would tell.
"""

from __future__ import annotations

from coda.policy.cores import Borrower, cores_with_loans
from coda_sim.engine.cluster import Cluster
from coda_sim.engine.job_run import JobRun
from coda_sim.workload.speed import Distance, best_cores


def best_of(run: JobRun) -> int:
    """Cores per rank with which a GPU job is fastest, undisturbed: where it runs, or with each rank on its own node."""
    profile, gang = run.traits.profile, run.gang
    if profile is None:
        return 0
    if len(run.nodes) == 1:
        return -(-best_cores(profile, gang.gpus) // gang.replicas)
    distance = Distance.ONE_NODE if gang.replicas == 1 else Distance.NODES
    return best_cores(profile, gang.gpus_per_replica, distance)


class SpareCores:
    """Which nodes have to be looked at again."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._changed: set[int] = set()

    def changed(self, run: JobRun) -> None:
        """The job came, or goes; it must have its nodes."""
        self._changed.update(number for number, _ in run.nodes)

    def changes(self) -> list[tuple[JobRun, int]]:
        """The jobs that have other cores per rank from now on, with these: who has fewer first, then by id.

        O(jobs on the nodes that changed, and on those that these jobs share with others)."""
        numbers, runs = self._connected()
        self._changed.clear()
        names = {number: self._cluster.nodes[number].name for number in numbers}
        borrowers = [
            Borrower(
                job=run.job.id,
                nodes=tuple(names[number] for number, ranks in run.nodes for _ in range(ranks)),
                own=run.job.cpus_per_replica,
                best=best_of(run),
            )
            for run in runs
        ]
        spare = {names[number]: self._cluster.spare_cores(number) for number in numbers}
        cores = cores_with_loans(spare, borrowers)
        other = [(run, cores[run.job.id]) for run in runs if cores[run.job.id] != run.cores]
        return sorted(other, key=lambda pair: (pair[1] - pair[0].cores, pair[0].job.id))

    def _connected(self) -> tuple[set[int], list[JobRun]]:
        """The nodes that changed and all that jobs connect with them, and the GPU jobs there, each once."""
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
