"""One measurement of the whole node: GPUs and their owners, memory bandwidth, CPU time.

Everything here may wait for the kernel or a driver, so it runs in its own thread. It says nothing about what the values
mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from coda_agent.bandwidth.controllers import traffic_by_socket
from coda_agent.cgroups import Layout, PodCgroup, list_containers, list_pods, rates_between, read_use
from coda_agent.cgroups.limits import cores_in_force, find_container
from coda_agent.cgroups.usage import CpuRates, CpuUse
from coda_agent.claimed_device import ClaimedDevice
from coda_agent.cluster import Claims, LocalPod
from coda_agent.gpus import GpuReading, Health, LibraryState, Moment, Snapshot
from coda_agent.gpus.allocations import GpuPlace, Grant, PodName, with_claims
from coda_agent.gpus.known_gpus import KnownGpus
from coda_agent.gpus.ownership import Evidence, NodePod, Ownership, find_owners, holding_of
from coda_agent.gpus.pod_resources import Listing, PodResources
from coda_agent.gpus.processes import GpuUser, ProcessOwners, users_of
from coda_agent.host import Files
from coda_agent.resctrl import MemoryTraffic, TrafficMeter

CONTAINERS_APART = (
    "no container of a running pod is in its pod's cgroup: the runtime has another cgroup driver than the kubelet "
    "(containerd: SystemdCgroup), and neither cores nor memory traffic of pods can be measured or limited"
)
NO_TRAFFIC = MemoryTraffic(by_pod={}, totals={})


class GpuSource(Protocol):
    """What tells of all GPUs: a process of its own, or the driver in this process (emulated nodes)."""

    def sense(self, now: Moment) -> Snapshot:
        """Return what is known of all GPUs now. Never raises."""

    def close(self) -> None:
        """Let the driver go."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Senses:
    """Everything measured in one window. What is missing was not measured, and is never 0."""

    at: Moment
    gpus: Snapshot
    ownerships: tuple[Ownership, ...] = ()
    grants: tuple[Grant, ...] = ()
    are_grants_known: bool = False  # the kubelet's last answer is the newest
    users: Mapping[str, Sequence[GpuUser]] = field(default_factory=dict)  # by UUID of a GPU or slice
    traffic: MemoryTraffic = NO_TRAFFIC
    cpu_by_pod: Mapping[str, CpuRates] = field(default_factory=dict)
    cpu_by_rank: Mapping[str, CpuRates] = field(default_factory=dict)  # by pod uid: of its main container, if found
    cgroup_by_pod: Mapping[str, PodCgroup] = field(default_factory=dict)
    cores_by_rank: Mapping[str, float] = field(default_factory=dict)  # by pod uid: that its main container may use
    problems: tuple[str, ...] = ()

    @property
    def exclusive_pods(self) -> frozenset[str]:
        """Pods (namespace/name) with a container that has cores of its own."""
        return frozenset(f"{grant.namespace}/{grant.pod}" for grant in self.grants if grant.exclusive_cpus)

    def why_not_tuned(self, pod: LocalPod) -> str | None:
        """Return why the pod's GPUs may not decide its cores, in one sentence; None if they may."""
        if not self.gpus.readings and self.gpus.library is not LibraryState.READY:
            return f"this node's GPUs cannot be measured: {self.gpus.why or 'NVML does not answer yet'}"
        return holding_of(pod.uid, self.ownerships).why_not

    def gpu_share_of(self, pod: LocalPod) -> float | None:
        """Return the mean busy share of the pod's GPUs in this window; None: not measured, or not surely its own."""
        shares = self._gpu_shares_of(pod)
        return sum(shares) / len(shares) if shares else None

    def least_gpu_share_of(self, pod: LocalPod) -> float | None:
        """Return the busy share of the pod's least busy GPU: those that wait for it seem busy. None: as above."""
        return min(self._gpu_shares_of(pod), default=None)

    def _gpu_shares_of(self, pod: LocalPod) -> list[float]:
        holding = holding_of(pod.uid, self.ownerships)
        if holding.why_not is not None or not holding.places:
            return []
        readings = {reading.gpu.uuid: reading for reading in self.gpus.readings}
        shares = [_share(readings.get(place.gpu_uuid), place) for place in holding.places]
        found = [share for share in shares if share is not None]
        return found if len(found) == len(shares) else []


@dataclass(slots=True, kw_only=True)
class Sensor:
    """The node's sensors. One thread at a time. `meter` None: bandwidth is not measured here.

    `known_gpus` None: GPUs that the driver never listed to this process are unknown.
    `socket_by_domain`: the meter counts by cache, what is sensed is by socket."""

    files: Files
    layout: Layout | None
    gpus: GpuSource
    pod_resources: PodResources
    owners: ProcessOwners
    meter: TrafficMeter | None
    known_gpus: KnownGpus | None = None
    socket_by_domain: Mapping[int, int] = field(default_factory=dict)
    lacks: tuple[str, ...] = ()  # a sentence for each thing about pods that cannot be measured, as of the last window
    _cpu_uses: dict[str, CpuUse] = field(default_factory=dict)  # by cgroup, of the window before
    _cpu_read_at_s: float = 0.0

    def sense(self, local: Sequence[LocalPod], now: Moment, claims: Claims | None = None) -> Senses:
        """Measure everything once. A failing sensor raises nothing: it adds a sentence to `problems`.

        Cost: NVML's calls, and a few file reads per pod."""
        problems: list[str] = []
        traffic = (
            NO_TRAFFIC
            if self.meter is None
            else traffic_by_socket(self.meter.sample(now.monotonic_s), self.socket_by_domain)
        )  # traffic and CPU time first: their rates divide by the time until `now`, and GPUs may take half a second
        cgroups = self._list_cgroups(problems)
        self.lacks = (CONTAINERS_APART,) if self._are_containers_apart(local, cgroups) else ()
        cpu_by_pod, cpu_by_rank = self._cpu_rates(local, cgroups, now.monotonic_s)
        snapshot = self.gpus.sense(now)
        snapshot = snapshot if self.known_gpus is None else self.known_gpus.completed(snapshot)
        problems += [snapshot.why] if snapshot.why else []
        running = frozenset(pod.uid for pod in local if pod.runs)
        listing = self.pod_resources.listing(now.monotonic_s, running) if snapshot.readings else Listing()
        problems += [listing.why] if listing.why else []
        users = users_of(snapshot.readings, self.owners) if snapshot.readings else {}
        return Senses(
            at=now,
            gpus=snapshot,
            ownerships=self._find_owners(snapshot, listing, local, claims or Claims(), users),
            grants=listing.grants,
            are_grants_known=listing.at_s is not None and listing.why is None,
            users=users,
            traffic=traffic,
            cpu_by_pod=cpu_by_pod,
            cpu_by_rank=cpu_by_rank,
            cgroup_by_pod=cgroups,
            cores_by_rank=self._cores_in_force(local, cgroups),
            problems=tuple(problems),
        )

    def _find_owners(
        self,
        snapshot: Snapshot,
        listing: Listing,
        local: Sequence[LocalPod],
        claims: Claims,
        users: Mapping[str, Sequence[GpuUser]],
    ) -> tuple[Ownership, ...]:
        if not snapshot.readings:
            return ()
        evidence = Evidence(
            gpus=[reading.gpu for reading in snapshot.readings],
            grants=with_claims(listing.grants, _by_name(claims, local)),
            pods=[NodePod(uid=pod.uid, namespace=pod.namespace, name=pod.name, is_finished=pod.ended) for pod in local],
            users=users,
            uuid_by_claim=claims.uuid_by_device,
        )
        return find_owners(evidence)

    def _list_cgroups(self, problems: list[str]) -> Mapping[str, PodCgroup]:
        if self.layout is None:
            return {}
        try:
            return list_pods(self.files, self.layout)
        except OSError as error:
            problems.append(f"the pods' cgroups cannot be read: {error}")
            return {}

    def _are_containers_apart(self, local: Sequence[LocalPod], cgroups: Mapping[str, PodCgroup]) -> bool:
        """True if pods run and none of them has a container's cgroup. One listing, where the first one has."""
        running = [cgroups[pod.uid].path for pod in local if pod.runs and pod.uid in cgroups]
        try:
            return bool(running) and not any(self._has_containers(path) for path in running)
        except OSError:
            return False

    def _has_containers(self, path: str) -> bool:
        return self.layout is not None and bool(list_containers(self.files, self.layout, path))

    def _cpu_rates(
        self, local: Sequence[LocalPod], cgroups: Mapping[str, PodCgroup], now_s: float
    ) -> tuple[Mapping[str, CpuRates], Mapping[str, CpuRates]]:
        """By pod uid: of pods, and of ranks. A rank is throttled as its main container is: a pod whose other containers
        have no limit has none itself, and is never throttled as a whole. It uses what its main container uses, as its
        cores are that one's: a busy sidecar would seem to use them up."""
        if self.layout is None:
            return {}, {}
        span_s, before = now_s - self._cpu_read_at_s, self._cpu_uses
        mains = self._main_cgroups(local, cgroups)
        paths = {*(at.path for at in cgroups.values()), *mains.values()}
        now = {path: read_use(self.files, self.layout, path) for path in sorted(paths)}
        self._cpu_uses = {path: use for path, use in now.items() if use is not None}
        self._cpu_read_at_s = now_s
        rates = {
            path: rates_between(before[path], use, span_s) for path, use in self._cpu_uses.items() if path in before
        }
        found = {uid: rate for uid, at in cgroups.items() if (rate := rates.get(at.path)) is not None}
        of_ranks = {pod.uid: found[pod.uid] for pod in _ranks(local, cgroups) if pod.uid in found}
        for uid, path in mains.items():
            of_pod, main = of_ranks.pop(uid, None), rates.get(path)
            if of_pod is not None and main is not None:
                share = max(of_pod.throttled_share, main.throttled_share)
                found[uid] = replace(of_pod, throttled_share=share)
                of_ranks[uid] = replace(main, throttled_share=share)
        return found, of_ranks

    def _main_cgroups(self, local: Sequence[LocalPod], cgroups: Mapping[str, PodCgroup]) -> Mapping[str, str]:
        """The path of the main container's cgroup, by the pod uid of the ranks that run here with GPUs."""
        if self.layout is None:
            return {}
        found = {
            pod.uid: find_container(self.files, self.layout, cgroups[pod.uid].path, pod.container)
            for pod in _ranks(local, cgroups)
        }
        return {uid: path for uid, path in found.items() if path is not None}

    def _cores_in_force(self, local: Sequence[LocalPod], cgroups: Mapping[str, PodCgroup]) -> Mapping[str, float]:
        """By the kernel, of the ranks that run here with GPUs."""
        if self.layout is None:
            return {}
        found = {
            pod.uid: cores_in_force(self.files, self.layout, cgroups[pod.uid].path, pod.container)
            for pod in _ranks(local, cgroups)
        }
        return {uid: cores for uid, cores in found.items() if cores is not None}


def _ranks(local: Sequence[LocalPod], cgroups: Mapping[str, PodCgroup]) -> list[LocalPod]:
    return [pod for pod in local if pod.member and pod.gpus and pod.runs and pod.uid in cgroups]


def _by_name(claims: Claims, local: Sequence[LocalPod]) -> Mapping[PodName, tuple[tuple[str, ClaimedDevice], ...]]:
    devices = claims.devices_by_pod
    return {(pod.namespace, pod.name): devices[pod.uid] for pod in local if pod.uid in devices and not pod.ended}


def _share(reading: GpuReading | None, place: GpuPlace) -> float | None:
    if reading is None or reading.health is not Health.READY:
        return None
    if place.instance_uuid is None:
        return reading.share
    part = reading.by_instance.get(place.instance_uuid)
    return None if part is None else part.share
