"""The pods of this node as the agent needs them: owner, cores, and reasons never to throttle them."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from coda.contention import Protection
from coda.errors import InvalidInput
from coda_agent.cluster.claims import ClaimUse, claim_uses_from_json
from coda_kube.objects.names import ANNOTATION_CORES, ANNOTATION_GPU_MEMORY, THROTTLING
from coda_kube.objects.pod_requests import pod_amounts
from coda_kube.objects.pods.main_container import main_container, main_status
from coda_kube.objects.pods.stops import Announcement, announcement_from_metadata
from coda_kube.objects.quantities import milli_from_quantity, whole_from_quantity
from coda_kube.objects.read import AUTO, GangMember, pod_from_json
from coda_kube.objects.resize_obstacles import asked_anyway_m, obstacle_from_json

Item = Mapping[str, Any]

SYSTEM_NAMESPACE = "kube-system"
SYSTEM_PRIORITY = 2_000_000_000  # of system-cluster-critical; users' classes are lower
MIRROR = "kubernetes.io/config.mirror"
BURSTABLE = "Burstable"
PROTECT = "protect"

ACCELERATORS: Final = re.compile(
    r"nvidia\.com/.+|amd\.com/(gpu.*|[a-z]px_nps\d+)|gpu\.intel\.com/.+|habana\.ai/.+|google\.com/tpu"
    r"|aws\.amazon\.com/neuron.*|huawei\.com/Ascend.*"
)
"""Names of extended resources that are GPUs and the like, whole or parts of them (`docs/decisions/0061`). No other name
is: most are of network cards, of FUSE or of KVM, which webhooks give to pods without GPUs, and anybody may ask for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalPod:
    """One pod of this node."""

    uid: str
    namespace: str
    name: str
    runs: bool  # has started and not ended
    ended: bool
    gpus: int
    request_cores: float
    limit_cores: float | None  # None: some container has no limit
    quality: str
    member: GangMember | None  # the gang that it is a rank of
    is_ending: bool = False  # terminating: its GPUs idle for a reason of their own
    asks_protection: bool = False
    protections: frozenset[Protection] = frozenset()
    container: str = ""  # id of its main container as it runs now, without the runtime's name; "": it does not run
    cores: int = 0  # of a rank's main container, as its kubelet says they are in force; else as it wants
    claim_uses: tuple[ClaimUse, ...] = ()
    is_tuned: bool = False  # a rank of a job whose cores Coda finds
    stop: Announcement | None = None  # a rank that is to save and end
    gpu_bytes: int = 0  # the most memory of one GPU that a rank's job says it needs; 0: it says nothing
    resize_obstacle: str = ""  # why its cores can never be changed, as far as its object says; "": nothing does
    asked_anyway: int = 0  # cores of its main container, with fewer of which the pod asks for no less
    has_other_accelerators: bool = False  # MIG slices, other vendors' GPUs, claims

    @property
    def id(self) -> str:
        """namespace/name."""
        return f"{self.namespace}/{self.name}"

    @property
    def has_accelerators(self) -> bool:
        """True for pods with whole GPUs, other accelerators, or claims: their objects do not say what is claimed."""
        return self.gpus > 0 or self.has_other_accelerators

    @property
    def trains(self) -> bool:
        """True for pods that are never throttled: with accelerators, or ranks of a gang."""
        return self.has_accelerators or self.member is not None

    @property
    def needs_quiet(self) -> bool:
        """True for pods beside which the node is not idle, whatever the load of its cores.

        A DaemonSet's pod with an accelerator is no reason: it may be a monitor, and is there for ever."""
        works = self.gpus > 0 or self.member is not None or self.asks_protection
        return self.trains and not self.ended and (works or Protection.DAEMON_SET not in self.protections)

    @property
    def is_protected(self) -> bool:
        """True for pods for which others are throttled: running ranks with accelerators, and pods with some that ask.

        The utilisation of other GPU pods (notebooks, inference) goes up and down by itself. Where none is measured, as
        of a claimed network card, the pod has no vote, and nobody is throttled for it."""
        wanted = self.member is not None or self.asks_protection
        return wanted and self.has_accelerators and self.runs and not self.is_ending

    @property
    def least_cores(self) -> float:
        """The fewest cores that a throttle leaves it: 1; a Burstable pod keeps its request."""
        return max(1.0, self.request_cores) if self.quality == BURSTABLE else 1.0


def local_pod_from_json(item: Item, throttled_namespaces: Collection[str]) -> LocalPod:
    """Return a Pod object as a LocalPod. `throttled_namespaces`: those that let Coda throttle their pods.

    Raises for a broken object: InvalidInput, LookupError, TypeError, ValueError."""
    metadata, spec, status = item["metadata"], item["spec"], item.get("status") or {}
    pod = pod_from_json(item)
    limits = pod_amounts(item, "limits")
    limited = all("cpu" in ((one.get("resources") or {}).get("limits") or {}) for one in spec.get("containers") or ())
    obstacle, claim_uses = obstacle_from_json(item), claim_uses_from_json(spec, status)
    has_claims = bool(spec.get("resourceClaims") or claim_uses)  # kube-scheduler makes claims, too
    local = LocalPod(
        uid=pod.uid,
        namespace=metadata["namespace"],
        name=metadata["name"],
        runs=status.get("phase") == "Running" and not pod.ended,
        ended=pod.ended,
        gpus=pod.request.gpus,
        has_other_accelerators=has_claims or any(map(ACCELERATORS.fullmatch, filter(limits.get, limits))),
        request_cores=pod.request.cpu_m / 1000,
        limit_cores=limits["cpu"] / 1000 if limited and limits.get("cpu") else None,
        quality=status.get("qosClass") or "",
        member=pod.member,
        is_ending=pod.terminating,
        asks_protection=(metadata.get("labels") or {}).get(THROTTLING) == PROTECT,
        container=(main_status(item).get("containerID") or "").rpartition("://")[2],
        claim_uses=claim_uses,
        cores=0 if pod.member is None else _main_cores(item),
        is_tuned=pod.member is not None and (metadata.get("annotations") or {}).get(ANNOTATION_CORES) == AUTO,
        gpu_bytes=0 if pod.member is None else _gpu_bytes(metadata),
        resize_obstacle="" if obstacle is None else obstacle.value,
        asked_anyway=0 if pod.member is None else -(-asked_anyway_m(item) // 1000),
        stop=None if pod.member is None else _stop(metadata),
    )
    elsewhere = frozenset() if local.namespace in throttled_namespaces else {Protection.NOT_OPTED_IN}
    return replace(local, protections=_protections(metadata, spec, trains=local.trains) | elsewhere)


def _gpu_bytes(metadata: Item) -> int:
    """What the operator wrote of the job's `gpuMemory`; nothing, where somebody else wrote nonsense."""
    try:
        return max(0, whole_from_quantity((metadata.get("annotations") or {}).get(ANNOTATION_GPU_MEMORY) or 0))
    except InvalidInput:
        return 0


def _stop(metadata: Item) -> Announcement | None:
    """What the operator announced; nothing, where somebody else wrote the annotation and it says nothing."""
    try:
        return announcement_from_metadata(metadata)
    except InvalidInput:
        return None


def _main_cores(item: Item) -> int:
    main, said = main_container(item), main_status(item)
    limits = ((said.get("resources") or {}).get("limits") or {}) or ((main.get("resources") or {}).get("limits") or {})
    return round(milli_from_quantity(limits.get("cpu", "0")) / 1000)


def _protections(metadata: Item, spec: Item, *, trains: bool) -> frozenset[Protection]:
    annotations = metadata.get("annotations") or {}
    owners = metadata.get("ownerReferences") or ()
    critical = (spec.get("priority") or 0) >= SYSTEM_PRIORITY or metadata["namespace"] == SYSTEM_NAMESPACE
    found = {
        Protection.TRAINING: trains,
        Protection.OPTED_OUT: (metadata.get("labels") or {}).get(THROTTLING) == "false",
        Protection.STATIC: MIRROR in annotations,
        Protection.DAEMON_SET: any(map(_is_daemon_set, owners)),
        Protection.SYSTEM_CRITICAL: critical,
    }
    return frozenset(protection for protection, holds in found.items() if holds)


def _is_daemon_set(owner: Item) -> bool:
    """True for the owner as the DaemonSet controller writes it; with a forged uid the API server deletes the pod."""
    is_set = owner.get("kind") == "DaemonSet" and owner.get("apiVersion") == "apps/v1"
    return is_set and bool(owner.get("controller")) and bool(owner.get("uid"))
