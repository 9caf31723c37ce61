"""The DaemonSets that the pool's taint keeps from nodes where they would run without it, and those that tolerate it
and that the admission policies guard."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final, NamedTuple

from coda.model.world import Node
from coda.nodes.eligibility import exclusion
from coda_kube.objects.json_types import Json
from coda_kube.objects.names import POOL_TAINT, SYSTEM_NAMESPACE
from coda_kube.objects.pods.node_terms import constraints_from_json, required_terms
from coda_kube.objects.read import node_from_json

_BY_HAND: Final = re.compile(
    r"kubectl.*|oc([.]exe)?|helm[0-9]?([.]exe)?|terraform-provider.*|HashiCorp|Terraform"
)  # whoever runs these may use the pool, or reads why not
_EXEMPT: Final = ("kube-system", SYSTEM_NAMESPACE)


def kept_out(daemon_sets: Iterable[Json], nodes: Iterable[Json]) -> list[str]:
    """Return their names, `namespace/name`, in the order given. Selector, affinity and tolerations are as Kubernetes
    judges them, but for the taint of nodes for trials (`coda.nodes.eligibility`). O(DaemonSets x nodes of the pool)."""
    pool = [(node, without) for item in nodes if (without := _without_pool_taint(node := node_from_json(item))) != node]
    found = []
    for item in daemon_sets:
        spec = item["spec"]["template"]["spec"]
        wants = constraints_from_json(spec, tuple(required_terms(spec)))
        if any(exclusion(wants, node) and not exclusion(wants, without) for node, without in pool):
            found.append(f"{item['metadata']['namespace']}/{item['metadata']['name']}")
    return found


class Guarded(NamedTuple):
    """A DaemonSet that tolerates the taint, in no namespace of the platform: the policies judge who changes it.

    `name`: namespace/name. `programs`: which keep it up to date, empty if none do; as `coda.refusedDaemonSets` of the
    chart. `hands`: those that people run, and that wrote of it."""

    name: str
    programs: str
    hands: str


def guarded(daemon_sets: Iterable[Json], namespaces: Iterable[Json]) -> Iterator[Guarded]:
    """Yield those that the policies guard, in the order given."""
    exempt = {item["metadata"]["name"] for item in namespaces if _labels(item).get(POOL_TAINT) == "true"}
    for item in daemon_sets:
        where = item["metadata"]["namespace"]
        if where in _EXEMPT or where in exempt or not any(map(_tolerates, _pod(item).get("tolerations") or ())):
            continue
        writers = {str(by.get("manager")) for by in item["metadata"].get("managedFields") or () if _wrote_pod(by)}
        hands = {name for name in writers if _BY_HAND.fullmatch(name)}
        programs = sorted(writers - hands) if writers else ["its maker"]
        yield Guarded(f"{where}/{item['metadata']['name']}", ", ".join(programs), ", ".join(sorted(hands)))


def _labels(item: Json) -> Json:
    return item["metadata"].get("labels") or {}


def _pod(daemon_set: Json) -> Json:
    pod: Json = daemon_set["spec"]["template"]["spec"]
    return pod


def _tolerates(toleration: Json) -> bool:
    key, operator = toleration.get("key") or "", toleration.get("operator") or ""
    reaches = key == POOL_TAINT or (not key and operator == "Exists")
    return reaches and toleration.get("effect") != "PreferNoSchedule"


def _wrote_pod(manager: Json) -> bool:
    spec = (manager.get("fieldsV1") or {}).get("f:spec") or {}
    return "f:spec" in (spec.get("f:template") or {})


def _without_pool_taint(node: Node) -> Node:
    return replace(node, taints=tuple(taint for taint in node.taints if taint.key != POOL_TAINT))
