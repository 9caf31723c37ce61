"""The sensed values as the eliminator's window. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from coda.contention import Hardware, PodSample, Protection, TrainingSample, Window
from coda.contention.measurements import bandwidth_shares, sockets_of
from coda_agent.cluster import LocalPod
from coda_agent.sensor import Senses

BUSY_CORES = 1.0
"""Cores that a pod uses, from which its memory traffic is worth knowing. Our choice: one core moves some 5 % of a
socket's peak."""

SURELY_OVER = 1.25  # of its limit; a pod that uses more is not held to it. Our choice


def window_from(senses: Senses, local: Sequence[LocalPod], hardware: Hardware, pods_age_s: float) -> Window:
    """Return one window. `pods_age_s`: seconds since `local` was surely right."""
    peaks = hardware.peak_bytes_per_s
    running = [pod for pod in local if pod.runs]
    return Window(
        at_s=senses.at.monotonic_s,
        share_by_socket=bandwidth_shares(_sure_totals(senses), peaks, pods_age_s=pods_age_s),
        pods=tuple(_pod(pod, senses) for pod in running if not pod.trains),
        jobs=tuple(_sample(pod, senses, peaks) for pod in running if pod.is_protected),
    )


def _sure_totals(senses: Senses) -> Mapping[int, float | None]:
    """The bandwidth by socket; not measured while a pod that works hard is counted nowhere: calm could be a mistake."""
    for uid, rates in senses.traffic.by_pod.items():
        used = senses.cpu_by_pod.get(uid)
        if not rates and used is not None and used.cores >= BUSY_CORES:
            return dict.fromkeys(senses.traffic.totals)
    return senses.traffic.totals


def _pod(pod: LocalPod, senses: Senses) -> PodSample:
    """Its cores: the limit, or what it uses if that is surely more: it has none, or its kubelet does not enforce it.

    A late reading counts too much, and nothing says so where the pod was not held up."""
    used, limit = senses.cpu_by_pod.get(pod.uid), pod.limit_cores or 0.0
    is_over = used is not None and used.cores > SURELY_OVER * limit and not (limit and used.throttled_share)
    cores = used.cores if used is not None and is_over else limit
    exclusive = {Protection.EXCLUSIVE_CORES} if pod.id in senses.exclusive_pods else frozenset()
    return PodSample(
        uid=pod.uid,
        bytes_per_s=_measured(senses, pod.uid),
        cores=max(cores, pod.least_cores),
        least_cores=pod.least_cores,
        protections=pod.protections | exclusive,
    )


def _measured(senses: Senses, uid: str) -> Mapping[int, float]:
    rates = senses.traffic.by_pod.get(uid, {})
    return {domain: rate for domain, rate in rates.items() if rate is not None}


def _sample(pod: LocalPod, senses: Senses, sockets: Collection[int]) -> TrainingSample:
    """One per training pod: ranks of one job on one node are slowed separately."""
    return TrainingSample(
        job=pod.uid,
        sockets=sockets_of(_measured(senses, pod.uid), sockets),
        cores=max(1, round(pod.limit_cores or pod.request_cores)),
        share=senses.gpu_share_of(pod),
    )
