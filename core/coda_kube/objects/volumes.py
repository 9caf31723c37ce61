"""What the volumes of a pod say of where it may run: claims that wait, and the nodes of bound volumes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import product
from typing import Any, Final

Item = Mapping[str, Any]

MOST_TERMS: Final = 64
"""Node selector terms of a request. More are left to kube-scheduler, and learned from its refusal. Our choice."""

_CLASS_ANNOTATION: Final = "volume.beta.kubernetes.io/storage-class"


def claims_of(pod: Item) -> tuple[str, ...]:
    """Return the names of the PersistentVolumeClaims that a pod mounts, sorted."""
    volumes = pod["spec"].get("volumes") or ()
    return tuple(sorted({volume["persistentVolumeClaim"]["claimName"] for volume in volumes if _claims(volume)}))


def _claims(volume: Item) -> bool:
    return bool((volume.get("persistentVolumeClaim") or {}).get("claimName"))


def problem_of(name: str, claim: Item | None, storage_class: Item | None) -> tuple[str, str] | None:
    """Return reason and sentence if no pod with this claim can be scheduled now. None for `claim`: there is none.

    A claim that waits for its first consumer is bound by kube-scheduler, on the node of the placement."""
    if claim is None:
        return "VolumeClaimMissing", f"PersistentVolumeClaim {name} does not exist"
    phase = (claim.get("status") or {}).get("phase")
    if "deletionTimestamp" in claim["metadata"]:
        return "VolumeClaimLost", f"PersistentVolumeClaim {name} is being deleted"
    if phase == "Lost":
        return "VolumeClaimLost", f"PersistentVolumeClaim {name} has lost its volume"
    waits = storage_class is not None and storage_class.get("volumeBindingMode") == "WaitForFirstConsumer"
    if phase == "Bound" or waits:
        return None
    return "VolumeClaimUnbound", f"PersistentVolumeClaim {name} is not bound to a volume yet"


def class_of(claim: Item | None) -> str:
    """Return the name of the StorageClass that a claim asks for, as Kubernetes reads it; empty: it asks for none.

    The old annotation wins over the field, and is still honoured."""
    annotations = ((claim or {}).get("metadata") or {}).get("annotations") or {}
    if _CLASS_ANNOTATION in annotations:
        return str(annotations[_CLASS_ANNOTATION])
    return str(((claim or {}).get("spec") or {}).get("storageClassName") or "")


def refusal_of(name: str, claim: Item | None, replicas: int) -> str | None:
    """Return why a gang of so many ranks can never mount the claim, or None. The modes of a claim cannot be edited."""
    modes = ((claim or {}).get("spec") or {}).get("accessModes") or ()
    if replicas == 1 or "ReadWriteOncePod" not in modes:
        return None
    return f"PersistentVolumeClaim {name} is ReadWriteOncePod: one pod mounts it, and the job has {replicas} ranks"


def terms_with_volumes(terms: Iterable[Item], volumes: Iterable[Item]) -> list[Item]:
    """Return node selector terms that also say what the node affinity of each PersistentVolume says.

    Terms are alternatives, so every one is joined with every one. Volumes that would make too many are left out."""
    joined = list(terms)
    for volume in volumes:
        required = ((volume.get("spec") or {}).get("nodeAffinity") or {}).get("required") or {}
        alternatives = required.get("nodeSelectorTerms") or ()
        if alternatives and len(alternatives) * max(1, len(joined)) <= MOST_TERMS:
            joined = [_both(one, other) for one, other in product(joined or [{}], alternatives)]
    return joined


def _both(one: Item, other: Item) -> Item:
    names = [name for name in ("matchExpressions", "matchFields") if one.get(name) or other.get(name)]
    return {name: [*(one.get(name) or ()), *(other.get(name) or ())] for name in names}
