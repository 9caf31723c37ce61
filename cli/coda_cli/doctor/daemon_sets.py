"""The DaemonSets that the pool's taint keeps from nodes where they would run without it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from coda.model.world import Node
from coda.nodes.eligibility import exclusion
from coda_kube.objects.json_types import Json
from coda_kube.objects.names import POOL_TAINT
from coda_kube.objects.pods.node_terms import constraints_from_json, required_terms
from coda_kube.objects.read import node_from_json


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


def _without_pool_taint(node: Node) -> Node:
    return replace(node, taints=tuple(taint for taint in node.taints if taint.key != POOL_TAINT))
