"""Why GPUs are idle while a GPU job waits. A measure, not a decision: nothing here has an effect on any job.

The head job is the earliest submitted of those that ask for no more GPUs than are idle: it would have used them.
"""

from __future__ import annotations

from collections import OrderedDict

from coda.model import JobId
from coda_sim.cluster import Cluster
from coda_sim.log import CAUSES
from coda_sim.running import Running

NOBODY = -1
CORES, SCATTER = CAUSES.index("cores"), CAUSES.index("scatter")


class Idling:
    """The waiting GPU jobs by how many GPUs they ask for."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._waiting: dict[int, OrderedDict[JobId, Running]] = {}
        self.jobs = 0

    def wait(self, run: Running) -> None:
        """A GPU job waits from now on."""
        self.jobs += 1
        self._waiting.setdefault(run.gpus, OrderedDict())[run.job.id] = run

    def leave(self, run: Running) -> None:
        """It waits no more."""
        self.jobs -= 1
        waiting = self._waiting[run.gpus]
        del waiting[run.job.id]
        if not waiting:
            del self._waiting[run.gpus]

    def cause(self) -> int:
        """Index into CAUSES of what keeps the head job from the idle GPUs; NOBODY while no GPU job waits.

        Cores, where its ranks would fit did they ask for GPUs alone; else the GPUs are scattered. O(nodes)."""
        if not self.jobs:
            return NOBODY
        idle = sum(self._cluster.free_gpus)
        heads = [next(iter(waiting.values())) for gpus, waiting in self._waiting.items() if gpus <= idle]
        if not heads:
            return SCATTER
        head = min(heads, key=lambda run: (run.gang.row.submit_s, run.job.id)).gang
        if head.replicas == 1:
            return CORES if max(self._cluster.free_gpus) >= head.gpus_per_replica else SCATTER
        ranks = sum(free // head.gpus_per_replica for free in self._cluster.free_gpus)
        return CORES if ranks >= head.replicas else SCATTER
