"""The DaemonSets that the pool's taint keeps from nodes where they would run without it, and those that tolerate it
and that the admission policies guard."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from coda.model.world import Node
from coda.nodes.eligibility import exclusion
from coda_kube.objects.json_types import Json
from coda_kube.objects.names import POOL_TAINT, SYSTEM_NAMESPACE
from coda_kube.objects.pods.node_terms import constraints_from_json, required_terms
from coda_kube.objects.read import node_from_json

_BY_HAND: Final = re.compile(r"kubectl.*|oc|helm")  # whoever runs these may use the pool, or reads why not
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


def guarded(daemon_sets: Iterable[Json], namespaces: Iterable[Json]) -> Iterator[tuple[str, str]]:
    """Yield `namespace/name` and the programs of those whose next change the policies refuse, unless the program may
    use the pool: they tolerate the taint, in no namespace of the platform. As `coda.refusedDaemonSets` of the chart."""
    exempt = {item["metadata"]["name"] for item in namespaces if _labels(item).get(POOL_TAINT) == "true"}
    for item in daemon_sets:
        where = item["metadata"]["namespace"]
        if where in _EXEMPT or where in exempt or not any(map(_tolerates, _pod(item).get("tolerations") or ())):
            continue
        writers = {str(by.get("manager")) for by in item["metadata"].get("managedFields") or () if _wrote_pod(by)}
        programs = sorted(name for name in writers if not _BY_HAND.fullmatch(name))
        if programs or not writers:
            yield f"{where}/{item['metadata']['name']}", ", ".join(programs) or "its maker"


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
