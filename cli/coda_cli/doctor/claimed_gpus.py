"""Nodes whose GPUs come by dynamic resource allocation alone: the planner sees none there.

Such a node does not list the resource in its status, also where claims are made for it (KEP-5004)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from coda_cli.doctor.agents import gpus_of
from coda_cli.doctor.finding import Finding, Level, few
from coda_cli.doctor.seen import Seen
from coda_kube.objects.names import GPU

_DRIVER: Final = "gpu.nvidia.com"


def claimed_gpus(seen: Seen) -> Iterator[Finding]:
    """Yield one finding if there are such nodes, a bad one if no node offers GPUs by a device plugin.

    None where slices cannot be read: few clusters have any."""
    without = {node["metadata"]["name"] for node in seen.nodes or () if not gpus_of(node)}
    specs = [one.get("spec") or {} for one in seen.resource_slices or ()]
    nodes = sorted({str(spec.get("nodeName")) for spec in specs if spec.get("driver") == _DRIVER} & without)
    if nodes:
        has = "has its GPUs" if len(nodes) == 1 else "have their GPUs"
        says = f"{few(nodes)} {has} by DRA alone (driver {_DRIVER}) and no {GPU}: no TrainingJob starts there"
        level = Level.NOTE if len(without) < len(seen.nodes or ()) else Level.BAD
        yield Finding(level, "GPU nodes", says, "run NVIDIA's device plugin there instead (docs/installing.md)")
