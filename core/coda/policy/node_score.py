"""Scores that choose the node of a gang of one rank, one per placement rival; the lowest score wins.

Scores that sum over resources count those the node has; each amount is divided by the node's size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from coda.model.resources import Resources


class Typical(NamedTuple):
    """A typical rank of the workload. `weight`: how often it comes, relative to the others."""

    gpus: int
    cores: int
    weight: float


Mix = tuple[Typical, ...]
TYPICAL_MIX: Final[Mix] = (
    Typical(1, 2, 0.56),
    Typical(2, 4, 0.16),
    Typical(4, 8, 0.21),
    Typical(8, 16, 0.07),
)
"""GPU jobs of the month fitted to CODA's text; two cores per GPU. Our choice: the paper gives no mix of GPU counts."""

Scorer = Callable[[Resources, Resources, Resources, Mix], tuple[float, ...]]
"""(request, free, size of the node, mix of the workload) -> key, lowest first."""


def fewest_gpus(request: Resources, free: Resources, size: Resources, mix: Mix) -> tuple[float, ...]:
    """Prefer the fewest free GPUs for GPU jobs, the most free cores for CPU jobs.

    Source: our choice, because CODA's text does not say; with it our FIFO figures agree with CODA's."""
    return (free.gpus,) if request.gpus else (-free.cpu_m,)


def best_fit(request: Resources, free: Resources, size: Resources, mix: Mix) -> tuple[float, ...]:
    """Prefer the least left over: the sum over resources of (free - asked) / size."""
    return (sum((have - asked) / whole for asked, have, whole in _amounts(request, free, size)),)


def dot_product(request: Resources, free: Resources, size: Resources, mix: Mix) -> tuple[float, ...]:
    """Prefer the most alike in direction: the sum over resources of asked/size * free/size, largest first.

    Source: Tetris (Grandl et al., SIGCOMM 2014), alignment score."""
    return (-sum(asked / whole * have / whole for asked, have, whole in _amounts(request, free, size)),)


def least_allocated(request: Resources, free: Resources, size: Resources, mix: Mix) -> tuple[float, ...]:
    """Prefer the most cores and memory left free, in whole hundredths of the node, averaged.

    Source: Kubernetes 1.36, NodeResourcesFit with LeastAllocated (cpu and memory, weight 1 each)."""
    pairs = ((free.cpu_m - request.cpu_m, size.cpu_m), (free.memory_bytes - request.memory_bytes, size.memory_bytes))
    scores = [max(0, left) * 100 // whole for left, whole in pairs if whole]
    return (-(sum(scores) // len(scores)) if scores else 0,)


def least_fragmenting(request: Resources, free: Resources, size: Resources, mix: Mix) -> tuple[float, ...]:
    """Prefer the smallest growth of the GPUs that a job of the workload's mix cannot use.

    Source: FGD (Weng et al., ATC 2023), fragmentation gradient descent, for whole GPUs."""
    return (fragmented_gpus(free - request, mix) - fragmented_gpus(free, mix),)


def fragmented_gpus(free: Resources, mix: Mix) -> float:
    """Return how many of a node's free GPUs a job drawn from the mix cannot use, on average.

    All of them if it does not fit: too few GPUs or cores are left, or it asks for no GPU. Source: FGD, section 3."""
    total = sum(typical.weight for typical in mix)
    unusable = sum(
        typical.weight
        for typical in mix
        if not typical.gpus or typical.gpus > free.gpus or typical.cores * 1000 > free.cpu_m
    )
    return max(0, free.gpus) * unusable / total if total else 0.0


def _amounts(request: Resources, free: Resources, size: Resources) -> Iterator[tuple[int, int, int]]:
    """Yield asked, free and total of cores, memory and GPUs, for the resources that the node has."""
    if size.cpu_m:
        yield request.cpu_m, free.cpu_m, size.cpu_m
    if size.memory_bytes:
        yield request.memory_bytes, free.memory_bytes, size.memory_bytes
    if size.gpus:
        yield request.gpus, free.gpus, size.gpus
