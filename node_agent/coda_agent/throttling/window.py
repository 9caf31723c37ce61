"""What was sensed, as the eliminator's window, and what it then wants done. Pure; the core decides.

What must not live here: carrying actions out (`actuating`), and telling of them (`reporting`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from coda.contention.eliminator import Window
from coda.contention.reference import TrainingSample
from coda.contention.throttles import Hardware, Pod, Protection
from coda_agent.cluster.pods import LocalPod
from coda_agent.sensor import Senses, share_of

STALE_S = 60.0
"""Seconds after which an old list of pods or devices is nothing to act by. Our choice: as `blind_s` of the core."""

MOST_TRAFFIC = 0.05
"""Part of a pod's own traffic from which a socket counts as one that it works on. Our choice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Freshness:
    """Seconds since the pods were last known to be what the API server has."""

    pods_s: float

    @property
    def is_stale(self) -> bool:
        """Too old to act by."""
        return self.pods_s > STALE_S


def window_from(senses: Senses, local: Sequence[LocalPod], hardware: Hardware, freshness: Freshness) -> Window:
    """One window. With stale pods nothing counts as measured, so that the core does nothing new, and later lets go."""
    traffic = senses.traffic
    known = sorted(hardware.peak_bytes_per_s)
    totals = {domain: None if freshness.is_stale else traffic.totals.get(domain) for domain in known}
    running = [pod for pod in local if pod.runs]
    return Window(
        at_s=senses.at.monotonic_s,
        share_by_socket={
            domain: None if total is None else total / hardware.peak_bytes_per_s[domain]
            for domain, total in totals.items()
        },
        pods=tuple(_pod(pod, senses) for pod in running if not pod.trains),
        jobs=_jobs([pod for pod in running if pod.trains], senses, known),
    )


def _pod(pod: LocalPod, senses: Senses) -> Pod:
    """Its cores: the limit, or what it uses where it has none."""
    used = senses.cpu_by_pod.get(pod.uid)
    cores = pod.limit_cores if pod.limit_cores is not None else (used.cores if used is not None else 0.0)
    exclusive = {Protection.EXCLUSIVE_CORES} if pod.id in senses.exclusive_pods else frozenset()
    return Pod(
        uid=pod.uid,
        bytes_per_s=_measured(senses, pod.uid),
        cores=max(cores, pod.least_cores),
        least_cores=pod.least_cores,
        protections=pod.protections | exclusive,
    )


def _measured(senses: Senses, uid: str) -> Mapping[int, float]:
    rates = senses.traffic.by_pod.get(uid, {})
    return {domain: rate for domain, rate in rates.items() if rate is not None}


def _jobs(pods: Sequence[LocalPod], senses: Senses, domains: Sequence[int]) -> tuple[TrainingSample, ...]:
    """One for each training pod: ranks of one job on one node suffer apart."""
    return tuple(
        TrainingSample(
            job=pod.uid,
            sockets=_sockets(_measured(senses, pod.uid), domains),
            cores=max(1, round(pod.limit_cores or pod.request_cores)),
            share=share_of(pod, senses),
        )
        for pod in pods
    )


def _sockets(bytes_per_s: Mapping[int, float], domains: Sequence[int]) -> frozenset[int]:
    """Where its traffic is; all of them while that is not known."""
    total = sum(bytes_per_s.values())
    if not total:
        return frozenset(domains)
    return frozenset(domain for domain, rate in bytes_per_s.items() if rate >= MOST_TRAFFIC * total)
