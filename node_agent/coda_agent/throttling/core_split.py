"""Which limits make a pod as a whole stay within some cores.

On v2 the pod's own limit says it all, for containers that start later too. On v1 a pod's limit below a container's
would keep that container from ever starting again, so the containers' limits are cut instead. What must not live
here: reading and writing limits (`limits`).
"""

from __future__ import annotations

from collections.abc import Mapping

from coda_agent.cgroups.layout import Version
from coda_agent.cgroups.quota import CpuLimit, limit_for_cores


def limits_within(
    cores: float, version: Version, pod: tuple[str, CpuLimit], containers: Mapping[str, CpuLimit]
) -> Mapping[str, CpuLimit]:
    """The limits to set, by path, so that the pod gets at most `cores`; paths to be left alone are missing.

    `pod` and `containers`: paths with what limited them before. v1: limited containers keep their proportions. Where
    the pod has no limit of its own, others get at most `cores` each, so a pod that mixes both may exceed it; where it
    has one, the only other is the sandbox, which uses nothing."""
    path, own = pod
    limited = {name: limit for name, limit in containers.items() if limit.quota_us is not None}
    if version is Version.V2 or not limited:
        return {path: limit_for_cores(cores, own.period_us)}
    part = min(1.0, cores / sum(limit.cores for limit in limited.values()))
    return {
        name: limit_for_cores(limit.cores * part if name in limited else cores, limit.period_us)
        for name, limit in sorted((limited if own.quota_us is not None else containers).items())
    }
