"""Every class of hostile object: a harmless one made hostile, and what its owner does to it afterwards. Pure.

A hostile pod asks for next to nothing or for what no node of the honest jobs can give: a plain user may use capacity,
and honest jobs would rightly wait for it. Everything else is allowed.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from coda_kube.objects import names
from coda_lab.experiments.hostile.kinds import (
    JOB,
    NODE,
    Json,
    Kind,
)
from coda_lab.experiments.hostile.schema import INTEGERS, QUANTITIES, TEXTS, apply_edit

MERGE: Final = "application/merge-patch+json"
ETCD_BYTES: Final = 1_572_864
ANNOTATIONS_BYTES: Final = 262_144
HONEST_TAINT: Final = "honest"
HONEST_ROOM: Final = {"room": "honest"}
"""The label of the nodes on which the honest jobs run."""

_KEY: Final = names.GROUP + "/{}"  # nobody knows these keys
NEST: Final = "@nest@"
"""In an object: replaced by deep JSON in its bytes."""
_NODE_RESOURCES: Final = ("cpu", "memory", names.GPU, "ephemeral-storage", "hugepages-2Mi", "example.com/odd", "pods")


@dataclass(frozen=True, slots=True, kw_only=True)
class Deed:
    """A request about one object after it was stored. `suffix` follows its path."""

    verb: str
    body: bytes
    suffix: str = ""
    content_type: str = MERGE


@dataclass(frozen=True, slots=True, kw_only=True)
class Hostile:
    """One object: its class, its bytes, and the deeds that follow."""

    kind: Kind
    way: str
    namespace: str
    name: str
    body: bytes
    deeds: tuple[Deed, ...] = ()

    @property
    def path(self) -> str:
        """The path of the object."""
        return f"{self.kind.path(self.namespace)}/{self.name}"


@dataclass(slots=True, kw_only=True)
class Victims:
    """What an attacker can see of others: uids and names of the honest jobs, names of nodes."""

    uid_by_job: dict[str, str] = field(default_factory=dict)
    nodes: Sequence[str] = ("node-0000",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """An object that becomes hostile. `edits`: what the schema class sets next."""

    rng: random.Random
    kind: Kind
    body: Json
    victims: Victims
    edits: Iterator[list[tuple[Any, Any]]]

    @property
    def metadata(self) -> Json:
        """The object's metadata."""
        found: Json = self.body["metadata"]
        return found

    @property
    def spec(self) -> Json:
        """The pods' spec; the object itself where it has no pods."""
        inner: Any = self.body
        for step in self.kind.pod_spec or ():
            inner = inner[step]
        found: Json = inner
        return found

    @property
    def main(self) -> Json:
        """The first container of its pods."""
        found: Json = self.spec["containers"][0]
        return found


Way = Callable[[Case], tuple[Deed, ...]]


def by_schema(case: Case) -> tuple[Deed, ...]:
    """Other values anywhere, from the OpenAPI schema."""
    for path, value in next(case.edits):
        apply_edit(case.body, path, value)
    return ()


def huge(case: Case) -> tuple[Deed, ...]:
    """As large as it may be, or larger."""
    size = case.rng.choice((60_000, 200_000, 255_000, 300_000, 900_000, 1_400_000, 1_600_000))
    if case.kind.pod_spec is not None:
        case.main["env"] = [{"name": "PAD", "value": "x" * size}]
    elif "data" in case.body:
        case.body["data"] = {"pad": "x" * size}
    else:
        case.metadata["annotations"] = {"pad": "x" * size}
    return ()


def at_the_limit(case: Case) -> tuple[Deed, ...]:
    """Padded by its owner until etcd takes not one byte more: then nobody else can write to it either."""
    if case.kind.pod_spec is None:
        return huge(case)
    size = case.rng.choice((100_000, 240_000, 1_200_000, 1_350_000))
    case.main["env"] = [{"name": "PAD", "value": "x" * size}]
    rest = min(ANNOTATIONS_BYTES, max(0, ETCD_BYTES - size - 2_000))
    deeds: list[Deed] = []
    for number in range(12):
        rest //= 2
        deeds.append(_patch({"metadata": {"annotations": {f"pad-{number}": "x" * rest}}}))
    return tuple(deeds)


def deep(case: Case) -> tuple[Deed, ...]:
    """Nested deeper than a parser follows."""
    place = case.rng.choice(("zzz", "affinity", "securityContext", "volumes", "resourceClaims"))
    value: Any = [NEST] if place in ("volumes", "resourceClaims") else NEST
    where = case.rng.choice((case.spec, case.spec, case.metadata))
    where[place] = value
    return () if case.rng.random() < 0.7 else (Deed(verb="PATCH", body=b'{"spec":{"zzz":%b}}' % nest(case.rng)),)


def odd_quantities(case: Case) -> tuple[Deed, ...]:
    """Amounts that are negative, huge, fractional, or no amounts."""
    rng = case.rng
    if case.kind.pod_spec is None:
        return _odd_amounts_elsewhere(case)
    amounts = {name: rng.choice(QUANTITIES) for name in rng.sample(_NODE_RESOURCES, rng.randint(1, 3))}
    if rng.random() < 0.4:
        amounts = {"memory": rng.choice(QUANTITIES)}
    place = rng.randrange(5)
    if place == 0:
        case.spec["initContainers"] = [{"name": "init", "image": "x:1", "resources": {"requests": amounts}}]
    elif place == 1:
        case.spec["resources"] = {"requests": amounts}
    elif place == 2:
        case.spec["volumes"] = [{"name": "v", "emptyDir": {"sizeLimit": rng.choice(QUANTITIES)}}]
    elif place == 3:
        case.spec["overhead"] = amounts
    else:
        case.main["resources"] = {rng.choice(("requests", "limits")): amounts}
    if rng.random() < 0.4:
        case.spec["serviceAccountName"] = "no-such-account"  # then no dry run ever admits the template
    return ()


def _odd_amounts_elsewhere(case: Case) -> tuple[Deed, ...]:
    odd = {case.rng.choice(("cpu", "memory", "storage", names.GPU)): case.rng.choice(QUANTITIES)}
    places: Mapping[str, tuple[str | int, ...]] = {
        "LimitRange": ("spec", "limits", 0, case.rng.choice(("max", "min", "default", "defaultRequest"))),
        "ResourceQuota": ("spec", "hard"),
        "PersistentVolumeClaim": ("spec", "resources", "requests"),
        NODE.name: ("status", case.rng.choice(("allocatable", "capacity"))),
    }
    apply_edit(case.body, places.get(case.kind.name, ("metadata", "labels")), odd)
    return ()


def many_terms(case: Case) -> tuple[Deed, ...]:
    """Thousands of terms to judge every node by."""
    many = case.rng.choice((65, 300, 3_000, 10_000))
    place = case.rng.randrange(5)
    if place == 3 and case.kind is not JOB:
        many = min(many, 300)  # at each write the API server compares each with each: no part of Coda is asked
    wanted = {"key": "room", "operator": "In", "values": ["nowhere"]}
    if place == 0:
        terms = [{"matchExpressions": [wanted | {"values": [f"v{number}"]}]} for number in range(many)]
        _require(case.spec, terms)
    elif place == 1:
        _require(case.spec, [{"matchExpressions": [wanted | {"key": f"k{number}"} for number in range(many)]}])
    elif place == 2:
        _require(case.spec, [{"matchExpressions": [wanted | {"values": [f"v{number}" for number in range(many)]}]}])
    elif place == 3:
        case.spec["tolerations"] = [{"key": f"k{number}", "operator": "Exists"} for number in range(many)]
    else:
        case.spec["nodeSelector"] = {f"k{number}": "v" for number in range(many)}
    return ()


def huge_maps(case: Case) -> tuple[Deed, ...]:
    """Thousands of labels, annotations, variables or volumes."""
    many = case.rng.choice((500, 3_000))
    entries = {f"example.com/k{number}": "v" for number in range(many)}
    place = case.rng.choice(("labels", "annotations", "finalizers", "env", "volumes"))
    if place in ("env", "volumes") and case.kind.pod_spec is not None:
        where = case.main if place == "env" else case.spec
        where[place] = [{"name": f"k{number}"} for number in range(many)]
    else:
        case.metadata["annotations" if place in ("env", "volumes") else place] = (
            [f"example.com/f{number}" for number in range(many // 10)] if place == "finalizers" else entries
        )
    return ()


def forged(case: Case) -> tuple[Deed, ...]:
    """Coda's own labels, annotations, gates and finalizers, with the names of an honest job."""
    rng = case.rng
    job, uid = rng.choice(sorted(case.victims.uid_by_job.items()) or [("none", "none")])
    labels = {
        names.LABEL_JOB: rng.choice((job, "", "x" * 63)),
        names.LABEL_JOB_UID: rng.choice((uid, uid, "none")),
        names.LABEL_ATTEMPT: rng.choice(("1", "2", "-1", "x", "99999999999999999999")),
        names.LABEL_RANK: rng.choice(("0", "1", "-1", "4096", "x", "99999999999999999999")),
        names.LABEL_LEADER: "true",
    }
    notes = {names.ANNOTATION_PLAN: rng.choice((f"{uid}-1", "x", "")), _KEY.format("unknown"): "x"}
    where = [case.metadata]
    if case.kind.pod_spec is not None and case.kind.pod_spec != ("spec",):
        where.append(case.body["spec"]["template"].setdefault("metadata", {}))
    for metadata in where:
        kept = rng.sample(sorted(labels), rng.randint(1, len(labels)))
        metadata["labels"] = metadata.get("labels", {}) | {key: labels[key] for key in kept}
        metadata["annotations"] = metadata.get("annotations", {}) | notes
    case.metadata["finalizers"] = rng.choice(([], [names.FINALIZER], [_KEY.format("unknown")]))
    owner = {"apiVersion": names.API_VERSION, "kind": names.KIND, "name": job, "uid": uid, "controller": True}
    case.metadata["ownerReferences"] = rng.choice(([], [owner]))
    if case.kind.name == "Pod":
        _forge_pod(case)
    return ()


def _forge_pod(case: Case) -> None:
    rng, spec = case.rng, case.spec
    case.main.pop("resources", None)  # it asks for nothing, so a quota does not see it
    spec["schedulingGates"] = rng.choice(([], [{"name": _KEY.format("admission")}], [{"name": "example.com/gate"}]))
    spec["schedulerName"] = rng.choice((names.SCHEDULER, "default-scheduler", "nobody"))
    spec["tolerations"] = rng.choice(([], [{"operator": "Exists"}], [{"key": names.POOL_TAINT, "operator": "Exists"}]))
    node = rng.choice(list(case.victims.nodes))
    pin = rng.randrange(4)
    if pin == 0:
        spec["nodeSelector"] = {"kubernetes.io/hostname": node}
    elif pin == 1:
        field_term = {"key": "metadata.name", "operator": "In", "values": [node]}
        _require(spec, [{"matchFields": [field_term]}])
    elif pin == 2 and not spec["schedulingGates"]:
        spec["nodeName"] = node


def reset_managers(case: Case) -> tuple[Deed, ...]:
    """Its owner takes the ownership of every field away from those who wrote it."""
    reset = _patch({"metadata": {"managedFields": [{}]}})
    return (reset, _patch({"metadata": {"labels": {"again": "1"}}}), reset)


def orphaned(case: Case) -> tuple[Deed, ...]:
    """Deleted without what it owns, or in the foreground, or held for ever by a finalizer of its owner's."""
    if case.rng.random() < 0.5:
        case.metadata["finalizers"] = ["example.com/never"]
    policy = case.rng.choice(("Orphan", "Foreground"))
    options = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": policy}
    return (Deed(verb="DELETE", body=json.dumps(options).encode(), content_type="application/json"),)


def weird_text(case: Case) -> tuple[Deed, ...]:
    """Text that is no name: bidirectional, joined, cut in half, or markup."""
    rng = case.rng
    case.metadata["annotations"] = {"said": "".join(rng.sample(TEXTS, 5)), **case.metadata.get("annotations", {})}
    if case.kind.pod_spec is not None:
        case.main["command"] = list(rng.sample(TEXTS, 4))
        case.main["env"] = [{"name": rng.choice(("A", "é", "\u202ea", "=")), "value": rng.choice(TEXTS)}]
        case.main["image"] = rng.choice(("x:1", "\u202e:1", "é", "x" * 5000, "a b"))
    return ()


def extreme_numbers(case: Case) -> tuple[Deed, ...]:
    """The smallest and largest numbers where numbers are."""
    rng = case.rng
    fields: Mapping[str, tuple[str, ...]] = {
        JOB.name: ("replicas", "gpusPerReplica", "retries", "activeDeadlineSeconds", "ttlSecondsAfterFinished"),
        "Job": ("backoffLimit", "activeDeadlineSeconds", "ttlSecondsAfterFinished"),
        "Lease": ("leaseDurationSeconds", "leaseTransitions"),
        "Deployment": ("minReadySeconds", "progressDeadlineSeconds", "revisionHistoryLimit"),
    }
    for name in fields.get(case.kind.name, ()):
        if rng.random() < 0.4:
            case.body["spec"][name] = rng.choice(INTEGERS)
    if case.kind is JOB:
        case.body["spec"]["startDeadlineSeconds"] = rng.choice((1, 86400, 86401))
    if case.kind.pod_spec is not None:
        case.spec[rng.choice(("terminationGracePeriodSeconds", "activeDeadlineSeconds", "priority"))] = rng.choice(
            INTEGERS
        )
    return ()


def outside_the_planner(case: Case) -> tuple[Deed, ...]:
    """Conditions that only kube-scheduler or admission knows: ports, volumes, claims, classes, accounts."""
    rng, spec = case.rng, case.spec
    choice = rng.randrange(6)
    if choice == 0:
        case.main["ports"] = [{"containerPort": 29500, "hostPort": rng.choice((29500, 0, 65535, 70000))}]
    elif choice == 1:
        spec["volumes"] = [{"name": "v", "persistentVolumeClaim": {"claimName": "no-such-claim"}}]
    elif choice == 2:
        spec["priorityClassName"] = rng.choice(("system-cluster-critical", "system-node-critical", "no-such-class"))
    elif choice == 3:
        spec["serviceAccountName"] = "no-such-account"
    elif choice == 4:
        spec["runtimeClassName"] = "no-such-class"
    else:
        spec["resourceClaims"] = [{"name": "c", "resourceClaimName": "no-such-claim"}]
    return ()


def restless(case: Case) -> tuple[Deed, ...]:
    """Edited again and again by its owner."""
    if case.kind is not JOB:
        return tuple(_patch({"metadata": {"labels": {"edit": str(number)}}}) for number in range(10))
    edits: list[Json] = []
    for number in range(6):
        edits += [{"spec": {"suspend": number % 2 == 0}}, {"spec": {"replicas": 1 + number * 700}}]
    return tuple(_patch(edit) for edit in edits)


def nest(rng: random.Random) -> bytes:
    """Deeply nested JSON."""
    depth = rng.choice((60, 120, 300, 980, 1100, 5_000, 9_000))
    return b'{"a":' * depth + b"1" + b"}" * depth if rng.random() < 0.7 else b"[" * depth + b"]" * depth


def _require(spec: Json, terms: list[Json]) -> None:
    wanted = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    spec["affinity"] = {"nodeAffinity": wanted}


def _patch(body: Json) -> Deed:
    return Deed(verb="PATCH", body=json.dumps(body).encode())
