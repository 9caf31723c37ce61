"""Which node a gang of one rank goes to: the scores of the placement rivals, lowest first. What must not live here:
whether it may go there.

All are sums over the resources a node has; each amount is divided by the size of the node it is on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from coda.model.resources import Resources


class Typical(NamedTuple):
    """A kind of rank that the workload is made of: `weight` is how often it comes, relative to the others."""

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
"""Request, free, the node's size, the workload's mix -> key, lowest first."""


def fewest_gpus(request: Resources, free: Resources, size: Resources, mix: Mix) -> tuple[float, ...]:
    """GPU jobs go where the fewest GPUs are free, CPU jobs where the most cores are.

    Source: our choice for what CODA's text leaves open (its FIFO figures come out right with it)."""
    return (free.gpus,) if request.gpus else (-free.cpu_m,)


def best_fit(request: Resources, free: Resources, size: Resources, mix: Mix) -> tuple[float, ...]:
    """The least left over: the sum over resources of (free - asked) / size."""
    return (sum((have - asked) / whole for asked, have, whole in _amounts(request, free, size)),)


def dot_product(request: Resources, free: Resources, size: Resources, mix: Mix) -> tuple[float, ...]:
    """The most alike in direction: the sum over resources of asked/size * free/size, largest first.

    Source: Tetris (Grandl et al., SIGCOMM 2014), alignment score."""
    return (-sum(asked / whole * have / whole for asked, have, whole in _amounts(request, free, size)),)


def least_allocated(request: Resources, free: Resources, size: Resources, mix: Mix) -> tuple[float, ...]:
    """The most cores and memory left free, in whole hundredths of the node, averaged.

    Source: Kubernetes 1.36, NodeResourcesFit with LeastAllocated (cpu and memory, weight 1 each)."""
    pairs = ((free.cpu_m - request.cpu_m, size.cpu_m), (free.memory_bytes - request.memory_bytes, size.memory_bytes))
    scores = [max(0, left) * 100 // whole for left, whole in pairs if whole]
    return (-(sum(scores) // len(scores)) if scores else 0,)


def least_fragmenting(request: Resources, free: Resources, size: Resources, mix: Mix) -> tuple[float, ...]:
    """The smallest growth of the GPUs that a job of the workload's mix could not use.

    Source: FGD (Weng et al., ATC 2023), fragmentation gradient descent, for whole GPUs."""
    return (fragmented_gpus(free - request, mix) - fragmented_gpus(free, mix),)


def fragmented_gpus(free: Resources, mix: Mix) -> float:
    """How many of a node's free GPUs a job drawn from the mix cannot use, on average.

    All of them where it does not fit: too few GPUs or too few cores are left, or it asks for no GPU at all.
    Source: FGD, section 3."""
    total = sum(typical.weight for typical in mix)
    unusable = sum(
        typical.weight
        for typical in mix
        if not typical.gpus or typical.gpus > free.gpus or typical.cores * 1000 > free.cpu_m
    )
    return max(0, free.gpus) * unusable / total if total else 0.0


def _amounts(request: Resources, free: Resources, size: Resources) -> Iterator[tuple[int, int, int]]:
    """Asked, free and in all: cores, memory, GPUs; those the node has."""
    if size.cpu_m:
        yield request.cpu_m, free.cpu_m, size.cpu_m
    if size.memory_bytes:
        yield request.memory_bytes, free.memory_bytes, size.memory_bytes
    if size.gpus:
        yield request.gpus, free.gpus, size.gpus
