"""Which limits keep a whole pod within some cores.

On v2 the pod's own limit is enough, also for containers that start later. On v1 a pod's limit below a container's would
never let that container start again, so the containers' limits are cut instead."""

from __future__ import annotations

from collections.abc import Mapping

from coda_agent.cgroups import Version
from coda_agent.cgroups.quota import CpuLimit, limit_for_cores


def limits_within(
    cores: float, version: Version, pod: tuple[str, CpuLimit], containers: Mapping[str, CpuLimit]
) -> Mapping[str, CpuLimit]:
    """Return the limits to set, by path, so that the pod gets at most `cores`; other paths are left alone.

    `pod` and `containers`: paths with their limits before. On v1, limited containers keep their proportions. If the pod
    has no limit of its own, every other container gets at most `cores`, so a pod that mixes both may exceed it. If it
    has one, the only other container is the sandbox, which uses nothing."""
    path, own = pod
    limited = {name: limit for name, limit in containers.items() if limit.quota_us is not None}
    if version is Version.V2 or not limited:
        return {path: limit_for_cores(cores, own.period_us)}
    part = min(1.0, cores / sum(limit.cores for limit in limited.values()))
    return {
        name: limit_for_cores(limit.cores * part if name in limited else cores, limit.period_us)
        for name, limit in sorted((limited if own.quota_us is not None else containers).items())
    }
