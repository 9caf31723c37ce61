"""The taints of GPU nodes that keep CPU jobs away from the whole pool."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from coda.model.constraints import NodeConstraints, Toleration
from coda.model.world import Node
from coda.nodes.eligibility import is_tainted
from coda_cli.doctor.agents import gpus_of
from coda_cli.doctor.finding import Finding, Level, few
from coda_cli.doctor.seen import Seen
from coda_kube.objects.names import POOL_TAINT, POOL_TAINTS
from coda_kube.objects.read import node_from_json

_VARIABLE: Final = "CODA_POOL_TAINTS"


def unreachable_pool(seen: Seen) -> Iterator[Finding]:
    """Yield one finding if no GPU node of the pool takes CPU jobs; none where nodes cannot be read.

    Without any node with the pool's taint every node with GPUs belongs to the pool."""
    with_gpus = [node_from_json(node) for node in seen.nodes or () if gpus_of(node)]
    pool = [node for node in with_gpus if any(taint.key == POOL_TAINT for taint in node.taints)] or with_gpus
    tolerated = seen.operator_settings.get(_VARIABLE, POOL_TAINTS).split(",")
    kept_out_by = [_not_tolerated(node, tolerated) for node in pool]
    if kept_out_by and all(kept_out_by):
        keys = sorted(set().union(*kept_out_by))
        says = f"every GPU node of the pool ({len(pool)}) has a taint that they do not tolerate: {few(keys)}"
        wanted = ",".join([key for key in tolerated if key] + keys)
        yield Finding(Level.NOTE, "CPU jobs", says, f"in the chart: --set 'pool.taints={{{wanted}}}'")


def _not_tolerated(node: Node, tolerated: Iterable[str]) -> set[str]:
    """The keys of the taints that keep CPU jobs off the node for good."""
    keys = (POOL_TAINT, *tolerated)
    wants = NodeConstraints(tolerations=tuple(Toleration(key=key, operator="Exists") for key in keys if key))
    return {taint.key for taint in node.taints if is_tainted(wants, replace(node, taints=(taint,)))}
