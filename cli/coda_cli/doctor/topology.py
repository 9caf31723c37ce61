"""The labels by which GPU nodes belong to racks, zones and other levels of the topology."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from coda.policy import PolicyConfig
from coda_cli.doctor.agents import gpus_of
from coda_cli.doctor.finding import Finding, Level, few
from coda_cli.doctor.seen import Seen
from coda_kube.objects.names import POOL_TAINT

_VARIABLE: Final = "CODA_TOPOLOGY_LEVELS"
_VALUE: Final = "topologyLevels in the chart"


def unlabelled_nodes(seen: Seen) -> Iterator[Finding]:
    """Yield one finding for each level whose label GPU nodes of the pool lack; one node alone needs none."""
    with_gpus = [node for node in seen.nodes or () if gpus_of(node)]
    tainted = [node for node in with_gpus if any(has["key"] == POOL_TAINT for has in node["spec"].get("taints") or ())]
    pool = tainted or with_gpus
    for name, label in _levels(seen):
        without = [node["metadata"]["name"] for node in pool if not (node["metadata"].get("labels") or {}).get(label)]
        if not without or len(pool) == 1:
            continue
        every = len(without) == len(pool)
        lacking = f"all {len(pool)} GPU nodes" if every else f"{few(without)} of {len(pool)} GPU nodes"
        says = f"{lacking} lack the label {label}: no job with locality.required: {name} runs there"
        fix = f"kubectl label node NODE {label}=NAME; or name a label that they have, or take the level out of {_VALUE}"
        yield Finding(Level.NOTE, "topology", says, fix)


def _levels(seen: Seen) -> list[tuple[str, str]]:
    """Names and labels, as the extender's Deployment sets them."""
    text = seen.extender_settings.get(_VARIABLE)
    if text is None:
        return [(level.name, level.label) for level in PolicyConfig().levels]
    pairs = [pair.partition("=") for pair in text.split(",") if pair.strip()]
    return [(name.strip(), label.strip()) for name, _, label in pairs]
