"""Whose memory bandwidth is worth a monitoring id or counter: the hardware may have only a few. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from coda_agent.cgroups.usage import CpuRates
from coda_agent.cluster import LocalPod

MOST_READS = 600
"""Counters read in a window. Our choice: with 24 domains 25 pods, with two 300; about 2 % of a core a second."""


def worth_by_pod(local: Iterable[LocalPod], cpu_by_pod: Mapping[str, CpuRates]) -> dict[str, float]:
    """Return the worth of following each pod, by uid; pods that are not named are not followed.

    Pods that may be throttled, by their CPU use: traffic needs cores, so the heaviest is among the first of them. Then
    pods to protect, whose traffic only says on which socket they are. Nobody else can be helped or throttled."""
    found: dict[str, float] = {}
    for pod in local:
        if pod.runs and not pod.protections:
            rates = cpu_by_pod.get(pod.uid)
            found[pod.uid] = 1.0 + (0.0 if rates is None else rates.cores)
        elif pod.runs and pod.trains:
            found[pod.uid] = 0.0
    return found


def most_pods(domains: int, monitoring_ids: int | None) -> int:
    """Return how many pods are followed at most, with so many domains. `monitoring_ids`: None if it is not told.

    The root has one of them, and one stays free for the throttle group."""
    ids = MOST_READS if monitoring_ids is None else monitoring_ids - 2
    return max(1, min(ids, MOST_READS // max(1, domains)))
