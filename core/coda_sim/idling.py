"""Why GPUs are idle while a GPU job waits. A measure, not a decision: nothing here has an effect on any job."""

from __future__ import annotations

from collections import Counter

from coda_sim.cluster import Cluster
from coda_sim.running import Running


class Idling:
    """The waiting GPU jobs by the GPUs of a rank and the number of ranks."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._waiting: Counter[tuple[int, int]] = Counter()
        self.jobs = 0

    def wait(self, run: Running) -> None:
        """A GPU job waits from now on."""
        self.jobs += 1
        self._waiting[run.gang.gpus_per_replica, run.gang.replicas] += 1

    def leave(self, run: Running) -> None:
        """It waits no more."""
        key = run.gang.gpus_per_replica, run.gang.replicas
        self.jobs -= 1
        self._waiting[key] -= 1
        if not self._waiting[key]:
            del self._waiting[key]

    def lacking_cores(self) -> int:
        """How many idle GPUs a waiting job could have, as many as it needs on one node, did it need no cores.

        The others are scattered: too few on each node for every job that waits. O(nodes)."""
        free_gpus = self._cluster.free_gpus
        for gpus, replicas in sorted(self._waiting):
            if replicas == 1 or sum(free // gpus for free in free_gpus) >= replicas:
                return sum([free for free in free_gpus if free >= gpus])
        return 0
