"""The virtual clusters of a workload and their quotas."""

from __future__ import annotations

import math
from collections.abc import Iterable

from coda.model.world import VirtualCluster
from coda_sim.workload.gangs import Gang


def virtual_clusters(gangs: Iterable[Gang], gpus: int) -> tuple[VirtualCluster, ...]:
    """Return the virtual clusters that GPU jobs name, by name, each with its part of all `gpus`.

    No trace records the quotas, so each gets what its jobs need on average: in proportion to their GPU-seconds, in
    whole GPUs (largest remainders, ties by name). Our choice. O(jobs)."""
    work_by_name: dict[str, list[float]] = {}
    for gang in gangs:
        if gang.gpus and gang.row.virtual_cluster:
            work_by_name.setdefault(gang.row.virtual_cluster, []).append(gang.gpus * gang.row.duration_s)
    wanted = {name: math.fsum(work) for name, work in sorted(work_by_name.items())}
    total = math.fsum(wanted.values())
    exact = {name: gpus * work / total for name, work in wanted.items()}
    quotas = {name: int(share) for name, share in exact.items()}
    left = gpus - sum(quotas.values())
    for name in sorted(exact, key=lambda name: (quotas[name] - exact[name], name))[: max(0, left) if exact else 0]:
        quotas[name] += 1
    return tuple(VirtualCluster(name=name, gpus=quota) for name, quota in quotas.items())
