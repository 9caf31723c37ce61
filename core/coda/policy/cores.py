"""How many cores a job starts with under each rule of a policy. What must not live here: the search from there on
(`tuning`), the start point's own rules (`allocator`), and what is lent to running jobs (`spare_cores`)."""

from __future__ import annotations

from collections.abc import Collection

from coda.model.job import Node
from coda.policy.policies import CoresRule


def starting_cores(
    rule: CoresRule,
    *,
    asked: int,
    gpus: int,
    tuned: int,
    nodes: Collection[Node],
    reserved_per_gpu: float | None = None,
    best: int = 0,
) -> int:
    """Whole cores of one rank with `gpus`; `asked` by its user, `tuned`: the allocator's start point. CPU jobs get what
    they ask for. `reserved_per_gpu`: cores that belong to the GPU array, where there are arrays. `best`: with which a
    profile says it is fastest, 0 for unknown.

    Tuned: no more than belongs to the GPU array for so many GPUs, rounded down, at least 1: a job then never waits for
    a core of the CPU array, nor takes those of the GPUs beside it, and its search goes up from there. Source: CODA (a
    job may at first use its own array only); per GPU is our choice.

    In proportion: the GPUs' part of a node, rounded down, at least 1; where nodes differ, of those that have so many
    GPUs the one with the fewest cores per GPU, so that the job fits on all of them (our choice); as asked where none
    has. Source: Philly (ATC 2019), section 2.1.

    At best: the same, but no more than it can use. Source: Synergy (OSDI 2022), Synergy-TUNE."""
    if not gpus or rule is CoresRule.ASKED:
        return asked
    if rule is CoresRule.TUNED:
        return tuned if reserved_per_gpu is None else max(1, min(tuned, int(reserved_per_gpu * gpus)))
    parts = (
        node.allocatable.cpu_m * gpus // (node.allocatable.gpus * 1000)
        for node in nodes
        if node.allocatable.gpus >= gpus
    )
    part = max(1, min(parts, default=asked))
    return min(part, best) if best and rule is CoresRule.AT_BEST else part
