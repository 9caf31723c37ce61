"""What the volumes of a pod say of where it may run: claims that wait, and the nodes of bound volumes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, product
from typing import Any, Final

Item = Mapping[str, Any]

MOST_TERMS: Final = 64
"""Node selector terms of a request. More are left to kube-scheduler, and learned from its refusal. Our choice."""

_CLASS_ANNOTATION: Final = "volume.beta.kubernetes.io/storage-class"
_NO_PROVISIONER: Final = "kubernetes.io/no-provisioner"
_NEWER_LABEL: Final = {
    "failure-domain.beta.kubernetes.io/zone": "topology.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region": "topology.kubernetes.io/region",
}
_TOPOLOGY_LABELS: Final = (*_NEWER_LABEL, *_NEWER_LABEL.values())


def claims_of(spec: Item) -> tuple[str, ...]:
    """Return the names of the PersistentVolumeClaims that a pod with this spec mounts, sorted."""
    volumes = spec.get("volumes") or ()
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


def brought_classes(spec: Item) -> dict[str, str]:
    """Return the StorageClass that each ephemeral volume of a pod names, by volume. Those of no class are left out."""
    brought = {volume["name"]: (volume.get("ephemeral") or {}) for volume in spec.get("volumes") or ()}
    named = {name: class_of(ephemeral.get("volumeClaimTemplate")) for name, ephemeral in brought.items()}
    return {name: kind for name, kind in named.items() if kind}


def refusal_of(name: str, claim: Item | None, replicas: int) -> str | None:
    """Return why a gang of so many ranks can never mount the claim, or None. The modes of a claim cannot be edited."""
    modes = ((claim or {}).get("spec") or {}).get("accessModes") or ()
    if replicas == 1 or "ReadWriteOncePod" not in modes:
        return None
    return f"PersistentVolumeClaim {name} is ReadWriteOncePod: one pod mounts it, and the job has {replicas} ranks"


def is_for_one_node(claim: Item) -> bool:
    """True if most storage mounts the claim's volume on one node only. A volume may allow more than its claim asks."""
    modes = (claim.get("status") or {}).get("accessModes") or claim["spec"].get("accessModes") or ()
    return bool(modes) and not {"ReadWriteMany", "ReadOnlyMany"} & set(modes)


def terms_with_volumes(terms: Iterable[Item], volumes: Sequence[Item]) -> list[Item]:
    """Return node selector terms that also say what each PersistentVolume says of its nodes, as kube-scheduler has it.

    Of a claim without one, `volumes` has the StorageClass that makes it. Terms are alternatives, so every one is joined
    with every one. Volumes that would make too many are left out."""
    joined, met = list(terms), list[list[Item]]()
    for alternatives in [*map(_terms_of, volumes), _terms_of_labels(volumes)]:
        if alternatives in met:
            continue
        met.append(alternatives)
        if alternatives and len(alternatives) * max(1, len(joined)) <= MOST_TERMS:
            joined = [_both(one, other) for one, other in product(joined or [{}], alternatives)]
    return joined


def claims_with_terms(volumes: Mapping[str, Item]) -> list[str]:
    """Return the claims whose volumes say something of their nodes, sorted; `volumes` as above, by claim."""
    return sorted(name for name, volume in volumes.items() if terms_with_volumes((), [volume]))


def _terms_of(volume: Item) -> list[Item]:
    """Return the node affinity of a PersistentVolume, or the topologies that a StorageClass allows; empty: all nodes.

    Volumes of a class without a provisioner are made by hand, wherever it says: its topologies bind nobody."""
    if volume.get("provisioner") == _NO_PROVISIONER:
        return []
    required = ((volume.get("spec") or {}).get("nodeAffinity") or {}).get("required") or {}
    allowed = [
        {"matchExpressions": [_is_in(one["key"], one.get("values") or ()) for one in expressions]}
        for term in volume.get("allowedTopologies") or ()
        if (expressions := term.get("matchLabelExpressions"))  # an empty one allows nothing
    ]
    return [*(required.get("nodeSelectorTerms") or ()), *allowed]


def _terms_of_labels(volumes: Iterable[Item]) -> list[Item]:
    """Return the terms that the zones and regions in labels of PersistentVolumes make. Source: its `VolumeZone`.

    A node without any such label takes all volumes, and one without a beta label is judged by the newer one."""
    values_by_key: dict[str, set[str]] = {}
    for volume in volumes:
        labels = ((volume.get("metadata") or {}).get("labels") or {}) if "spec" in volume else {}
        for key in _TOPOLOGY_LABELS:
            values = {value.strip() for value in labels.get(key, "").split("__")}
            if "" not in values and not _says(_terms_of(volume), key, values):
                values_by_key[key] = values_by_key.get(key, values) & values
    ways: list[list[list[Item]]] = []
    for key, values in values_by_key.items():
        newer = _NEWER_LABEL.get(key)
        fallback = [] if newer is None else [[_is_absent(key), _is_in(newer, sorted(values))]]
        ways.append([[_is_in(key, sorted(values))], *fallback])
    if not ways:
        return []
    labelled = [{"matchExpressions": list(chain(*way))} for way in product(*ways)]
    return [*labelled, {"matchExpressions": [_is_absent(key) for key in _TOPOLOGY_LABELS]}]


def _says(terms: Iterable[Item], key: str, values: set[str]) -> bool:
    """True if terms keep a pod to these values already: one term is judged faster than several."""
    kept = [
        any(
            one["key"] == key and one["operator"] == "In" and values >= set(one.get("values") or ())
            for one in expressions
        )
        for expressions in [term.get("matchExpressions") or () for term in terms]
    ]
    return bool(kept) and all(kept)


def _is_in(key: str, values: Iterable[str]) -> Item:
    return {"key": key, "operator": "In", "values": [*values]}


def _is_absent(key: str) -> Item:
    return {"key": key, "operator": "DoesNotExist"}


def _both(one: Item, other: Item) -> Item:
    names = [name for name in ("matchExpressions", "matchFields") if one.get(name) or other.get(name)]
    return {name: [*(one.get(name) or ()), *(other.get(name) or ())] for name in names}
