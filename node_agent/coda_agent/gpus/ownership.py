"""Whose each GPU is: the kubelet's grants, joined with the API's pods, checked against the processes on it. Pure.

A GPU counts as a pod's only if all three agree. If they do not, nothing on it may be tuned, and the reason is a
sentence for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from coda_agent.claimed_device import ClaimedDevice
from coda_agent.gpus.allocations import GpuPlace, Grant, places_in, places_of
from coda_agent.gpus.devices import Gpu
from coda_agent.gpus.processes import GpuUser


class Belief(Enum):
    """How sure the owner of a place is."""

    CONFIRMED = "confirmed"  # only processes of its owners use it
    UNCONFIRMED = "unconfirmed"  # nobody uses it yet, or its processes could not be seen
    DISPUTED = "disputed"  # used by others than the kubelet and the API name


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePod:
    """A pod of this node as the API server has it."""

    uid: str
    namespace: str
    name: str
    is_finished: bool = False  # Succeeded or Failed: older kubelets still list what it had


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuOwner:
    """A container that was granted a place. `pod_uid` None: the API knows no such running pod on this node."""

    pod_uid: str | None
    namespace: str
    pod: str
    container: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ownership:
    """The owners of one GPU or MIG slice. `strangers`: users that no owner explains. `why`: set unless CONFIRMED."""

    place: GpuPlace
    owners: tuple[GpuOwner, ...]  # by namespace, pod, container
    belief: Belief
    has_utilisation: bool = True
    gpu_instance: int | None = None  # of a MIG slice
    strangers: tuple[GpuUser, ...] = ()
    why: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuHolding:
    """What one pod has of the node's GPUs. `why_not`: the one reason not to tune it; None: it may be tuned."""

    pod_uid: str
    places: tuple[GpuPlace, ...]  # by UUID
    why_not: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """All that is known: devices, the kubelet's grants, the API's pods of this node, and the users by place UUID.

    A missing place in `users`: its processes could not be seen. `uuid_by_claim`: from ResourceSlices, attribute
    `uuid`."""

    gpus: Sequence[Gpu]
    grants: Sequence[Grant]
    pods: Sequence[NodePod]
    users: Mapping[str, Sequence[GpuUser]]
    uuid_by_claim: Mapping[ClaimedDevice, str]


def find_owners(evidence: Evidence) -> tuple[Ownership, ...]:
    """Return one Ownership for each GPU (its slices, in MIG mode) of `evidence.gpus`, in order of UUID."""
    owners_by_place = _owners_by_place(evidence)
    places = [place for gpu in evidence.gpus for place in places_in(gpu)]
    silent = {part.uuid for gpu in evidence.gpus for part in gpu.instances if not part.has_utilisation}
    found = (
        _ownership_of(place, owners_by_place.get(place, ()), evidence.users.get(place.uuid))
        for place in sorted(places, key=lambda place: place.uuid)
    )
    instances = {part.uuid: part.gpu_instance for gpu in evidence.gpus for part in gpu.instances}
    return tuple(
        replace(one, has_utilisation=one.place.uuid not in silent, gpu_instance=instances.get(one.place.uuid))
        for one in found
    )


def holding_of(pod_uid: str, ownerships: Sequence[Ownership]) -> GpuHolding:
    """Return what a pod has, and whether its utilisation may decide anything.

    It may not if a place of it is disputed or shared, or a MIG slice of which nobody can tell how busy it is, or if the
    pod uses a place of others. Nor if none of its places shows a process of it yet."""
    own = [ownership for ownership in ownerships if pod_uid in {owner.pod_uid for owner in ownership.owners}]
    foreign = [
        ownership for ownership in ownerships if pod_uid in {stranger.pod_uid for stranger in ownership.strangers}
    ]
    return GpuHolding(
        pod_uid=pod_uid,
        places=tuple(ownership.place for ownership in own),
        why_not=_objection(own, foreign),
    )


def _objection(own: Sequence[Ownership], foreign: Sequence[Ownership]) -> str | None:
    for ownership in (*foreign, *own):
        if ownership.belief is Belief.DISPUTED:
            return ownership.why
    for ownership in own:
        uuid = ownership.place.uuid
        if not ownership.has_utilisation:
            return f"{uuid} is a MIG slice, of which no utilisation is measured"
        pods = sorted({f"{owner.namespace}/{owner.pod}" for owner in ownership.owners})
        if len(pods) > 1:
            return f"{uuid} is shared by {' and '.join(pods)}"
    if not own:
        return "it was granted no GPU of this node"
    if not any(ownership.belief is Belief.CONFIRMED for ownership in own):
        return own[0].why
    return None


def _owners_by_place(evidence: Evidence) -> Mapping[GpuPlace, tuple[GpuOwner, ...]]:
    running: dict[tuple[str, str], list[str]] = {}
    finished: set[tuple[str, str]] = set()
    for pod in evidence.pods:
        if pod.is_finished:
            finished.add((pod.namespace, pod.name))
        else:
            running.setdefault((pod.namespace, pod.name), []).append(pod.uid)
    found: dict[GpuPlace, set[GpuOwner]] = {}
    for grant in evidence.grants:
        uids = running.get((grant.namespace, grant.pod), [])
        if not uids and (grant.namespace, grant.pod) in finished:
            continue
        uid = uids[0] if len(uids) == 1 else None
        owner = GpuOwner(pod_uid=uid, namespace=grant.namespace, pod=grant.pod, container=grant.container)
        for place in places_of(grant, evidence.gpus, evidence.uuid_by_claim):
            found.setdefault(place, set()).add(owner)
    return {
        place: tuple(sorted(owners, key=lambda owner: (owner.namespace, owner.pod, owner.container)))
        for place, owners in found.items()
    }


def _ownership_of(place: GpuPlace, owners: tuple[GpuOwner, ...], users: Sequence[GpuUser] | None) -> Ownership:
    uids = {owner.pod_uid for owner in owners if owner.pod_uid is not None}
    strangers = tuple(user for user in users or () if user.pod_uid is None or user.pod_uid not in uids)
    unknown = next((owner for owner in owners if owner.pod_uid is None), None)
    if strangers:
        belief, why = Belief.DISPUTED, _dispute_text(place, owners, strangers[0])
    elif unknown is not None:
        name = f"{unknown.namespace}/{unknown.pod}"
        belief, why = Belief.UNCONFIRMED, f"{place.uuid} was granted to {name}, which the API server does not list here"
    elif users is None:
        belief, why = Belief.UNCONFIRMED, f"the processes on {place.uuid} could not be seen"
    elif not users:
        belief, why = Belief.UNCONFIRMED, f"no process uses {place.uuid} yet"
    else:
        return Ownership(place=place, owners=owners, belief=Belief.CONFIRMED)
    return Ownership(place=place, owners=owners, belief=belief, strangers=strangers, why=why)


def _dispute_text(place: GpuPlace, owners: tuple[GpuOwner, ...], stranger: GpuUser) -> str:
    whose = "no pod" if stranger.pod_uid is None else f"the pod with uid {stranger.pod_uid}"
    given = " and ".join(sorted({f"{owner.namespace}/{owner.pod}" for owner in owners})) or "nobody"
    return f"process {stranger.pid} of {whose} uses {place.uuid}, which was given to {given}"
